// Plans of quantised models: where the values of a unit are, whatever its scheme, is where the plan
// of the same model in bf16 has them.
#include "model/linear_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/result_matchers.h"
#include "layout/pieces.h"
#include "model/small_quantised.h"
#include "quant/fp8_block.h"
#include "quant/wna16_marlin.h"

namespace syncline::model {
namespace {

using base::Code;
using layout::Shard;
using quant::Layout;
using tensor::Dtype;

using Bytes = std::vector<std::byte>;

// Rank 0 of each division.
std::vector<Shard> Divisions(const ModelConfig& config) {
  std::vector<Shard> divisions = {{0, 1}, {0, 2}, {0, 4}};
  if (config.experts) divisions.insert(divisions.end(), {{0, 2, 2}, {0, 4, 2}, {0, 4, 4}});
  return divisions;
}

template <typename Body>
void ForEachDivision(const Body& body) {
  for (const auto& scheme : AllSchemes()) {
    for (const ModelConfig& config : QuantisableConfigs()) {
      for (const Shard& division : Divisions(config)) {
        SCOPED_TRACE(testing::Message()
                     << scheme->name() << ", " << config.architecture() << ", " << division.size
                     << " ranks, " << division.expert_groups << " groups of experts");
        body(Quantised(config, scheme), division);
      }
    }
  }
}

DecoderPlan PlanOf(const ModelConfig& config, Shard shard, std::uint32_t rank) {
  shard.rank = rank;
  auto plan = PlanBf16(config, shard);
  if (!plan) ADD_FAILURE() << plan.error().message;
  return *std::move(plan);
}

Parameters Load(const DecoderPlan& decoder, const std::vector<Bytes>& tensors) {
  auto parameters = Parameters::Create(decoder.plan, decoder.units);
  if (!parameters) ADD_FAILURE() << parameters.error().message;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    decoder.plan.Scatter(i, tensors[i], parameters->live());
  }
  return *std::move(parameters);
}

// The values in bf16 of a checkpoint tensor of the plan without quantisation: those of the
// quantised tensors of the same module.
Bytes ValuesOfTensor(const std::string& name, const DecoderPlan& quantised,
                     const std::vector<Bytes>& tensors, const quant::Scheme& scheme,
                     const layout::TensorSpec& plain) {
  if (const std::size_t own = quantised.plan.FindTensor(name);
      own != layout::Plan::npos && quantised.plan.tensors()[own].dtype == Dtype::kBF16) {
    return tensors[own];
  }
  const std::string module = name.substr(0, name.size() - std::string(".weight").size());
  const quant::Matrix matrix{.part_rows = {plain.shape[0]}, .columns = plain.shape[1]};
  std::vector<base::ByteSpan> slots;
  for (const quant::Slot& slot : scheme.Slots(matrix)) {
    const std::size_t tensor = quantised.plan.FindTensor(module + "." + slot.name);
    EXPECT_NE(tensor, layout::Plan::npos) << module << "." << slot.name;
    const layout::TensorSpec& spec = quantised.plan.tensors()[tensor];
    EXPECT_EQ(spec.shape, slot.load.shape) << spec.name;
    EXPECT_EQ(spec.dtype, slot.load.dtype) << spec.name;
    slots.emplace_back(tensors[tensor]);
  }
  std::vector<std::uint16_t> values(matrix.rows() * matrix.columns);
  scheme.Dequantise(matrix, slots, Layout::kLoad, 0, 0, matrix.rows(), values.data());
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

TEST(LinearPlan, ValuesOfUnitsLieWherePlainWeightsDo) {
  ForEachDivision([](const ModelConfig& config, const Shard& division) {
    ModelConfig plain_config = config;
    plain_config.quantisation = {};
    const std::vector<Bytes> tensors = RandomTensors(PlanOf(config, division, 0).plan, 7);
    for (std::uint32_t rank = 0; rank < division.size; ++rank) {
      const DecoderPlan quantised = PlanOf(config, division, rank);
      const DecoderPlan plain = PlanOf(plain_config, division, rank);
      std::vector<Bytes> values;
      for (const layout::TensorSpec& spec : plain.plan.tensors()) {
        values.push_back(
            ValuesOfTensor(spec.name, quantised, tensors, *config.quantisation.scheme, spec));
      }
      const Parameters loaded = Load(quantised, tensors);
      const Parameters expected = Load(plain, values);
      ASSERT_FALSE(quantised.units.units().empty());
      for (std::size_t i = 0; i < quantised.units.units().size(); ++i) {
        const quant::Unit& unit = quantised.units.units()[i];
        const auto slots = quantised.units.SlotsOf(i, loaded.live());
        const std::size_t parameter = plain.plan.FindParameter(PlainName(unit));
        ASSERT_NE(parameter, layout::Plan::npos) << unit.module;
        const base::ByteSpan bytes = expected.live()[parameter];
        ASSERT_EQ(ValuesOf(unit, Views(slots), Layout::kLoad), Bytes(bytes.begin(), bytes.end()))
            << unit.module;
      }
    }
  });
}

// What the owners of all ranks hold is the checkpoint, each element once.
TEST(LinearPlan, LoadingThenExportingIsTheIdentity) {
  ForEachDivision([](const ModelConfig& config, const Shard& division) {
    const DecoderPlan first = PlanOf(config, division, 0);
    const std::vector<Bytes> tensors = RandomTensors(first.plan, 11);
    std::vector<Bytes> exported;
    for (const Bytes& bytes : tensors) exported.emplace_back(bytes.size(), std::byte{0x55});
    std::vector<std::uint64_t> owned(tensors.size());
    base::ThreadPool pool(1);
    for (std::uint32_t rank = 0; rank < division.size; ++rank) {
      const DecoderPlan decoder = PlanOf(config, division, rank);
      Parameters loaded = Load(decoder, tensors);
      if (config.quantisation.scheme->Exact()) {  // by way of the runtime layout
        decoder.units.ProcessAll(loaded.live(), pool);
        decoder.units.RestoreAll(loaded.live(), pool);
      }
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        ASSERT_EQ(decoder.plan.tensors()[i].name, first.plan.tensors()[i].name);
        owned[i] += decoder.plan.OwnedBytes(i);
        for (const layout::OwnedPart& part :
             layout::TakeOwned(decoder.plan, i, Views(loaded.live()))) {
          layout::PutBox(decoder.plan.tensors()[i], part.box, part.bytes, exported[i]);
        }
      }
    }
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      ASSERT_EQ(owned[i], tensors[i].size()) << first.plan.tensors()[i].name;
      ASSERT_TRUE(exported[i] == tensors[i]) << first.plan.tensors()[i].name;
    }
  });
}

