#include "tensor/digest.h"

#include <fmt/format.h>

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/digest.cc"
#include <hwy/foreach_target.h>  // compiles this file once for each vector width
// after it
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace syncline::tensor::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Adds whole vectors of units, of which the first is number `place` of its block, without the key
// of the block. Returns how many units that were.
#if HWY_TARGET == HWY_SCALAR

template <typename Unit>
std::size_t AddVectors(const std::byte* /*units*/, std::size_t /*count*/, std::size_t /*place*/,
                       Digest& /*sums*/) {
  return 0;
}

#else

// Modulo 2^64. Not SumOfLanes: where compilers' own intrinsics do it they add signed numbers, whose
// overflow is undefined.
template <typename D, typename V>
std::uint64_t SumLanes(D d, V v) {
  std::array<std::uint64_t, hn::MaxLanes(D())> lanes;
  hn::StoreU(v, d, lanes.data());
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < hn::Lanes(d); ++i) sum += lanes[i];
  return sum;
}

template <typename Unit>
std::size_t AddVectors(const std::byte* units, std::size_t count, std::size_t place, Digest& sums) {
  const hn::ScalableTag<std::uint32_t> d32;
  const hn::RepartitionToWide<decltype(d32)> d64;
  const hn::Rebind<Unit, decltype(d32)> narrow;
  const std::size_t lanes = hn::Lanes(d32);
  auto low = hn::Zero(d64);
  auto high = hn::Zero(d64);
  // MulEven takes the numbers with even index only; this brings the others there.
  const auto odd = [&](auto v) {
    return hn::BitCast(d32, hn::ShiftRight<32>(hn::BitCast(d64, v)));
  };
  std::size_t done = 0;
  for (; done + lanes <= count; done += lanes) {
    const auto loaded =
        hn::LoadU(narrow, reinterpret_cast<const Unit*>(units + done * sizeof(Unit)));
    auto x = hn::Zero(d32);
    if constexpr (sizeof(Unit) == 4) {
      x = loaded;
    } else {
      x = hn::PromoteTo(d32, loaded);
    }
    const auto x_odd = odd(x);
    const auto key_low = hn::LoadU(d32, &kDigestPlaceKeys[0][place + done]);
    const auto key_high = hn::LoadU(d32, &kDigestPlaceKeys[1][place + done]);
    low = hn::Add(low, hn::Add(hn::MulEven(x, key_low), hn::MulEven(x_odd, odd(key_low))));
    high = hn::Add(high, hn::Add(hn::MulEven(x, key_high), hn::MulEven(x_odd, odd(key_high))));
  }
  sums.low += SumLanes(d64, low);
  sums.high += SumLanes(d64, high);
  return done;
}

#endif

template <typename Unit>
Digest Units(const std::byte* units, std::size_t count, std::uint64_t first) {
  Digest digest;
  while (count > 0) {
    const std::size_t place = first % kDigestBlock;
    const std::size_t here = std::min<std::size_t>(count, kDigestBlock - place);
    Digest sums;
    for (std::size_t i = AddVectors<Unit>(units, here, place, sums); i < here; ++i) {
      const std::uint64_t x = base::Load<Unit>(units + i * sizeof(Unit));
      sums.low += x * kDigestPlaceKeys[0][place + i];
      sums.high += x * kDigestPlaceKeys[1][place + i];
    }
    digest.low += DigestBlockKey(first / kDigestBlock, 0) * sums.low;
    digest.high += DigestBlockKey(first / kDigestBlock, 1) * sums.high;
    units += here * sizeof(Unit);
    count -= here;
    first += here;
  }
  return digest;
}

Digest Units8(const std::byte* units, std::size_t count, std::uint64_t first) {
  return Units<std::uint8_t>(units, count, first);
}

Digest Units16(const std::byte* units, std::size_t count, std::uint64_t first) {
  return Units<std::uint16_t>(units, count, first);
}

Digest Units32(const std::byte* units, std::size_t count, std::uint64_t first) {
  return Units<std::uint32_t>(units, count, first);
}

}  // namespace syncline::tensor::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace syncline::tensor {
namespace {

HWY_EXPORT(Units8);
HWY_EXPORT(Units16);
HWY_EXPORT(Units32);

// Lane 0 takes the lower half of each output of a generator, lane 1 the upper half.
constexpr auto MakePlaceKeys() {
  std::array<std::array<std::uint32_t, kDigestBlock>, 2> keys = {};
  for (std::size_t place = 0; place < kDigestBlock; ++place) {
    const std::uint64_t drawn = SplitMix64(0, place);
    keys[0][place] = static_cast<std::uint32_t>(drawn) | 1;
    keys[1][place] = static_cast<std::uint32_t>(drawn >> 32) | 1;
  }
  return keys;
}

std::optional<std::uint64_t> ParseLane(std::string_view hex) {
  std::uint64_t value = 0;
  for (const char digit : hex) {
    const bool decimal = digit >= '0' && digit <= '9';
    if (!decimal && (digit < 'a' || digit > 'f')) return std::nullopt;
    value = value << 4 | static_cast<std::uint64_t>(decimal ? digit - '0' : digit - 'a' + 10);
  }
  return value;
}

}  // namespace

// NOLINTNEXTLINE(bugprone-throwing-static-initialization): it is initialised by the compiler.
constinit const std::array<std::array<std::uint32_t, kDigestBlock>, 2> kDigestPlaceKeys =
    MakePlaceKeys();

std::string Digest::Hex() const { return fmt::format("{:016x}{:016x}", high, low); }

std::optional<Digest> Digest::Parse(std::string_view hex) {
  if (hex.size() != 32) return std::nullopt;
  const auto high = ParseLane(hex.substr(0, 16));
  const auto low = ParseLane(hex.substr(16));
  if (!high || !low) return std::nullopt;
  return Digest{*low, *high};
}

Digest DigestOf(base::ByteSpan bytes, std::size_t unit_bytes, std::uint64_t first_unit) {
  const auto units = unit_bytes == 1   ? HWY_DYNAMIC_DISPATCH(Units8)
                     : unit_bytes == 2 ? HWY_DYNAMIC_DISPATCH(Units16)
                                       : HWY_DYNAMIC_DISPATCH(Units32);
  return units(bytes.data(), bytes.size() / unit_bytes, first_unit);
}

}  // namespace syncline::tensor
#endif  // HWY_ONCE
