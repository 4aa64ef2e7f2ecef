#include <gtest/gtest.h>
#include <hwy/targets.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "base/result_matchers.h"
#include "delta/class_choice.h"
#include "delta/compact_frame.h"
#include "delta/compact_table.h"
#include "tensor/unit_mask.h"

namespace syncline::delta {
namespace {

using base::ByteSpan;
using base::Code;
using base::Result;
using base::Status;
using Bytes = std::vector<std::byte>;
using tensor::Dtype;

constexpr std::array kKinds = {UnitKind::kPlain8,     UnitKind::kPlain16,   UnitKind::kPlain32,
                               UnitKind::kFloat8M2,   UnitKind::kFloat8M3,  UnitKind::kFloat16M7,
                               UnitKind::kFloat16M10, UnitKind::kFloat32M23};

// A frame of some tensors, and what is needed to read it.
struct Encoded {
  Bytes frame;
  StepModel model;
};

// Encodes the tensors of a frame; those whose index is in `dense` as planes.
Encoded Encode(const std::vector<Bytes>& old_tensors, const std::vector<Bytes>& new_tensors,
               const ClassRule& rule, std::uint32_t dense = 0) {
  std::vector<PieceChanges> pieces;
  std::vector<DensePart> planes;
  for (std::size_t i = 0; i < old_tensors.size(); ++i) {
    if ((dense >> i & 1) != 0) {
      planes.push_back({i, EncodePlanes(new_tensors[i], UnitBytes(rule.kind)).value()});
      continue;
    }
    PieceScanner scanner(rule);
    ChangedLines lines(old_tensors[i].size());
    scanner.Scan(old_tensors[i], new_tensors[i], 0, 1, lines, nullptr);
    pieces.push_back(scanner.Take());
  }
  const bool has_stream = !pieces.empty();
  const std::vector<Change> changes = JoinFrame(std::move(pieces));
  auto counts = std::make_unique<StepCounts>();
  CountFrame(changes, rule.kind, rule.classes, *counts);
  Encoded encoded{.frame = {}, .model = StepModel::Of(*counts, rule.classes, rule.base)};
  const auto tables = std::make_unique<StepEncodeTables>(encoded.model);
  encoded.frame = EncodeFrame(changes, rule.kind, has_stream, planes, rule.classes, *tables);
  return encoded;
}

// Reads a frame over the tensors.
Status Decode(ByteSpan frame, const StepModel& model, UnitKind kind, std::vector<Bytes>& tensors) {
  SYNCLINE_TRY(StepDecodeTables::Check(model, kind));
  const auto tables = std::make_unique<StepDecodeTables>(model);
  Bytes memory(kBytesBefore);
  memory.insert(memory.end(), frame.begin(), frame.end());
  std::vector<FrameDecoder::Part> parts;
  for (const Bytes& tensor : tensors) parts.push_back({tensor.size() / UnitBytes(kind)});
  FrameDecoder decoder;
  SYNCLINE_TRY(decoder.Open(ByteSpan(memory).subspan(kBytesBefore), kind, parts, *tables));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::size_t units = tensors[i].size() / UnitBytes(kind);
    for (std::size_t at = 0; at < units; at += kStepBlockUnits) {
      std::byte* const bytes = tensors[i].data() + at * UnitBytes(kind);
      const std::size_t count = std::min(kStepBlockUnits, units - at);
      const Bytes before(bytes, bytes + count * UnitBytes(kind));
      UnitMask changed;
      SYNCLINE_TRY(decoder.Next(i, bytes, count, bytes, changed));
      for (std::size_t unit = 0; unit < kStepBlockUnits; ++unit) {
        if ((changed[unit / 64] >> (unit % 64) & 1) != 0) {
          EXPECT_LT(unit, count);
          continue;
        }
        if (unit >= count) continue;
        EXPECT_TRUE(std::equal(bytes + unit * UnitBytes(kind), bytes + (unit + 1) * UnitBytes(kind),
                               before.data() + unit * UnitBytes(kind)))
            << unit;
      }
    }
  }
  return decoder.Finish();
}

// Tensors of that kind and how they change: `wild` takes any bits, otherwise numbers like weights that
// move by small steps.
struct Pair {
  std::vector<Bytes> before;
  std::vector<Bytes> after;
};
Pair MakePair(UnitKind kind, const std::vector<std::size_t>& sizes, double density, bool wild,
              std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> weight(0, 0.03F);
  std::bernoulli_distribution change(density);
  std::geometric_distribution<std::uint32_t> far(0.4);
  Pair pair;
  for (const std::size_t units : sizes) {
    Bytes before(units * UnitBytes(kind));
    Bytes after(before.size());
    WithKind(kind, [&]<UnitKind k>() {
      using Unit = typename UnitTraits<k>::Unit;
      for (std::size_t i = 0; i < units; ++i) {
        const auto bits = std::bit_cast<std::uint32_t>(weight(random));
        auto old_unit = static_cast<Unit>(wild ? random() : bits >> (32 - 8 * sizeof(Unit)));
        auto new_unit = old_unit;
        if (change(random)) {
          const auto step = static_cast<std::uint32_t>(wild ? random() : 1 + far(random));
          new_unit = static_cast<Unit>(random() % 2 == 0 ? old_unit + step : old_unit - step);
        }
        base::Store(before.data() + i * sizeof(Unit), old_unit);
        base::Store(after.data() + i * sizeof(Unit), new_unit);
      }
    });
    pair.before.push_back(std::move(before));
    pair.after.push_back(std::move(after));
  }
  return pair;
}

class CompactTest : public testing::TestWithParam<UnitKind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, CompactTest, testing::ValuesIn(kKinds));