TEST(LinearPlan, Fp8NamesAreThoseOfTheCheckpoint) {
  const ModelConfig config = Quantised(QuantisableConfigs()[0], quant::Fp8Block());
  const DecoderPlan decoder = PlanOf(config, {0, 1}, 0);
  std::map<std::string, layout::TensorSpec> parameters;
  for (const auto& spec : decoder.plan.parameters()) parameters[spec.name] = spec;
  using testing::ElementsAre;
  const std::string attention = "model.layers.1.self_attn.";
  EXPECT_EQ(parameters.at(attention + "qkv_proj.weight").dtype, Dtype::kF8E4M3);
  EXPECT_THAT(parameters.at(attention + "qkv_proj.weight").shape, ElementsAre(1024, 192));
  EXPECT_EQ(parameters.at(attention + "qkv_proj.weight_scale_inv").dtype, Dtype::kF32);
  EXPECT_THAT(parameters.at(attention + "qkv_proj.weight_scale_inv").shape, ElementsAre(8, 2));
  EXPECT_EQ(parameters.at(attention + "qkv_proj.bias").dtype, Dtype::kBF16);
  EXPECT_EQ(parameters.at("model.embed_tokens.weight").dtype, Dtype::kBF16);
  EXPECT_EQ(parameters.at("lm_head.weight").dtype, Dtype::kBF16);
  EXPECT_NE(decoder.plan.FindTensor(attention + "k_proj.weight_scale_inv"), layout::Plan::npos);
  EXPECT_EQ(decoder.plan.FindTensor(attention + "k_proj.bias_scale_inv"), layout::Plan::npos);
}

// Parts of other than a multiple of 128 rows begin a block of their own.
TEST(LinearPlan, EachPartHasItsScaleRows) {
  ModelConfig config = QuantisableConfigs()[0];
  config.heads = 9;
  config.kv_heads = 3;
  config.head_size = 64;
  const DecoderPlan decoder = PlanOf(Quantised(config, quant::Fp8Block()), {0, 1}, 0);
  const std::size_t scale =
      decoder.plan.FindParameter("model.layers.0.self_attn.qkv_proj.weight_scale_inv");
  EXPECT_THAT(decoder.plan.parameters()[scale].shape, testing::ElementsAre(5 + 2 + 2, 2));
}

