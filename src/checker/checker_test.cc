#include "checker/checker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "checker/entries.h"
#include "checker/test_runner.h"
#include "quant/fp8_block.h"
#include "quant/wna16_marlin.h"
#include "tensor/small_floats.h"

namespace syncline::checker {
namespace {

using base::ByteSpan;
using base::Code;
using base::MutableByteSpan;
using layout::Box;
using layout::TensorSpec;
using tensor::Dtype;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

using Checkpoint = std::map<std::string, Bytes>;

constexpr const char* kDerived = "layers.0.attn.w_kc";

// A small model: fused matrices, a padded embedding, an fp8 unit, what is computed from weights,
// and what no update carries.
class CheckerTest : public testing::Test {
 protected:
  void SetUp() override {
    layout::PlanBuilder& builder = runner_.builder;
    const std::size_t embedding =
        builder.AddParameter({.name = "embed.weight", .dtype = Dtype::kBF16, .shape = {10, 6}});
    builder.AddPiece({.tensor = builder.AddTensor(
                          {.name = "embed.weight", .dtype = Dtype::kBF16, .shape = {7, 6}}),
                      .parameter = embedding,
                      .source = {{0, 0}, {7, 6}},
                      .destination = {{0, 0}, {7, 6}}});
    builder.AddFill({.parameter = embedding, .box = {{7, 0}, {10, 6}}});
    builder.Alias("lm_head.weight", "embed.weight");
    runner_.CountParameter();
    runner_.AddStacked({{.name = "layers.0.q_proj.weight", .dtype = Dtype::kBF16, .shape = {8, 6}},
                        {.name = "layers.0.k_proj.weight", .dtype = Dtype::kBF16, .shape = {4, 6}},
                        {.name = "layers.0.v_proj.weight", .dtype = Dtype::kBF16, .shape = {4, 6}}},
                       "layers.0.qkv_proj.weight");
    runner_.AddWhole("layers.0.o_proj.weight", Dtype::kBF16, {8, 6});
    runner_.AddWhole("layers.1.o_proj.weight", Dtype::kBF16, {8, 6});
    runner_.AddWhole("layers.0.norm.weight", Dtype::kF32, {6});
    runner_.AddUnit("layers.0.down_proj", quant::Fp8BlockUe8m0(),
                    {.part_rows = {130}, .columns = 260});
    runner_.AddWhole("layers.0.attn.k_scale", Dtype::kF32, {1});
    runner_.AddWhole("layers.0.base_layer.weight", Dtype::kBF16, {4, 4});
    runner_.AddWhole("mask", Dtype::kBool, {9});
    runner_.AddWhole("table", Dtype::kI64, {5});
    runner_.AddDerived({.name = kDerived, .dtype = Dtype::kBF16, .shape = {4, 6}});
    runner_.AddDerived({.name = "rotary_emb.inv_freq", .dtype = Dtype::kF32, .shape = {16}});
    runner_.AddDerived({.name = "rotary_emb.cos_sin_cache", .dtype = Dtype::kF32, .shape = {64}});
    runner_.Build();
    Update(MakeCheckpoint(1));
    // What nobody sends is made once.
    for (const char* name : {"rotary_emb.inv_freq", "rotary_emb.cos_sin_cache"}) {
      std::ranges::copy(RandomFloats(runner_[name].size() / 4, 9), runner_[name].begin());
    }
  }

  // Finite in every type: a byte is below 60.
  Checkpoint MakeCheckpoint(std::uint64_t seed) const {
    Checkpoint checkpoint;
    for (const TensorSpec& spec : runner_.plan().tensors()) {
      Bytes& bytes = checkpoint[spec.name] = RandomBytes(spec.bytes(), ++seed * 1000);
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(std::to_integer<int>(byte) % 60);
      if (spec.name.ends_with("scale_inv")) bytes = RandomPowers(bytes.size() / 4, seed);
    }
    return checkpoint;
  }

  static Bytes RandomFloats(std::size_t count, std::uint64_t seed) {
    Bytes bytes = RandomBytes(4 * count, seed);
    for (std::size_t i = 0; i < count; ++i) {
      const auto drawn = std::to_integer<unsigned>(bytes[4 * i]);
      base::Store(&bytes[4 * i], static_cast<float>(drawn) / 16);
    }
    return bytes;
  }

