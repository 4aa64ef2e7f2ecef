#include "quant/int8_example.h"

#include "quant/matrix_check.h"
#include "tensor/small_floats.h"

namespace syncline::quant {
namespace {

using tensor::Dtype;

class Int8Channel final : public Scheme {
 public:
  std::string_view name() const override { return "int8-channel"; }
  base::Status Check(const Matrix& matrix) const override { return CheckMatrix(matrix); }

  std::vector<Slot> Slots(const Matrix& matrix) const override {
    std::vector<Slot> slots(2);
    slots[0].name = "weight";
    slots[0].load = {"", Dtype::kI8, {matrix.rows(), matrix.columns}};
    slots[1].name = "weight_scale";
    slots[1].load = {"", Dtype::kF32, {matrix.rows(), 1}};
    slots[1].block_columns = 0;
    for (Slot& slot : slots) {
      if (matrix.experts != 0) slot.load.shape.insert(slot.load.shape.begin(), matrix.experts);
      slot.runtime = slot.load;
      slot.runtime_bytes = slot.load.bytes();
    }
    return slots;
  }

  bool Repacks() const override { return false; }
  bool Exact() const override { return true; }
  void Process(const Matrix&, MutableSlotViews, base::ThreadPool&) const override {}
  void Restore(const Matrix&, MutableSlotViews, base::ThreadPool&) const override {}

  std::uint64_t RowStep() const override { return 1; }
  void Dequantise(const Matrix& matrix, SlotViews slots, Layout, std::uint64_t expert,
                  std::uint64_t first, std::uint64_t last, std::uint16_t* bf16) const override {
    for (std::uint64_t row = first; row < last; ++row) {
      const std::uint64_t number = expert * matrix.rows() + row;
      const auto scale = base::Load<float>(slots[1].data() + number * sizeof(float));
      const std::byte* values = slots[0].data() + number * matrix.columns;
      for (std::uint64_t column = 0; column < matrix.columns; ++column) {
        const auto value = static_cast<float>(std::to_integer<std::int8_t>(values[column]));
        *bf16++ = tensor::ToBf16(value * scale);
      }
    }
  }
};

}  // namespace

std::shared_ptr<const Scheme> Int8Example() { return std::make_shared<Int8Channel>(); }

}  // namespace syncline::quant