RC_GTEST_PROP(CompactProperty, WhatIsReadIsWhatWasWritten, ()) {
  const auto kind = *rc::gen::elementOf(std::vector<UnitKind>(kKinds.begin(), kKinds.end()));
  const auto sizes = *rc::gen::container<std::vector<std::size_t>>(
      *rc::gen::inRange<std::size_t>(1, 6),
      rc::gen::oneOf(rc::gen::inRange<std::size_t>(1, 200),
                     rc::gen::inRange<std::size_t>(4090, 4100),
                     rc::gen::inRange<std::size_t>(1, 20000)));
  const double density = *rc::gen::element(0.0, 0.0005, 0.01, 0.2, 0.7, 1.0);
  const bool wild = *rc::gen::arbitrary<bool>();
  const auto seed = *rc::gen::arbitrary<std::uint32_t>();
  const Pair pair = MakePair(kind, sizes, density, wild, seed);
  StepSample sample(kind);
  for (std::size_t i = 0; i < sizes.size(); ++i) sample.Add(pair.before[i], pair.after[i]);
  const bool classes = IsFloat(kind) && *rc::gen::arbitrary<bool>();
  const ClassRule rule = {kind, classes ? 16U : 1U, classes ? sample.Choose().base : 0};
  const auto dense =
      *rc::gen::oneOf(rc::gen::just(0U), rc::gen::inRange<unsigned>(0, 1U << sizes.size()));
  const Encoded encoded = Encode(pair.before, pair.after, rule, dense);
  std::vector<Bytes> image = pair.before;
  RC_ASSERT(Decode(encoded.frame, encoded.model, kind, image).has_value());
  RC_ASSERT(image == pair.after);
}

// Every base is right, if not good.
TEST_P(CompactTest, AnyBaseOfTheClassesWillDo) {
  if (!IsFloat(GetParam())) return;
  const Pair pair = MakePair(GetParam(), {5000, 77}, 0.1, false, 7);

  for (unsigned base = 0; base < 256; ++base) {
    if (!StepDecodeTables::Check({.classes = 16, .base = base}, GetParam())) {
      EXPECT_GT(base, 0U);
      continue;
    }
    const Encoded encoded = Encode(pair.before, pair.after, {GetParam(), 16, base});
    std::vector<Bytes> image = pair.before;
    ASSERT_OK(Decode(encoded.frame, encoded.model, GetParam(), image));
    ASSERT_TRUE(image == pair.after) << base;
  }
}

// Every set of instructions, the one without vectors included, writes the same bytes and reads them.
TEST_P(CompactTest, EveryMachineWritesTheSame) {
  const Pair pair = MakePair(GetParam(), {9000, 3, 4096}, 0.05, false, 3);
  const bool classes = IsFloat(GetParam());
  const ClassRule rule = {GetParam(), classes ? 16U : 1U,
                          GetParam() == UnitKind::kFloat16M7 || GetParam() == UnitKind::kFloat32M23
                              ? 110U
                              : 1U * classes};
  const Encoded expected = Encode(pair.before, pair.after, rule);
  std::size_t targets = 0;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    const Encoded encoded = Encode(pair.before, pair.after, rule);
    EXPECT_TRUE(encoded.frame == expected.frame) << hwy::TargetName(target);
    std::vector<Bytes> image = pair.before;
    EXPECT_OK(Decode(encoded.frame, encoded.model, GetParam(), image));
    EXPECT_TRUE(image == pair.after) << hwy::TargetName(target);
    ++targets;
  }
  hwy::SetSupportedTargetsForTest(0);
  EXPECT_GE(targets, 1U);
}

}  // namespace
}  // namespace syncline::delta
