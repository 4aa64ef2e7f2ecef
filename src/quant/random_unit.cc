#include "quant/random_unit.h"

#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace syncline::quant {
namespace {

float RandomScale(std::mt19937_64& random) {
  using Limits = std::numeric_limits<float>;
  constexpr float kOdd[] = {0.0F,
                            -0.0F,
                            -0.25F,
                            -0.3F,
                            Limits::denorm_min(),
                            Limits::min(),
                            Limits::max(),
                            Limits::infinity(),
                            -Limits::infinity(),
                            Limits::quiet_NaN()};
  const auto kind = random() % 16;
  const int exponent = static_cast<int>(random() % 40) - 30;
  if (kind == 0) return kOdd[random() % std::size(kOdd)];
  if (kind < 6) return std::ldexp(1.0F, exponent);
  return std::ldexp(1.0F + static_cast<float>(random() % 65536) / 65536, exponent);
}

}  // namespace

std::uint64_t Draw(std::uint64_t begin, std::uint64_t end) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(begin, end));
}

SlotMemory::SlotMemory(const std::vector<Slot>& slots) {
  for (const Slot& slot : slots) {
    bytes.emplace_back(std::max(slot.load.bytes(), slot.runtime_bytes));
  }
}

std::vector<base::MutableByteSpan> SlotMemory::Views() {
  return std::vector<base::MutableByteSpan>(bytes.begin(), bytes.end());
}

std::vector<base::ByteSpan> SlotMemory::ConstViews() const {
  return std::vector<base::ByteSpan>(bytes.begin(), bytes.end());
}

SlotMemory RandomLoad(const std::vector<Slot>& slots) {
  std::mt19937_64 random(*rc::gen::arbitrary<std::uint64_t>());
  SlotMemory memory(slots);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    for (std::byte& byte : memory.bytes[i]) byte = static_cast<std::byte>(random());
    if (slots[i].load.dtype != tensor::Dtype::kF32) continue;
    for (std::uint64_t at = 0; at < slots[i].load.bytes(); at += sizeof(float)) {
      base::Store(memory.bytes[i].data() + at, RandomScale(random));
    }
  }
  return memory;
}

SlotMemory Cut(const std::vector<Slot>& slots, Layout layout, SlotMemory memory) {
  for (std::size_t i = 0; i < slots.size(); ++i) {
    memory.bytes[i].resize(layout == Layout::kLoad ? slots[i].load.bytes()
                                                   : slots[i].runtime_bytes);
  }
  return memory;
}

}  // namespace syncline::quant
