#include "tensor/unit_mask.h"

#include "base/bytes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/unit_mask.cc"
#include <hwy/foreach_target.h>  // compiles this file once for each vector width
// after it
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace syncline::tensor::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Handles whole groups of 64 units; returns the bytes done (none on a target without vectors). `b`
// null: the image is `a` itself and nothing is written.
template <typename Unit>
std::size_t Groups(const std::byte* a, const std::byte* b, std::size_t bytes, std::byte* image,
                   std::uint64_t* mask) {
  constexpr std::size_t kGroup = 64 * sizeof(Unit);
  const hn::CappedTag<Unit, 64> capped;
  const std::size_t lanes = hn::Lanes(capped);
  if (lanes < 8) return 0;
  const auto zero = hn::Zero(capped);
  std::size_t at = 0;
  for (; at + kGroup <= bytes; at += kGroup) {
    std::uint8_t bits[8] = {};
    for (std::size_t lane = 0; lane < 64; lane += lanes) {
      const std::size_t offset = at + lane * sizeof(Unit);
      auto x = hn::LoadU(capped, reinterpret_cast<const Unit*>(a + offset));
      if (b != nullptr) {
        x = hn::Xor(x, hn::LoadU(capped, reinterpret_cast<const Unit*>(b + offset)));
        hn::StoreU(x, capped, reinterpret_cast<Unit*>(image + offset));
      }
      hn::StoreMaskBits(capped, hn::Ne(x, zero), bits + lane / 8);
    }
    __builtin_memcpy(mask++, bits, 8);
  }
  return at;
}

std::size_t Groups8(const std::byte* a, const std::byte* b, std::size_t bytes, std::byte* image,
                    std::uint64_t* mask) {
  return Groups<std::uint8_t>(a, b, bytes, image, mask);
}

std::size_t Groups16(const std::byte* a, const std::byte* b, std::size_t bytes, std::byte* image,
                     std::uint64_t* mask) {
  return Groups<std::uint16_t>(a, b, bytes, image, mask);
}

// Here because the wider targets have an instruction for it.
std::uint64_t Count(const std::uint64_t* mask, std::size_t words, std::size_t units) {
  const std::uint64_t first = units == 1   ? ~std::uint64_t{0}
                              : units == 2 ? 0x5555'5555'5555'5555
                                           : 0x1111'1111'1111'1111;
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < words; ++i) {
    std::uint64_t bits = mask[i];
    if (units > 1) bits |= bits >> 1;
    if (units > 2) bits |= bits >> 2;
    count += static_cast<std::uint64_t>(__builtin_popcountll(bits & first));
  }
  return count;
}

}  // namespace syncline::tensor::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace syncline::tensor {
namespace {

HWY_EXPORT(Groups8);
HWY_EXPORT(Groups16);
HWY_EXPORT(Count);

template <typename Unit>
void Rest(const std::byte* a, const std::byte* b, std::size_t at, std::size_t bytes,
          std::byte* image, std::uint64_t* mask) {
  for (; at < bytes; ++mask) {
    *mask = 0;
    for (std::size_t bit = 0; bit < 64 && at < bytes; ++bit, at += sizeof(Unit)) {
      auto x = base::Load<Unit>(a + at);
      if (b != nullptr) {
        x = static_cast<Unit>(x ^ base::Load<Unit>(b + at));
        base::Store(image + at, x);
      }
      *mask |= std::uint64_t{x != 0} << bit;
    }
  }
}

void Run(const std::byte* a, const std::byte* b, std::size_t bytes, std::size_t unit_bytes,
         std::byte* image, std::uint64_t* mask) {
  const auto groups =
      unit_bytes == 1 ? HWY_DYNAMIC_DISPATCH(Groups8) : HWY_DYNAMIC_DISPATCH(Groups16);
  const std::size_t done = groups(a, b, bytes, image, mask);
  (unit_bytes == 1 ? Rest<std::uint8_t> : Rest<std::uint16_t>)(a, b, done, bytes, image,
                                                               mask + done / (64 * unit_bytes));
}

}  // namespace

void XorWithMask(const std::byte* a, const std::byte* b, std::size_t bytes, std::size_t unit_bytes,
                 std::byte* image, std::uint64_t* mask) {
  Run(a, b, bytes, unit_bytes, image, mask);
}

void NonZeroMask(const std::byte* image, std::size_t bytes, std::size_t unit_bytes,
                 std::uint64_t* mask) {
  Run(image, nullptr, bytes, unit_bytes, nullptr, mask);
}

std::uint64_t CountElements(const std::uint64_t* mask, std::size_t words, std::size_t units) {
  return HWY_DYNAMIC_DISPATCH(Count)(mask, words, units);
}

}  // namespace syncline::tensor
#endif  // HWY_ONCE
