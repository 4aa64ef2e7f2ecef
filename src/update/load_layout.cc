#include "update/load_layout.h"

#include "model/model.h"

namespace syncline::update {
namespace {

std::vector<base::ByteSpan> LiveViews(const model::Model& model,
                                      std::span<const base::MutableByteSpan> live) {
  std::vector<base::ByteSpan> views;
  for (const layout::TensorSpec& spec : model.plan().parameters()) {
    views.push_back(live[views.size()].first(spec.bytes()));
  }
  return views;
}

}  // namespace

LoadLayout::LoadLayout(model::Model& model, base::ThreadPool& pool)
    : model_(model), pool_(pool), views_(LiveViews(model, model.parameters().live())) {}

std::span<const base::ByteSpan> LoadLayout::Of(std::size_t tensor) {
  const auto pieces = model_.plan().PiecesOf(tensor);
  const std::size_t unit =
      pieces.empty() ? quant::Units::npos : model_.units().UnitOf(pieces[0].parameter);
  if (unit == quant::Units::npos || unit == unit_ ||
      !model_.units().units()[unit].scheme->Repacks()) {
    return views_;
  }
  unit_ = unit;
  restored_ = model_.units().Restored(unit, model_.parameters().live(), pool_);
  const std::vector<std::size_t>& parameters = model_.units().units()[unit].parameters;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::uint64_t bytes = model_.plan().parameters()[parameters[i]].bytes();
    views_[parameters[i]] = base::ByteSpan(restored_[i]).first(bytes);
  }
  return views_;
}

}  // namespace syncline::update
