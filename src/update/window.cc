#include "update/window.h"

#include <utility>

#include "model/model.h"
#include "tensor/dtype.h"

namespace syncline::update {
namespace {

using base::Result;
using base::Status;

ParameterPlace PlaceOf(const layout::TensorSpec& spec, std::uint64_t address) {
  const std::uint32_t bits = tensor::Bits(spec.dtype);
  const std::uint64_t element_bytes = bits % 8 == 0 ? bits / 8 : 1;
  return {.name = spec.name,
          .address = address,
          .elements = spec.bytes() / element_bytes,
          .element_bytes = element_bytes};
}

}  // namespace

Result<std::unique_ptr<Window>> Window::Make(const transport::TransferEngineOptions& options,
                                             model::Model& model, Transaction& transaction) {
  SYNCLINE_ASSIGN(const base::Arena* memory, transaction.window());
  SYNCLINE_ASSIGN(std::unique_ptr<transport::TransferEngine> engine,
                  transport::TransferEngine::Start(options, *memory));
  std::unique_ptr<Window> window(new Window(transaction, std::move(engine)));
  window->info_.session = window->engine_->session();
  const layout::Plan& plan = model.plan();
  const auto live = model.parameters().live();
  const std::byte* const begin = model.parameters().live_arena().bytes().data();
  for (std::size_t i = 0; i < live.size(); ++i) {
    if (plan.IsDerived(i)) continue;
    const auto offset = static_cast<std::uint64_t>(live[i].data() - begin);
    window->info_.parameters.push_back(
        PlaceOf(plan.parameters()[i], window->engine_->address() + offset));
  }
  return window;
}

Status Window::Open(base::ThreadPool& pool) {
  SYNCLINE_TRY(transaction_.Open(pool));
  return engine_->Open();
}

}  // namespace syncline::update
