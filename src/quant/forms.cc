#include "quant/forms.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <set>

#include "quant/config.h"
#include "quant/fp8_requantise.h"
#include "quant/fp8_rows.h"
#include "tensor/small_floats.h"

namespace syncline::quant {
namespace {

using base::Code;
using base::Fail;
using tensor::Dtype;

constexpr std::string_view kScale = ".weight_scale_inv";
constexpr std::string_view kWeight = ".weight";

constexpr std::uint64_t CeilDiv(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; }

bool IsFloat(Dtype dtype) {
  return dtype == Dtype::kF32 || dtype == Dtype::kF16 || dtype == Dtype::kBF16;
}

float ReadFloat(Dtype dtype, const std::byte* from, std::size_t i) {
  if (dtype == Dtype::kF32) return base::Load<float>(from + i * sizeof(float));
  const auto bits = base::Load<std::uint16_t>(from + i * sizeof(std::uint16_t));
  return dtype == Dtype::kF16 ? tensor::FromF16(bits) : tensor::FromBf16(bits);
}

void WriteFloat(Dtype dtype, float value, std::byte* to, std::size_t i) {
  if (dtype == Dtype::kF32) {
    base::Store(to + i * sizeof(float), value);
  } else {
    base::Store(to + i * sizeof(std::uint16_t),
                dtype == Dtype::kF16 ? tensor::ToF16(value) : tensor::ToBf16(value));
  }
}

// The value of an F8_E8M0 element: the least is a subnormal float, the largest NaN.
float FromE8M0(std::uint8_t exponent) {
  if (exponent == 0) return 0x1p-127F;
  if (exponent == 255) return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent) << 23);
}

class QuantForms final : public layout::Forms {
 public:
  QuantForms(const layout::Plan& plan, const Units& units) : plan_(plan) {
    // Modules are those with all tensors of a scheme.
    std::set<const Scheme*> schemes;
    for (const Unit& unit : units.units()) schemes.insert(unit.scheme.get());
    of_unit_.resize(plan.tensors().size());
    weights_.resize(plan.tensors().size(), layout::Plan::npos);
    for (const Scheme* scheme : schemes) AddModules(*scheme);
  }

  bool Accepts(std::size_t tensor, Dtype dtype, tensor::Shape shape) const override {
    const layout::TensorSpec& spec = plan_.tensors()[tensor];
    if (IsFloat(spec.dtype) && IsFloat(dtype) && !of_unit_[tensor]) {
      return dtype != spec.dtype && std::ranges::equal(shape, spec.shape);
    }
    if (weights_[tensor] == layout::Plan::npos) return false;
    if (dtype == Dtype::kF8E8M0) return std::ranges::equal(shape, spec.shape);
    return dtype == Dtype::kI32 && shape.size() == 2 && shape[0] == Rows(tensor) &&
           shape[1] == CeilDiv(spec.shape[1], kExponentsInWord);
  }

