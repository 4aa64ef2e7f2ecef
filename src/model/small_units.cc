#include "model/small_units.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <random>

#include "tensor/small_floats.h"

namespace syncline::model {

using tensor::Dtype;

void FillRandom(Dtype dtype, bool is_scale, std::uint32_t seed, base::MutableByteSpan bytes) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.3F);
  std::uniform_real_distribution<float> scale(0.0005F, 0.003F);
  const auto value = [&] { return is_scale ? scale(random) : normal(random); };
  const std::size_t step = tensor::Bits(dtype) / 8;
  // Drawing is slow: what is drawn is repeated, after a number of elements that no size divides by.
  const std::size_t drawn = std::min<std::size_t>(bytes.size(), 4999 * step);
  for (std::size_t i = 0; i + step <= drawn; i += step) {
    std::byte* const at = bytes.data() + i;
    if (dtype == Dtype::kF32) {
      base::Store(at, std::bit_cast<std::uint32_t>(value()));
    } else if (dtype == Dtype::kBF16) {
      base::Store(at, tensor::ToBf16(value()));
    } else if (dtype == Dtype::kF8E4M3) {
      *at = static_cast<std::byte>(tensor::ToE4M3(300 * value()));
    } else if (dtype == Dtype::kI32) {
      base::Store(at, static_cast<std::uint32_t>(random()));
    } else {
      std::abort();
    }
  }
  for (std::size_t i = drawn; i < bytes.size(); ++i) bytes[i] = bytes[i - drawn];
}

SmallUnit::SmallUnit(std::shared_ptr<const quant::Scheme> scheme, quant::Matrix matrix,
                     std::uint32_t seed)
    : unit_{.module = "unit",
            .scheme = std::move(scheme),
            .matrix = std::move(matrix),
            .parameters = {}} {
  std::vector<base::MutableByteSpan> views;
  for (const quant::Slot& slot : unit_.scheme->Slots(unit_.matrix)) {
    auto& bytes = bytes_.emplace_back(std::max(slot.load.bytes(), slot.runtime_bytes));
    FillRandom(slot.load.dtype, slot.name.find("scale") != std::string::npos, ++seed,
               {bytes.data(), slot.load.bytes()});
  }
  views.reserve(bytes_.size());
  for (auto& bytes : bytes_) views.emplace_back(bytes);
  base::ThreadPool pool(1);
  unit_.scheme->Process(unit_.matrix, views, pool);
}

}  // namespace syncline::model
