#include "quant/forms.h"

namespace syncline::quant {
namespace {

// None is accepted yet.
class NoForms : public layout::Forms {
 public:
  bool Accepts(std::size_t, tensor::Dtype, tensor::Shape) const override { return false; }
  base::Result<std::vector<std::byte>> Convert(std::size_t, tensor::Dtype, tensor::Shape,
                                               base::ByteSpan) const override {
    return base::Fail(base::Code::kInternal, "a form that is not accepted");
  }
};

}  // namespace

std::unique_ptr<layout::Forms> MakeForms(const layout::Plan&, const Units&) {
  return std::make_unique<NoForms>();
}

}  // namespace syncline::quant
