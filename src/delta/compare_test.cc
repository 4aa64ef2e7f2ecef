// The histogram of steps against a list of all values of a type in their order.
#include "delta/compare.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <vector>

namespace syncline::delta {
namespace {

using base::ByteSpan;
using tensor::Dtype;
using Bytes = std::vector<std::byte>;

// Value of the bits of a small float, by the definition of its type; nothing for NaN.
std::optional<double> Value(std::uint64_t bits, Dtype dtype) {
  struct Form {
    int exponent_bits, mantissa_bits, bias;
    enum { kIeee, kFiniteNan, kFnuz } specials;
  };
  const auto form = [&]() -> Form {
    switch (dtype) {
      case Dtype::kF16:
        return {5, 10, 15, Form::kIeee};
      case Dtype::kBF16:
        return {8, 7, 127, Form::kIeee};
      case Dtype::kF8E5M2:
        return {5, 2, 15, Form::kIeee};
      case Dtype::kF8E4M3:
        return {4, 3, 7, Form::kFiniteNan};
      case Dtype::kF8E4M3Fnuz:
        return {4, 3, 8, Form::kFnuz};
      default:
        return {5, 2, 16, Form::kFnuz};
    }
  }();
  if (dtype == Dtype::kF8E8M0) {
    return bits == 0xFF ? std::nullopt
                        : std::optional(std::ldexp(1.0, static_cast<int>(bits) - 127));
  }
  const int width = form.exponent_bits + form.mantissa_bits;
  const auto sign = (bits >> width & 1) != 0;
  const auto exponent =
      static_cast<int>(bits >> form.mantissa_bits) & ((1 << form.exponent_bits) - 1);
  const auto mantissa = static_cast<int>(bits) & ((1 << form.mantissa_bits) - 1);
  const bool top = exponent == (1 << form.exponent_bits) - 1;
  double value = exponent == 0 ? std::ldexp(mantissa, 1 - form.bias - form.mantissa_bits)
                               : std::ldexp(mantissa + (1 << form.mantissa_bits),
                                            exponent - form.bias - form.mantissa_bits);
  if (form.specials == Form::kIeee && top) {
    if (mantissa != 0) return std::nullopt;
    value = std::numeric_limits<double>::infinity();
  }
  if (form.specials == Form::kFiniteNan && top && mantissa == (1 << form.mantissa_bits) - 1) {
    return std::nullopt;
  }
  if (form.specials == Form::kFnuz && sign && exponent == 0 && mantissa == 0) return std::nullopt;
  return sign ? -value : value;
}

constexpr Dtype kSmall[] = {Dtype::kF16,    Dtype::kBF16,       Dtype::kF8E5M2,    Dtype::kF8E4M3,
                            Dtype::kF8E8M0, Dtype::kF8E4M3Fnuz, Dtype::kF8E5M2Fnuz};

// Ranks of all magnitudes of a type.
class Ranks {
 public:
  explicit Ranks(Dtype dtype) : dtype_(dtype) {
    for (std::uint64_t bits = 0; bits < std::uint64_t{1} << Bits(dtype); ++bits) {
      if (const auto value = Value(bits, dtype)) ranks_.emplace(std::abs(*value), 0);
    }
    std::uint64_t next = 0;
    for (auto& [value, rank] : ranks_) rank = next++;
  }

  void Add(std::uint64_t a, std::uint64_t b, StepHistogram& histogram) const {
    ++histogram.elements;
    if (a == b) return;
    ++histogram.changed;
    const auto x = Value(a, dtype_);
    const auto y = Value(b, dtype_);
    if (!x || !y) {
      ++histogram.nan;
    } else if (std::signbit(*x) != std::signbit(*y)) {
      ++histogram.sign_changes;
    } else {
      const std::uint64_t p = ranks_.at(std::abs(*x));
      const std::uint64_t q = ranks_.at(std::abs(*y));
      const std::uint64_t step = p > q ? p - q : q - p;
      std::size_t bin = 0;
      while (step > LastOfBin(bin)) ++bin;
      ASSERT_GE(step, FirstOfBin(bin));
      ++histogram.steps[bin];
    }
  }