  static Bytes RandomPowers(std::size_t count, std::uint64_t seed) {
    Bytes bytes = RandomBytes(4 * count, seed);
    for (std::size_t i = 0; i < count; ++i) {
      const int power = std::to_integer<int>(bytes[4 * i]) % 8;
      base::Store(&bytes[4 * i], std::ldexp(1.0F, -power));
    }
    return bytes;
  }

  // What a session does: into the load layout, tensors, what is computed from them, and back.
  void Update(const Checkpoint& checkpoint, bool derive = true) {
    runner_.units().RestoreAll(runner_.slots(), runner_.pool());
    for (const auto& [name, bytes] : checkpoint) {
      const std::size_t alias = runner_.plan().FindAlias(name);
      const std::size_t tensor =
          alias != layout::Plan::npos ? alias : runner_.plan().FindTensor(name);
      ASSERT_NE(tensor, layout::Plan::npos) << name;
      runner_.plan().Scatter(tensor, bytes, LoadSpans());
    }
    runner_.units().ProcessAll(runner_.slots(), runner_.pool());
    if (!derive) return;
    const Bytes& qkv = runner_["layers.0.qkv_proj.weight"];
    Bytes& derived = runner_[kDerived];
    std::ranges::reverse_copy(
        qkv.begin(), qkv.begin() + static_cast<std::ptrdiff_t>(derived.size()), derived.begin());
    for (std::byte& byte : derived) byte &= std::byte{0x3f};
  }

  std::vector<MutableByteSpan> LoadSpans() const {
    std::vector<MutableByteSpan> spans = runner_.slots();
    for (std::size_t i = 0; i < spans.size(); ++i) {
      spans[i] = spans[i].first(runner_.plan().parameters()[i].bytes());
    }
    return spans;
  }

  // Snapshot, reset, update with `checkpoint`, compare.
  CompareReport Check(const Checkpoint& checkpoint, bool derive = true,
                      const CheckOptions& options = {}) {
    EXPECT_OK(runner_.checker().Snapshot());
    EXPECT_OK(runner_.checker().Reset(options, 7));
    Update(checkpoint, derive);
    auto report = runner_.Compare(options);
    EXPECT_OK(report);
    return report ? *std::move(report) : CompareReport();
  }

  static std::vector<std::string> Names(const std::vector<Difference>& differences) {
    std::vector<std::string> names;
    for (const Difference& difference : differences) names.push_back(difference.name);
    return names;
  }

  // Parameters of the plan that compared names stand for.
  std::set<std::string> ParametersOf(const std::vector<std::string>& names) const {
    std::set<std::string> parameters(names.begin(), names.end());
    if (parameters.contains("layers.0.down_proj.weight")) {
      parameters.insert("layers.0.down_proj.weight_scale_inv");
    }
    return parameters;
  }

  std::set<std::string> NamesOf(const std::vector<std::size_t>& parameters) const {
    std::set<std::string> names;
    for (const std::size_t i : parameters) names.insert(runner_.plan().parameters()[i].name);
    return names;
  }

