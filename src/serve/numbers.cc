#include "serve/numbers.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>

#include "base/bytes.h"

namespace syncline::serve {
namespace {

using base::Code;
using base::Fail;
using tensor::Dtype;

class NumberWriter {
 public:
  NumberWriter(const update::ExportedTensor& tensor, std::string& out)
      : tensor_(tensor), out_(out), at_(tensor.bytes.data()) {}

  // Dimensions from `dimension` on; the first one has `count` entries.
  void Write(std::size_t dimension, std::uint64_t count) {
    out_ += '[';
    for (std::uint64_t i = 0; i < count; ++i) {
      if (i > 0) out_ += ',';
      if (dimension + 1 < tensor_.shape.size()) {
        Write(dimension + 1, tensor_.shape[dimension + 1]);
      } else {
        WriteNumber(Next());
      }
    }
    out_ += ']';
  }

 private:
  float Next() {
    const std::byte* from = at_;
    at_ += tensor::Bits(tensor_.dtype) / 8;
    switch (tensor_.dtype) {
      case Dtype::kBF16:
        return Bf16ToFloat(base::Load<std::uint16_t>(from));
      case Dtype::kF16:
        return F16ToFloat(base::Load<std::uint16_t>(from));
      default:
        return base::Load<float>(from);
    }
  }
  void WriteNumber(float value) {
    if (!std::isfinite(value)) {
      out_ += "null";
    } else {
      fmt::format_to(std::back_inserter(out_), "{}", static_cast<double>(value));
    }
  }

  const update::ExportedTensor& tensor_;
  std::string& out_;
  const std::byte* at_;
};

}  // namespace

float Bf16ToFloat(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

float F16ToFloat(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1F;
  const int fraction = bits & 0x3FF;
  const float sign = (bits & 0x8000) != 0 ? -1.0F : 1.0F;
  if (exponent == 0x1F) {
    return fraction == 0 ? sign * INFINITY : NAN;
  }
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  return sign * std::ldexp(static_cast<float>(fraction + 0x400), exponent - 25);
}

base::Result<std::string> NumbersText(const update::ExportedTensor& tensor, std::uint64_t rows,
                                      std::uint64_t limit) {
  if (tensor.dtype != Dtype::kF32 && tensor.dtype != Dtype::kF16 && tensor.dtype != Dtype::kBF16) {
    return Fail(
        Code::kIncompatible,
        fmt::format("{}: expected F32, F16 or BF16, got {}; /export_weights gives the bytes",
                    tensor.name, tensor::Name(tensor.dtype)));
  }
  SYNCLINE_ASSIGN(const std::uint64_t bytes, tensor::ByteCount(tensor.dtype, tensor.shape));
  if (bytes != tensor.bytes.size()) {
    return Fail(Code::kCorrupt, fmt::format("{}: expected {} bytes, got {}", tensor.name, bytes,
                                            tensor.bytes.size()));
  }
  const std::uint64_t numbers = bytes / (tensor::Bits(tensor.dtype) / 8);
  const std::uint64_t all = tensor.shape.empty() ? 1 : tensor.shape.front();
  const std::uint64_t shown = std::min(rows, all);
  if (all > 0 && numbers / all * shown > limit) {
    return Fail(Code::kLimitExceeded,
                fmt::format("{}: {} of {} rows are {} numbers, expected at most {}; "
                            "/export_weights gives the bytes",
                            tensor.name, shown, all, numbers / all * shown, limit));
  }
  std::string out;
  NumberWriter(tensor, out).Write(0, shown);
  return out;
}

}  // namespace syncline::serve