 private:
  Dtype dtype_;
  std::map<double, std::uint64_t> ranks_;
};

template <typename Word>
Bytes BytesOf(const std::vector<Word>& words) {
  Bytes bytes(words.size() * sizeof(Word));
  for (std::size_t i = 0; i < words.size(); ++i) base::Store(&bytes[i * sizeof(Word)], words[i]);
  return bytes;
}

template <typename Word>
StepHistogram Steps(const std::vector<Word>& a, const std::vector<Word>& b, Dtype dtype) {
  StepHistogram histogram;
  AddSteps(BytesOf(a), BytesOf(b), dtype, histogram);
  return histogram;
}

TEST(CompareTest, EveryPairOfTheSmallestTypes) {
  for (const Dtype dtype : kSmall) {
    if (Bits(dtype) > 8) continue;
    const Ranks ranks(dtype);
    for (unsigned a = 0; a < 256; ++a) {
      std::vector<std::uint8_t> from(256, static_cast<std::uint8_t>(a));
      std::vector<std::uint8_t> to;
      StepHistogram expected;
      for (unsigned b = 0; b < 256; ++b) {
        to.push_back(static_cast<std::uint8_t>(b));
        ranks.Add(a, b, expected);
      }
      ASSERT_EQ(Steps(from, to, dtype), expected) << Name(dtype) << " from " << a;
    }
  }
}

template <typename Float, typename Word>
void CheckNeighbours(Dtype dtype) {
  const auto bits = [](Float value) { return std::bit_cast<Word>(value); };
  std::vector<Word> from;
  std::vector<Word> to;
  for (const Float value : {Float(0), Float(1), Float(-1.5), std::numeric_limits<Float>::max(),
                            std::numeric_limits<Float>::denorm_min()}) {
    from.push_back(bits(value));
    const Float away = std::copysign(std::numeric_limits<Float>::infinity(), value);
    to.push_back(bits(std::nextafter(value, away)));
  }
  const Float nan = std::numeric_limits<Float>::quiet_NaN();
  from.insert(from.end(), {bits(Float(0)), bits(Float(1)), bits(nan), bits(nan), bits(Float(2))});
  to.insert(to.end(),
            {bits(Float(-0.0)), bits(Float(-1)), bits(nan), bits(Float(1)), bits(Float(1))});
  const StepHistogram histogram = Steps(from, to, dtype);
  EXPECT_EQ(histogram.elements, 10U);
  EXPECT_EQ(histogram.changed, 9U);
  EXPECT_EQ(histogram.steps[0], 5U);
  EXPECT_EQ(histogram.steps[std::numeric_limits<Float>::digits - 1], 1U) << "one binade";
  EXPECT_EQ(histogram.sign_changes, 2U);
  EXPECT_EQ(histogram.nan, 1U);
}

TEST(CompareTest, NeighboursOfTheLargeTypes) {
  CheckNeighbours<float, std::uint32_t>(Dtype::kF32);
  CheckNeighbours<double, std::uint64_t>(Dtype::kF64);
  EXPECT_EQ(Steps<std::uint64_t>({0}, {0x7FF0000000000000}, Dtype::kF64).steps[63], 1U);
}

TEST(CompareTest, OtherTypesHaveChangesOnly) {
  EXPECT_FALSE(HasSteps(Dtype::kI32));
  EXPECT_FALSE(HasSteps(Dtype::kC64));
  EXPECT_FALSE(HasSteps(Dtype::kF4));
  const StepHistogram histogram = Steps<std::uint64_t>({1, 2, 3}, {1, ~2ULL, 4}, Dtype::kC64);
  EXPECT_EQ(histogram, (StepHistogram{.elements = 3, .changed = 2}));
}

// Of any length, across blocks, and in any two parts.
RC_GTEST_PROP(CompareProperty, EqualsThePlainReading, ()) {
  const Dtype dtype = *rc::gen::elementOf(std::vector<Dtype>{Dtype::kF16, Dtype::kBF16});
  static const std::map<Dtype, Ranks> ranks = {{Dtype::kF16, Ranks(Dtype::kF16)},
                                               {Dtype::kBF16, Ranks(Dtype::kBF16)}};
  auto from = *rc::gen::container<std::vector<std::uint16_t>>(rc::gen::arbitrary<std::uint16_t>());
  if (*rc::gen::inRange(0, 4) == 0) from.resize(40'000, 0x3F80);
  std::vector<std::uint16_t> to = from;
  const auto edits = *rc::gen::container<std::vector<std::pair<std::size_t, std::uint16_t>>>(
      rc::gen::pair(rc::gen::arbitrary<std::size_t>(), rc::gen::arbitrary<std::uint16_t>()));
  for (const auto& [at, value] : edits) {
    if (to.empty()) break;
    to[at % to.size()] =
        value % 3 == 0 ? value : static_cast<std::uint16_t>(to[at % to.size()] + value % 9);
  }
  StepHistogram expected;
  for (std::size_t i = 0; i < from.size(); ++i) ranks.at(dtype).Add(from[i], to[i], expected);
  RC_ASSERT(Steps(from, to, dtype) == expected);

  const std::size_t cut = 2 * *rc::gen::inRange<std::size_t>(0, from.size() + 1);
  const Bytes a = BytesOf(from);
  const Bytes b = BytesOf(to);
  StepHistogram first;
  StepHistogram second;
  AddSteps(ByteSpan(a).first(cut), ByteSpan(b).first(cut), dtype, first);
  AddSteps(ByteSpan(a).subspan(cut), ByteSpan(b).subspan(cut), dtype, second);
  RC_ASSERT((first += second) == expected);
}

}  // namespace
}  // namespace syncline::delta
