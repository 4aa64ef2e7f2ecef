// The forward pass of quantised models against that of the same models with their values in bf16.
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "base/result_matchers.h"
#include "model/decoder.h"
#include "model/linear.h"
#include "model/small_quantised.h"

namespace syncline::model {
namespace {

constexpr std::uint32_t kBlocks = 8;

std::unique_ptr<Model> Make(const ModelConfig& config, DecoderPlan decoder, Parameters parameters) {
  auto model = MakeDecoder(config, std::move(decoder), std::move(parameters), {.threads = 2});
  EXPECT_OK(model);
  EXPECT_OK((*model)->Derive((*model)->parameters().live()));
  EXPECT_OK((*model)->ReserveKv(kBlocks));
  return *std::move(model);
}

std::unique_ptr<Model> MakeQuantised(const ModelConfig& config, std::uint32_t seed) {
  DecoderPlan decoder = PlanBf16(config, {}).value();
  Parameters parameters = Parameters::Create(decoder.plan, decoder.units).value();
  const auto tensors = RandomTensors(decoder.plan, seed);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    decoder.plan.Scatter(i, tensors[i], parameters.live());
  }
  base::ThreadPool pool(2);
  decoder.units.ProcessAll(parameters.live(), pool);
  return Make(config, std::move(decoder), std::move(parameters));
}

// The same model with the values of the units.
std::unique_ptr<Model> MakePlain(ModelConfig config, Model& quantised) {
  config.quantisation = {};
  DecoderPlan decoder = PlanBf16(config, {}).value();
  Parameters parameters = Parameters::Create(decoder.plan).value();
  const auto live = quantised.parameters().live();
  for (std::size_t i = 0; i < decoder.plan.parameters().size(); ++i) {
    const std::size_t from = quantised.plan().FindParameter(decoder.plan.parameters()[i].name);
    if (from == layout::Plan::npos || quantised.units().UnitOf(from) != quant::Units::npos)
      continue;
    std::ranges::copy(live[from], parameters.live()[i].begin());
  }
  for (std::size_t i = 0; i < quantised.units().units().size(); ++i) {
    const quant::Unit& unit = quantised.units().units()[i];
    const auto values =
        ValuesOf(unit, Views(quantised.units().SlotsOf(i, live)), quant::Layout::kRuntime);
    const base::MutableByteSpan to = parameters.live()[decoder.plan.FindParameter(PlainName(unit))];
    EXPECT_EQ(values.size(), to.size());
    std::ranges::copy(values, to.begin());
  }
  return Make(config, std::move(decoder), std::move(parameters));
}

// A prompt of 40 tokens, then one more token beside the prompt of another sequence.
std::vector<float> RunSteps(Model& model) {
  std::mt19937 random(3);
  std::vector<float> all;
  for (const bool second : {false, true}) {
    Batch batch;
    const auto add = [&](std::uint32_t length, std::uint32_t context,
                         std::vector<std::uint32_t> blocks) {
      batch.sequences.push_back(
          {static_cast<std::uint32_t>(batch.tokens.size()), length, context, std::move(blocks)});
      for (std::uint32_t i = 0; i < length; ++i) {
        batch.logits_rows.push_back(static_cast<std::uint32_t>(batch.tokens.size()));
        batch.tokens.push_back(static_cast<std::int32_t>(random() % model.config().vocabulary));
      }
    };
    if (second) {
      add(1, 41, {3, 1, 2});
      add(5, 5, {0});
    } else {
      add(40, 40, {3, 1, 2});
    }
    std::vector<float> logits(batch.logits_rows.size() * model.config().vocabulary);
    EXPECT_OK(model.Forward(batch, logits));
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

template <typename Body>
void ForEachModel(const Body& body) {
  for (const auto& scheme : AllSchemes()) {
    for (const ModelConfig& config : QuantisableConfigs()) {
      SCOPED_TRACE(testing::Message() << scheme->name() << ", " << config.architecture());
      body(Quantised(config, scheme));
    }
  }
}

// The products are those of the kernels with the same values in the same order, so the bits are
// equal; not so where ATen computes them in panels.
TEST(QuantisedDecoder, LogitsAreThoseOfTheValues) {
  ForEachModel([](const ModelConfig& config) {
    const auto quantised = MakeQuantised(config, 17);
    const auto plain = MakePlain(config, *quantised);
    const std::vector<float> found = RunSteps(*quantised);
    const std::vector<float> expected = RunSteps(*plain);
    ASSERT_EQ(found.size(), expected.size());
    float worst = 0;
    for (std::size_t i = 0; i < found.size(); ++i) {
      ASSERT_TRUE(std::isfinite(found[i]));
      worst = std::max(worst, std::abs(found[i] - expected[i]));
    }
    EXPECT_LE(worst, HasLinearKernel(at::empty({40, 8}, at::kBFloat16)) ? 0.0F : 0.1F);
    EXPECT_EQ(quantised->KvBytesPerToken(), plain->KvBytesPerToken());
  });
}

TEST(QuantisedDecoder, DerivedWeightsComeFromTheRuntimeLayoutAgainAndAgain) {
  for (const auto& scheme : AllSchemes()) {
    SCOPED_TRACE(scheme->name());
    const ModelConfig config = Quantised(QuantisableConfigs()[2], scheme);
    const auto model = MakeQuantised(config, 29);
    const layout::Plan& plan = model->plan();
    const auto live = model->parameters().live();
    const auto derived = [&] {
      std::vector<std::byte> all;
      for (std::size_t i = 0; i < live.size(); ++i) {
        if (plan.IsDerived(i)) all.insert(all.end(), live[i].begin(), live[i].end());
      }
      return all;
    };
    const auto first = derived();
    ASSERT_FALSE(first.empty());
    const std::string module = "model.layers.1.self_attn.kv_b_proj";
    std::size_t kv_b = 0;
    while (model->units().units()[kv_b].module != module) ++kv_b;
    const quant::Unit& unit = model->units().units()[kv_b];
    const auto values =
        ValuesOf(unit, Views(model->units().SlotsOf(kv_b, live)), quant::Layout::kRuntime);
    // Head 2: 128 key rows, then 128 value rows, of 128.
    const auto at = [&](const std::string& name, std::size_t i) {
      return base::Load<std::uint16_t>(live[plan.FindParameter(module + name)].data() + 2 * i);
    };
    const auto value = [&](std::size_t row, std::size_t column) {
      return base::Load<std::uint16_t>(values.data() + 2 * (row * 128 + column));
    };
    for (std::size_t i = 0; i < 128; i += 7) {
      for (std::size_t j = 0; j < 128; j += 5) {
        ASSERT_EQ(at(".absorbed_k", (2 * 128 + i) * 128 + j), value(2 * 256 + j, i));
        ASSERT_EQ(at(".absorbed_v", (2 * 128 + i) * 128 + j), value(2 * 256 + 128 + i, j));
      }
    }
    // There and back, and once more.
    base::ThreadPool pool(1);
    model->units().RestoreAll(live, pool);
    model->units().ProcessAll(live, pool);
    for (std::size_t i = 0; i < live.size(); ++i) {
      if (plan.IsDerived(i)) std::ranges::fill(live[i], std::byte{0x7A});
    }
    ASSERT_OK(model->Derive(live));
    EXPECT_TRUE(derived() == first);
    // In the staging memory it is the same function.
    ASSERT_OK_AND_ASSIGN(const auto staging, model->parameters().Staging());
    for (std::size_t i = 0; i < live.size(); ++i) {
      if (!plan.IsDerived(i)) std::ranges::copy(live[i], staging[i].begin());
    }
    ASSERT_OK(model->Derive(staging));
    for (std::size_t i = 0; i < live.size(); ++i) {
      EXPECT_TRUE(std::ranges::equal(live[i], staging[i])) << plan.parameters()[i].name;
    }
  }
}

}  // namespace
}  // namespace syncline::model
