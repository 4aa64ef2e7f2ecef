#include "checker/device_hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "checker/device_hash.cc"
#include <hwy/foreach_target.h>  // compiles this file once for each vector width
// after it
#include <hwy/highway.h>

#ifndef SYNCLINE_CHECKER_DEVICE_HASH_CONSTANTS
#define SYNCLINE_CHECKER_DEVICE_HASH_CONSTANTS
namespace syncline::checker {

// Word i of a tensor is mixed with (i · multiplier + seed) ^ rotl(i, turn) before it is finalised.
struct Mixing {
  std::uint32_t multiplier;
  std::uint32_t seed;
  int turn;
};
inline constexpr Mixing kFirst = {0x27d4'eb2d, 0x243f'6a88, 15};
inline constexpr Mixing kSecond = {0x1656'67b1, 0x02c7'4ee7, 13};

// The finaliser of MurmurHash3 with 32 bits.
inline constexpr std::uint32_t kFinal1 = 0x85eb'ca6b;
inline constexpr std::uint32_t kFinal2 = 0xc2b2'ae35;

constexpr std::uint32_t Finalise(std::uint32_t x) {
  x = (x ^ (x >> 16)) * kFinal1;
  x = (x ^ (x >> 13)) * kFinal2;
  return x ^ (x >> 16);
}

}  // namespace syncline::checker
#endif

HWY_BEFORE_NAMESPACE();
namespace syncline::checker::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

std::uint32_t MixWord(const Mixing& mixing, std::uint32_t word, std::uint32_t i) {
  const std::uint32_t turned = i << mixing.turn | i >> (32 - mixing.turn);
  return Finalise(word ^ ((i * mixing.multiplier + mixing.seed) ^ turned));
}

// Adds whole vectors of words, of which the first is number `first`. Returns how many words that
// were.
#if HWY_TARGET == HWY_SCALAR

std::size_t AddVectors(const std::byte* /*words*/, std::size_t /*count*/, std::uint32_t /*first*/,
                       std::uint32_t* /*sums*/) {
  return 0;
}

#else

template <typename D, typename V>
V FinaliseVector(D d, V x) {
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<16>(x)), hn::Set(d, kFinal1));
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<13>(x)), hn::Set(d, kFinal2));
  return hn::Xor(x, hn::ShiftRight<16>(x));
}

// Modulo 2^32. Not SumOfLanes, whose numbers are signed inside where compilers do it.
template <typename D, typename V>
std::uint32_t SumLanes(D d, V v) {
  std::array<std::uint32_t, hn::MaxLanes(D())> lanes;
  hn::StoreU(v, d, lanes.data());
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < hn::Lanes(d); ++i) sum += lanes[i];
  return sum;
}

std::size_t AddVectors(const std::byte* words, std::size_t count, std::uint32_t first,
                       std::uint32_t* sums) {
  const hn::ScalableTag<std::uint32_t> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto step = static_cast<std::uint32_t>(lanes);
  auto i = hn::Iota(d, first);
  // i · multiplier + seed, kept by adding.
  auto first_line = hn::Add(hn::Mul(i, hn::Set(d, kFirst.multiplier)), hn::Set(d, kFirst.seed));
  auto second_line = hn::Add(hn::Mul(i, hn::Set(d, kSecond.multiplier)), hn::Set(d, kSecond.seed));
  const auto i_step = hn::Set(d, step);
  const auto first_step = hn::Set(d, step * kFirst.multiplier);
  const auto second_step = hn::Set(d, step * kSecond.multiplier);
  auto first_sum = hn::Zero(d);
  auto second_sum = hn::Zero(d);
  std::size_t done = 0;
  for (; done + lanes <= count; done += lanes) {
    const auto word = hn::LoadU(d, reinterpret_cast<const std::uint32_t*>(words + 4 * done));
    const auto first_place = hn::Xor(first_line, hn::RotateRight<32 - kFirst.turn>(i));
    const auto second_place = hn::Xor(second_line, hn::RotateRight<32 - kSecond.turn>(i));
    first_sum = hn::Add(first_sum, FinaliseVector(d, hn::Xor(word, first_place)));
    second_sum = hn::Add(second_sum, FinaliseVector(d, hn::Xor(word, second_place)));
    i = hn::Add(i, i_step);
    first_line = hn::Add(first_line, first_step);
    second_line = hn::Add(second_line, second_step);
  }
  sums[0] += SumLanes(d, first_sum);
  sums[1] += SumLanes(d, second_sum);
  return done;
}

#endif

void AddWords(const std::byte* words, std::size_t count, std::uint32_t first, std::uint32_t* sums) {
  for (std::size_t done = AddVectors(words, count, first, sums); done < count; ++done) {
    const auto word = base::Load<std::uint32_t>(words + 4 * done);
    const std::uint32_t i = first + static_cast<std::uint32_t>(done);
    sums[0] += MixWord(kFirst, word, i);
    sums[1] += MixWord(kSecond, word, i);
  }
}

}  // namespace syncline::checker::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace syncline::checker {

HWY_EXPORT(AddWords);

void DeviceHash::Add(std::uint64_t offset, base::ByteSpan bytes) {
  const auto add_words = HWY_DYNAMIC_DISPATCH(AddWords);
  while (!bytes.empty()) {
    const std::uint64_t tile = offset / kTileBytes;
    const auto here =
        bytes.first(std::min<std::uint64_t>(bytes.size(), (tile + 1) * kTileBytes - offset));
    const auto first = static_cast<std::uint32_t>(offset / 4);  // numbers of words wrap
    std::uint32_t sums[2] = {};
    add_words(here.data(), here.size() / 4, first, sums);
    if (const std::size_t rest = here.size() % 4; rest != 0) {
      std::array<std::byte, 4> padded = {};
      std::memcpy(padded.data(), &here[here.size() - rest], rest);
      add_words(padded.data(), 1, first + static_cast<std::uint32_t>(here.size() / 4), sums);
    }
    if (here.size() == kTileBytes) {
      sum_ += ValueOf({sums[0], sums[1]});
    } else {
      Sums& open = open_[tile];
      open.first += sums[0];
      open.second += sums[1];
    }
    offset += here.size();
    bytes = bytes.subspan(here.size());
  }
}

void DeviceHash::Merge(const DeviceHash& other) {
  sum_ += other.sum_;
  for (const auto& [tile, sums] : other.open_) {
    Sums& open = open_[tile];
    open.first += sums.first;
    open.second += sums.second;
  }
}

std::uint64_t DeviceHash::ValueOf(Sums tile) const {
  const auto padded_bytes = static_cast<std::uint32_t>((bytes_ + 3) / 4 * 4);
  return std::uint64_t{Finalise(tile.first ^ padded_bytes)} << 32 |
         Finalise(tile.second ^ padded_bytes);
}

std::uint64_t DeviceHash::Value() const {
  std::uint64_t x = sum_;
  for (const auto& [tile, sums] : open_) x += ValueOf(sums);
  x = (x ^ (x >> 30)) * 0xbf58'476d'1ce4'e5b9;
  x = (x ^ (x >> 27)) * 0x94d0'49bb'1331'11eb;
  return x ^ (x >> 31);
}

std::string DeviceHash::Hex() const { return fmt::format("{:016x}", Value()); }

}  // namespace syncline::checker
#endif  // HWY_ONCE