  base::Result<std::vector<std::byte>> Convert(std::size_t tensor, Dtype dtype, tensor::Shape shape,
                                               base::ByteSpan bytes) const override {
    const layout::TensorSpec& spec = plan_.tensors()[tensor];
    SYNCLINE_ASSIGN(const std::uint64_t expected, tensor::ByteCount(dtype, shape));
    if (!Accepts(tensor, dtype, shape) || bytes.size() != expected) {
      return Fail(Code::kInvalidArgument,
                  fmt::format("{} is {} {} in {} bytes, expected {} {} or a form of it", spec.name,
                              tensor::Name(dtype), tensor::ShapeText(shape), bytes.size(),
                              tensor::Name(spec.dtype), tensor::ShapeText(spec.shape)));
    }
    std::vector<std::byte> converted(spec.bytes());
    if (dtype == Dtype::kI32) {
      SYNCLINE_TRY(Unpack(tensor, bytes, converted));
    } else if (dtype == Dtype::kF8E8M0) {
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        base::Store(converted.data() + i * sizeof(float),
                    FromE8M0(std::to_integer<std::uint8_t>(bytes[i])));
      }
    } else {
      const std::size_t count = bytes.size() * 8 / tensor::Bits(dtype);
      for (std::size_t i = 0; i < count; ++i) {
        WriteFloat(spec.dtype, ReadFloat(dtype, bytes.data(), i), converted.data(), i);
      }
    }
    return converted;
  }

 private:
  // Finds the modules of a scheme by the tensor of its first slot.
  void AddModules(const Scheme& scheme) {
    const std::vector<std::string> suffixes = TensorNames(scheme, "");
    const std::string& first = suffixes.front();
    for (std::size_t i = 0; i < plan_.tensors().size(); ++i) {
      const std::string& name = plan_.tensors()[i].name;
      if (!name.ends_with(first)) continue;
      std::vector<std::size_t> tensors;
      tensors.reserve(suffixes.size());
      const std::string module = name.substr(0, name.size() - first.size());
      for (const std::string& suffix : suffixes) {
        tensors.push_back(plan_.FindTensor(module + suffix));
      }
      if (std::ranges::find(tensors, layout::Plan::npos) != tensors.end()) continue;
      for (const std::size_t tensor : tensors) {
        of_unit_[tensor] = true;
        if (IsBlockScale(tensor, i)) weights_[tensor] = i;
      }
    }
  }

  // Are these the scales and the weight of a block-wise fp8 module?
  bool IsBlockScale(std::size_t scale, std::size_t weight) const {
    const layout::TensorSpec& scales = plan_.tensors()[scale];
    const layout::TensorSpec& values = plan_.tensors()[weight];
    return scales.name.ends_with(kScale) && values.name.ends_with(kWeight) &&
           scales.dtype == Dtype::kF32 && values.dtype == Dtype::kF8E4M3 &&
           scales.shape.size() == 2 && values.shape.size() == 2 &&
           scales.shape[0] == CeilDiv(values.shape[0], kFp8Block) &&
           scales.shape[1] == CeilDiv(values.shape[1], kFp8Block);
  }

  std::uint64_t Rows(std::size_t scale) const { return plan_.tensors()[weights_[scale]].shape[0]; }

  base::Status Unpack(std::size_t tensor, base::ByteSpan packed,
                      base::MutableByteSpan scales) const {
    const layout::TensorSpec& spec = plan_.tensors()[tensor];
    const std::uint64_t blocks = spec.shape[1];
    const std::uint64_t row_bytes = CeilDiv(blocks, kExponentsInWord) * kExponentsInWord;
    for (std::uint64_t row = 0; row < Rows(tensor); ++row) {
      const std::uint64_t top = row / kFp8Block * kFp8Block;
      for (std::uint64_t block = 0; block < blocks; ++block) {
        const auto exponent = std::to_integer<std::uint32_t>(packed[row * row_bytes + block]);
        const auto first = std::to_integer<std::uint32_t>(packed[top * row_bytes + block]);
        if (exponent != first) {
          return Fail(Code::kInvalidArgument,
                      fmt::format("{}: row {} has the exponent {} for column block {}, expected {} "
                                  "as in row {} of its block",
                                  spec.name, row, exponent, block, first, top));
        }
        base::Store(scales.data() + (row / kFp8Block * blocks + block) * sizeof(float),
                    std::bit_cast<float>(exponent << 23));
      }
    }
    return {};
  }

  const layout::Plan& plan_;
  std::vector<bool> of_unit_;         // by tensor
  std::vector<std::size_t> weights_;  // by tensor: the weight of a scale of block-wise fp8
};

}  // namespace

std::unique_ptr<layout::Forms> MakeForms(const layout::Plan& plan, const Units& units) {
  return std::make_unique<QuantForms>(plan, units);
}

}  // namespace syncline::quant