  TestRunner runner_;
};

TEST_F(CheckerTest, UnchangedWeightsAreEqual) {
  ASSERT_OK(runner_.checker().Snapshot());
  ASSERT_OK_AND_ASSIGN(const CompareReport report, runner_.Compare());
  EXPECT_THAT(report.different, IsEmpty());
  EXPECT_EQ(report.Message(), "");
  EXPECT_THAT(report.compared,
              ElementsAre("embed.weight", "layers.0.qkv_proj.weight", "layers.0.o_proj.weight",
                          "layers.1.o_proj.weight", "layers.0.norm.weight",
                          "layers.0.down_proj.weight", "layers.0.attn.k_scale",
                          "layers.0.base_layer.weight", "mask", "table", kDerived));
  EXPECT_THAT(report.skipped, ElementsAre("rotary_emb.inv_freq", "rotary_emb.cos_sin_cache"));
}

TEST_F(CheckerTest, AWholeUpdateAfterResetIsEqual) {
  const std::vector<Bytes> before = runner_.memory();
  const CompareReport report = Check(MakeCheckpoint(1));
  EXPECT_EQ(report.Message(), "");
  EXPECT_EQ(runner_.memory(), before);
}

TEST_F(CheckerTest, ASkippedTensorIsReported) {
  for (const auto& [name, bytes] : MakeCheckpoint(1)) {
    Checkpoint checkpoint = MakeCheckpoint(1);
    checkpoint.erase(name);
    std::string expected = name;
    for (const char* part : {"q_proj", "k_proj", "v_proj"}) {
      if (name.contains(part)) expected = "layers.0.qkv_proj.weight";
    }
    if (name.ends_with("_scale_inv")) expected = "layers.0.down_proj.weight";
    // What is computed from the fused matrix comes out wrong too, where its first rows are missing.
    const std::vector<std::string> names = Names(Check(checkpoint).different);
    if (name.contains("q_proj")) {
      EXPECT_THAT(names, ElementsAre(expected, kDerived)) << name;
    } else {
      EXPECT_THAT(names, ElementsAre(expected)) << name;
    }
    Update(MakeCheckpoint(1));
  }
}

TEST_F(CheckerTest, TwoTensorsThatWereSwappedAreReported) {
  Checkpoint checkpoint = MakeCheckpoint(1);
  std::swap(checkpoint["layers.0.o_proj.weight"], checkpoint["layers.1.o_proj.weight"]);
  EXPECT_THAT(Names(Check(checkpoint).different),
              ElementsAre("layers.0.o_proj.weight", "layers.1.o_proj.weight"));
  checkpoint = MakeCheckpoint(1);
  std::swap(checkpoint["layers.0.k_proj.weight"], checkpoint["layers.0.v_proj.weight"]);
  Update(MakeCheckpoint(1));
  EXPECT_THAT(Names(Check(checkpoint).different), ElementsAre("layers.0.qkv_proj.weight"));
}

// Each bit of a few places of each tensor. In fp8 the sign of zero is no difference.
TEST_F(CheckerTest, ABitThatFlippedIsReported) {
  ASSERT_OK(runner_.checker().Snapshot());
  const std::vector<Bytes> before = runner_.memory();
  for (std::size_t i = 0; i < before.size(); ++i) {
    const std::string& name = runner_.plan().parameters()[i].name;
    if (name.contains("rotary") || name.ends_with("scale_inv")) continue;
    for (const std::size_t place : {std::size_t{0}, before[i].size() / 3, before[i].size() - 1}) {
      if (name.ends_with("embed.weight") && place > 84) continue;  // padding
      for (int bit = 0; bit < 8; ++bit) {
        runner_.memory()[i][place] ^= std::byte{1} << bit;
        ASSERT_OK_AND_ASSIGN(const CompareReport report, runner_.Compare());
        const Bytes& bytes = before[i];
        const bool zero = bytes[place / 2 * 2] == std::byte{0} &&
                          bytes[std::min(place / 2 * 2 + 1, bytes.size() - 1)] == std::byte{0};
        if (!(zero && bit == 7)) {
          EXPECT_THAT(Names(report.different), ElementsAre(name)) << place << " " << bit;
        }
        std::ranges::copy(before[i], runner_.memory()[i].begin());
      }
    }
  }
}

TEST_F(CheckerTest, AStaleDerivedTensorIsReported) {
  EXPECT_THAT(Names(Check(MakeCheckpoint(1), false).different), ElementsAre(kDerived));
  // Without the reset too: other weights, and what was computed from the old ones.
  Update(MakeCheckpoint(2));
  ASSERT_OK(runner_.checker().Snapshot());
  const auto hash = runner_.Hashes()[kDerived];
  Update(MakeCheckpoint(3), false);
  EXPECT_EQ(runner_.Hashes()[kDerived], hash);
  Update(MakeCheckpoint(3));
  EXPECT_NE(runner_.Hashes()[kDerived], hash);
}

// Two names of the checkpoint for one parameter, of which the second to come has other bytes.
TEST_F(CheckerTest, AnAliasThatOverwritesIsReported) {
  Checkpoint checkpoint = MakeCheckpoint(1);
  checkpoint["lm_head.weight"] = checkpoint["embed.weight"];
  EXPECT_THAT(Check(checkpoint).different, IsEmpty());
  checkpoint["lm_head.weight"][5] ^= std::byte{1};
  EXPECT_THAT(Names(Check(checkpoint).different), ElementsAre("embed.weight"));
}

// A transport that delivers nothing, zeros, NaN, the last version or another tensor (BR-43).
TEST_F(CheckerTest, WhatATransportDoesToATensorIsReported) {
  const Checkpoint right = MakeCheckpoint(1);
  const std::string name = "layers.1.o_proj.weight";
  EXPECT_THAT(Check({}).different.size(), 11U);
  for (const Bytes& wrong : {Bytes(96), Bytes(96, std::byte{0xff}), MakeCheckpoint(2).at(name),
                             right.at("layers.0.o_proj.weight")}) {
    Update(right);
    Checkpoint checkpoint = right;
    checkpoint[name] = wrong;
    EXPECT_THAT(Names(Check(checkpoint).different), ElementsAre(name));
  }
}

TEST_F(CheckerTest, ThereAndBackHasTheSameHashes) {
  const auto before = runner_.Hashes();
  Update(MakeCheckpoint(2));
  const auto between = runner_.Hashes();
  for (const auto& [name, hash] : before) EXPECT_NE(between.at(name), hash) << name;
  Update(MakeCheckpoint(1));
  EXPECT_EQ(runner_.Hashes(), before);
}

// BR-44. What is reset is what is compared, and no more: a buffer that is never saved, a scale that
// is marked to be skipped and a frozen base, none of which an update carries, keep their bytes.
TEST_F(CheckerTest, WhatIsResetIsWhatIsCompared) {
  const std::vector<Bytes> before = runner_.memory();
  for (const CheckOptions& options :
       {CheckOptions{}, CheckOptions{.skip = {"k_scale", "base_layer"}},
        CheckOptions{.skip = {"layers"}}, CheckOptions{.skip = {"down_proj.weight"}},
        CheckOptions{.skip = {"weight_scale_inv", "nothing"}}}) {
    ASSERT_OK(runner_.checker().Snapshot());
    ASSERT_OK_AND_ASSIGN(const std::vector<std::size_t> reset, runner_.checker().Reset(options, 3));
    ASSERT_OK_AND_ASSIGN(const CompareReport report, runner_.Compare(options));
    EXPECT_EQ(NamesOf(reset), ParametersOf(report.compared));
    // The one element of k_scale and so on: each of them is random now.
    EXPECT_EQ(Names(report.different), report.compared);
    EXPECT_THAT(report.skipped_different, IsEmpty());
    std::set<std::string> changed;
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (runner_.memory()[i] != before[i]) changed.insert(runner_.plan().parameters()[i].name);
    }
    EXPECT_EQ(changed, NamesOf(reset));
    ASSERT_OK(runner_.checker().PutBack(reset));
    EXPECT_EQ(runner_.memory(), before);
  }
  const CheckOptions options = {.skip = {"k_scale", "base_layer"}};
  Checkpoint checkpoint = MakeCheckpoint(1);
  checkpoint.erase("layers.0.attn.k_scale");
  checkpoint.erase("layers.0.base_layer.weight");
  const CompareReport report = Check(checkpoint, true, options);
  EXPECT_EQ(report.Message(), "");
  EXPECT_THAT(report.skipped, ElementsAre("layers.0.attn.k_scale", "layers.0.base_layer.weight",
                                          "rotary_emb.inv_freq", "rotary_emb.cos_sin_cache"));
  EXPECT_EQ(runner_.memory(), before);
}

TEST(EntriesTest, NamesThatAreSkipped) {
  for (const char* name : {"rotary_emb.cos_sin_cache", "a.inv_freq.b", "freqs_cis",
                           "mlp.gate_weight_fp32", "layers.0.k_scale"}) {
    EXPECT_TRUE(checker::IsSkipped(name, std::vector<std::string>{"x.y", "0.k_s"})) << name;
  }
  EXPECT_FALSE(checker::IsSkipped("layers.0.k_scale", std::vector<std::string>{"x.y", "1.k_s"}));
  EXPECT_FALSE(checker::IsSkipped("cos_sin.cache.weight", {}));
}

TEST_F(CheckerTest, SkippedDifferencesAreOnlyToBeLogged) {
  ASSERT_OK(runner_.checker().Snapshot());
  runner_["rotary_emb.inv_freq"][3] ^= std::byte{1};
  runner_["mask"][3] ^= std::byte{1};
  ASSERT_OK_AND_ASSIGN(const CompareReport report, runner_.Compare({.skip = {"mas"}}));
  EXPECT_EQ(report.Message(), "");
  EXPECT_THAT(Names(report.skipped_different), ElementsAre("mask", "rotary_emb.inv_freq"));
}

TEST_F(CheckerTest, TheMessageNamesWhatDiffers) {
  ASSERT_OK(runner_.checker().Snapshot());
  auto* values = reinterpret_cast<std::int64_t*>(runner_["table"].data());
  values[1] += 9;
  values[4] -= 1;
  std::ranges::fill(runner_["mask"], std::byte{200});
  ASSERT_OK_AND_ASSIGN(const CompareReport report, runner_.Compare());
  EXPECT_THAT(report.Message(), testing::StartsWith("check tensor equality failed:\nname=mask "));
  EXPECT_THAT(report.Message(),
              HasSubstr("\nname=table max_abs_err=9 mean_abs_err=2 num_exceed=2 expect=I64 [5] "
                        "actual=I64 [5]"));
}

TEST_F(CheckerTest, NothingToCompareIsAnError) {
  ASSERT_OK(runner_.checker().Snapshot());
  EXPECT_ERROR(runner_.Compare({.skip = {""}}), Code::kInvalidArgument, "nothing to compare");
  TestRunner empty;
  empty.Build();
  ASSERT_OK(empty.checker().Snapshot());
  EXPECT_ERROR(empty.Compare(), Code::kInvalidArgument, "nothing to compare");
}

TEST_F(CheckerTest, WithoutASnapshotThereIsNothingToCompareWith) {
  EXPECT_FALSE(runner_.checker().has_snapshot());
  EXPECT_ERROR(runner_.Compare(), Code::kOutOfOrder, "compare needs a snapshot");
  EXPECT_ERROR(runner_.checker().PutBack({}), Code::kOutOfOrder, "needs a snapshot");
  ASSERT_OK(runner_.checker().Snapshot());
  EXPECT_TRUE(runner_.checker().has_snapshot());
}

TEST_F(CheckerTest, ASnapshotReplacesTheLast) {
  ASSERT_OK(runner_.checker().Snapshot());
  Update(MakeCheckpoint(2));
  ASSERT_OK(runner_.checker().Snapshot());
  const std::vector<Bytes> second = runner_.memory();
  ASSERT_OK_AND_ASSIGN(const CompareReport report, runner_.Compare());
  EXPECT_EQ(report.Message(), "");
  Update(MakeCheckpoint(3));
  std::vector<std::size_t> all;
  for (std::size_t i = 0; i < second.size(); ++i) all.push_back(i);
  ASSERT_OK(runner_.checker().PutBack(all));
  EXPECT_EQ(runner_.memory(), second);
}

// The slots are never touched: there is no such memory.
TEST_F(CheckerTest, ASnapshotThatDoesNotFitIsAnError) {
  constexpr std::uint64_t kSize = std::uint64_t{1} << 50;
  layout::PlanBuilder builder;
  builder.AddWhole("w", "w", Dtype::kU8, {kSize});
  ASSERT_OK_AND_ASSIGN(const layout::Plan plan, std::move(builder).Build());
  const quant::Units units;
  std::byte byte{};
  const std::vector<MutableByteSpan> slots = {{&byte, kSize}};
  const auto checker = MakeChecker(plan, units, slots);
  EXPECT_ERROR(checker->Snapshot(), Code::kLimitExceeded, "takes 1.13 PB");
  EXPECT_FALSE(checker->has_snapshot());
}

TEST_F(CheckerTest, ResetDependsOnTheSeedAlone) {
  ASSERT_OK(runner_.checker().Reset({}, 5));
  const std::vector<Bytes> first = runner_.memory();
  Update(MakeCheckpoint(1));
  ASSERT_OK(runner_.checker().Reset({}, 5));
  EXPECT_EQ(runner_.memory(), first);
  ASSERT_OK(runner_.checker().Reset({}, 6));
  EXPECT_NE(runner_.memory(), first);
  // All of a slot that is larger in the runtime layout: of random bytes few are zero.
  const Bytes& scales = runner_["layers.0.down_proj.weight_scale_inv"];
  EXPECT_EQ(scales.size(), 132U * 4);
  EXPECT_LT(std::ranges::count(scales, std::byte{0}), 20);
  // Two tensors of one shape do not get the same numbers.
  EXPECT_NE(runner_["layers.0.o_proj.weight"], runner_["layers.1.o_proj.weight"]);
  for (const std::byte value : runner_["mask"]) EXPECT_LE(value, std::byte{1});
  for (std::size_t at = 0; at < 96; at += 2) {
    const float value =
        tensor::FromBf16(base::Load<std::uint16_t>(&runner_["layers.0.o_proj.weight"][at]));
    EXPECT_GE(value, 0.0F);
    EXPECT_LE(value, 1.0F);
  }
}

// Padding is of no tensor, so no update could bring its zeros back.
TEST_F(CheckerTest, ResetLeavesPaddingZero) {
  ASSERT_OK(runner_.checker().Reset({}, 5));
  const Bytes& embedding = runner_["embed.weight"];
  for (std::size_t i = 84; i < 120; ++i) EXPECT_EQ(embedding[i], std::byte{0});
  EXPECT_TRUE(std::any_of(embedding.begin(), embedding.begin() + 84,
                          [](std::byte byte) { return byte != std::byte{0}; }));
  // Nor does it touch that of what is skipped.
  runner_["embed.weight"][119] = std::byte{1};
  ASSERT_OK(runner_.checker().Reset({.skip = {"embed"}}, 5));
  EXPECT_EQ(embedding[119], std::byte{1});
}

// Also where it lies only in the load layout.
TEST(CheckerPaddingTest, OfAUnitStaysZeroToo) {
  TestRunner runner;
  const quant::Matrix matrix = {.part_rows = {140}, .columns = 130};
  const auto scheme = quant::Fp8BlockUe8m0();
  const TensorSpec weight = {.name = "m.weight", .dtype = Dtype::kF8E4M3, .shape = {137, 130}};
  const std::size_t padded =
      runner.builder.AddParameter({.name = "m.weight", .dtype = weight.dtype, .shape = {140, 130}});
  runner.builder.AddPiece({.tensor = runner.builder.AddTensor(weight),
                           .parameter = padded,
                           .source = {{0, 0}, {137, 130}},
                           .destination = {{0, 0}, {137, 130}}});
  runner.builder.AddFill({.parameter = padded, .box = {{137, 0}, {140, 130}}});
  runner.CountParameter();
  runner.AddWhole("m.weight_scale_inv", Dtype::kF32, {2, 2});
  runner.AddPlannedUnit({.module = "m", .scheme = scheme, .matrix = matrix, .parameters = {0, 1}});
  runner.Build();
  ASSERT_OK_AND_ASSIGN(const auto reset, runner.checker().Reset({}, 2));
  EXPECT_THAT(reset, ElementsAre(0, 1));
  // It is in the runtime layout again.
  const std::vector<Bytes> memory = runner.memory();
  runner.units().RestoreAll(runner.slots(), runner.pool());
  EXPECT_NE(runner.memory(), memory);
  runner.units().ProcessAll(runner.slots(), runner.pool());
  EXPECT_EQ(runner.memory(), memory);
  runner.units().RestoreAll(runner.slots(), runner.pool());
  const Bytes& bytes = runner["m.weight"];
  const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
  EXPECT_TRUE(std::all_of(bytes.begin() + 137 * 130, bytes.end(), is_zero));
  EXPECT_LT(std::count_if(bytes.begin(), bytes.begin() + 137 * 130, is_zero), 137 * 130 / 10);
}

// What is quantised in another way than block-wise fp8 is so many bytes, in the runtime layout.
TEST(CheckerUnitTest, OfFourBitsIsComparedBitByBit) {
  TestRunner runner;
  runner.AddUnit("m", quant::Wna16Marlin(32), {.experts = 2, .part_rows = {64}, .columns = 64});
  runner.Build();
  std::ranges::copy(RandomBytes(runner["m.weight_packed"].size(), 1),
                    runner["m.weight_packed"].begin());
  std::ranges::fill(runner["m.weight_scale"], std::byte{0x3c});
  runner.units().ProcessAll(runner.slots(), runner.pool());
  ASSERT_OK(runner.checker().Snapshot());
  for (const char* name : {"m.weight_packed", "m.weight_scale"}) {
    EXPECT_EQ(runner.Hashes()[name], CheckHashHex(CheckHash::kDevice, runner[name]));
    runner[name][77] ^= std::byte{1};
    ASSERT_OK_AND_ASSIGN(const CompareReport report, runner.Compare({.allow_quant_error = true}));
    ASSERT_EQ(report.different.size(), 1U);
    EXPECT_EQ(report.different[0].name, name);
    EXPECT_EQ(report.different[0].exceeding, 1U);
    runner[name][77] ^= std::byte{1};
  }
  const std::vector<Bytes> before = runner.memory();
  ASSERT_OK_AND_ASSIGN(const auto reset, runner.checker().Reset({}, 1));
  EXPECT_THAT(reset, ElementsAre(0, 1));
  ASSERT_OK_AND_ASSIGN(const CompareReport report, runner.Compare({}));
  EXPECT_EQ(report.different.size(), 2U);
  ASSERT_OK(runner.checker().PutBack(reset));
  EXPECT_EQ(runner.memory(), before);
}

TEST_F(CheckerTest, ChecksumsAreHashesOfTheBytes) {
  base::ThreadPool pool(3);
  const base::CancelToken cancel;
  for (const CheckHash kind : {CheckHash::kDevice, CheckHash::kSha256}) {
    ASSERT_OK_AND_ASSIGN(const ChecksumReport report,
                         runner_.checker().Checksums({.hash = kind}, pool, cancel));
    EXPECT_EQ(report.tensors.size(), 10U);
    ASSERT_EQ(report.derived.size(), 1U);
    EXPECT_EQ(report.derived[0].name, kDerived);
    EXPECT_EQ(report.tensors[1].name, "layers.0.qkv_proj.weight");
    for (const auto& list : {report.tensors, report.derived}) {
      for (const NamedHash& hash : list) {
        if (hash.name.contains("down_proj")) continue;  // its values: fp8_values_test.cc
        EXPECT_EQ(hash.hash, CheckHashHex(kind, runner_[hash.name])) << hash.name;
        EXPECT_EQ(hash.hash.size(), 16U);
      }
    }
  }
  const auto without = runner_.Hashes({.skip = {"down_proj", "w_kc"}});
  EXPECT_EQ(without.size(), 9U);
  EXPECT_FALSE(without.contains(kDerived));
}

// Of several pieces, and whatever the number of threads.
TEST_F(CheckerTest, ALargeTensorIsDividedAmongThreads) {
  TestRunner runner;
  runner.AddWhole("w", Dtype::kU8, {10'000'003});
  runner.Build();
  std::ranges::copy(RandomBytes(10'000'003, 2), runner["w"].begin());
  EXPECT_EQ(runner.Hashes()["w"], CheckHashHex(CheckHash::kDevice, runner.slots()[0]));
  EXPECT_EQ(runner.Hashes({.hash = CheckHash::kSha256})["w"],
            CheckHashHex(CheckHash::kSha256, runner.slots()[0]));
  ASSERT_OK(runner.checker().Snapshot());
  for (const std::size_t place : {0, 3'145'727, 3'145'728, 10'000'002}) {
    runner.slots()[0][place] ^= std::byte{1};
    ASSERT_OK_AND_ASSIGN(const CompareReport report, runner.Compare());
    ASSERT_EQ(report.different.size(), 1U);
    EXPECT_EQ(report.different[0].exceeding, 1U);
    EXPECT_EQ(report.different[0].max_abs_error, 1.0);
    runner.slots()[0][place] ^= std::byte{1};
  }
}

TEST_F(CheckerTest, CanBeCancelled) {
  ASSERT_OK(runner_.checker().Snapshot());
  base::ThreadPool pool(2);
  base::CancelToken cancel;
  cancel.Cancel();
  EXPECT_ERROR(runner_.checker().Compare({}, pool, cancel), Code::kCancelled, "");
  EXPECT_ERROR(runner_.checker().Checksums({}, pool, cancel), Code::kCancelled, "");
  EXPECT_ERROR(runner_.checker().Checksums({.hash = CheckHash::kSha256}, pool, cancel),
               Code::kCancelled, "");
}

}  // namespace
}  // namespace syncline::checker