TEST(LinearPlan, ExpertsHaveOneUnitForEachMatrix) {
  ModelConfig config = Quantised(QuantisableConfigs()[1], quant::Wna16Marlin(32));
  config.quantisation.method = "compressed-tensors";
  const DecoderPlan decoder = PlanOf(config, {0, 4, 2}, 3);
  const std::string prefix = "model.layers.0.mlp.experts.";
  const auto shape = [&](const char* name) {
    return decoder.plan.parameters()[decoder.plan.FindParameter(prefix + name)].shape;
  };
  using testing::ElementsAre;
  EXPECT_THAT(shape("w13_weight_packed"), ElementsAre(2, 512, 24));
  EXPECT_THAT(shape("w13_weight_scale"), ElementsAre(2, 512, 6));
  EXPECT_THAT(shape("w2_weight_packed"), ElementsAre(2, 192, 32));
  EXPECT_THAT(shape("w2_weight_scale"), ElementsAre(2, 192, 8));
  EXPECT_NE(decoder.plan.FindTensor(prefix + "3.up_proj.weight_scale"), layout::Plan::npos);
  EXPECT_TRUE(decoder.plan.IsSkipped(prefix + "3.up_proj.weight_shape"));
}

TEST(LinearPlan, WhatIsIgnoredStaysAsItIs) {
  ModelConfig config = Quantised(QuantisableConfigs()[0], quant::Fp8Block());
  config.quantisation.ignored = {"model.layers.0.mlp", "model.layers.1.self_attn.o_proj"};
  const DecoderPlan decoder = PlanOf(config, {0, 1}, 0);
  const auto dtype = [&](const std::string& name) {
    return decoder.plan.parameters()[decoder.plan.FindParameter(name)].dtype;
  };
  EXPECT_EQ(dtype("model.layers.0.mlp.gate_up_proj.weight"), Dtype::kBF16);
  EXPECT_EQ(dtype("model.layers.1.self_attn.o_proj.weight"), Dtype::kBF16);
  EXPECT_EQ(dtype("model.layers.1.mlp.gate_up_proj.weight"), Dtype::kF8E4M3);
}

TEST(LinearPlan, PartsOfOneMatrixMustAgree) {
  ModelConfig config = Quantised(QuantisableConfigs()[0], quant::Fp8Block());
  config.quantisation.ignored = {"model.layers.0.self_attn.k_proj"};
  EXPECT_ERROR(PlanBf16(config, {}), Code::kIncompatible,
               "model.layers.0.self_attn.q_proj and model.layers.0.self_attn.k_proj are parts of "
               "one matrix");
  config = Quantised(QuantisableConfigs()[1], quant::Fp8Block());
  config.quantisation.ignored = {"model.layers.1.mlp.experts.3.down_proj"};
  EXPECT_ERROR(PlanBf16(config, {}), Code::kIncompatible, "experts.3.down_proj");
}

TEST(LinearPlan, BlocksAreNotDividedBetweenRanks) {
  const auto refused = [](const ModelConfig& config, std::shared_ptr<const quant::Scheme> scheme,
                          const char* message) {
    EXPECT_OK(PlanBf16(Quantised(config, scheme), {0, 1}));
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      EXPECT_ERROR(PlanBf16(Quantised(config, scheme), {rank, 2}), Code::kInvalidArgument, message);
    }
  };
  ModelConfig config = QuantisableConfigs()[0];
  config.kv_heads = 4;
  config.head_size = 32;
  refused(config, quant::Fp8Block(),
          "the rows of model.layers.0.self_attn.q_proj.weight_scale_inv cannot be divided evenly "
          "among 2 ranks: each would have 64 of the matrix, expected a multiple of 128");
  config = QuantisableConfigs()[0];
  config.intermediate = 3 * 128;
  refused(config, quant::Fp8BlockUe8m0(), "mlp.gate_proj.weight_scale_inv cannot be divided");
  config.intermediate = 3 * 64;
  refused(config, quant::Wna16Marlin(64),
          "the columns of model.layers.0.mlp.down_proj.weight_scale cannot be divided evenly among "
          "2 ranks: each would have 96 of the matrix, expected a multiple of 64");
  // Of 96 rows on each rank Marlin cannot make a matrix.
  config.kv_heads = 4;
  config.head_size = 16;
  refused(config, quant::Wna16Marlin(8), "cannot be divided among 2 ranks: ");
  // Experts, whose width is divided.
  config = QuantisableConfigs()[1];
  config.experts->width = 128;
  refused(config, quant::Fp8Block(), "experts.w13_weight_scale_inv cannot be divided");
  EXPECT_OK(PlanBf16(Quantised(config, quant::Fp8Block()), {0, 2, 2}));
}

}  // namespace
}  // namespace syncline::model
