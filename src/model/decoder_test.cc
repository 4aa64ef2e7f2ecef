#include "model/decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/bytes.h"
#include "base/result_matchers.h"
#include "model/architecture.h"

namespace syncline::model {
namespace {

using tensor::Dtype;

constexpr std::uint32_t kVocabulary = 97;
constexpr std::uint32_t kBlocks = 64;

ModelConfig Small() {
  ModelConfig config;
  config.vocabulary = kVocabulary;
  config.hidden = 72;
  config.intermediate = 100;
  config.layers = 3;
  config.heads = 6;
  config.kv_heads = 2;
  config.head_size = 20;
  config.max_positions = 400;
  config.qkv_bias = true;
  config.o_bias = true;
  config.architectures = {"LlamaForCausalLM"};
  return config;
}

// Weights of about 1 / sqrt(hidden), from a fixed seed.
base::Result<std::unique_ptr<Model>> MakeSmall() {
  const ModelConfig config = Small();
  SYNCLINE_ASSIGN(DecoderPlan decoder, PlanModel(config, {}, [](auto) { return Dtype::kBF16; }));
  SYNCLINE_ASSIGN(Parameters parameters, Parameters::Create(decoder.plan));
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 0.2F);
  for (const base::MutableByteSpan bytes : parameters.live()) {
    for (std::size_t i = 0; i < bytes.size(); i += 2) {
      const auto bits = std::bit_cast<std::uint32_t>(normal(random));
      base::Store(bytes.data() + i, static_cast<std::uint16_t>(bits >> 16));
    }
  }
  SYNCLINE_ASSIGN(auto model, MakeDecoder(config, std::move(decoder), std::move(parameters), {}));
  SYNCLINE_TRY(model->ReserveKv(kBlocks));
  return model;
}

std::vector<std::int32_t> Tokens(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> tokens(count);
  for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random() % kVocabulary);
  return tokens;
}

// A step under construction.
struct Step {
  Batch batch;

  // Tokens [begin, end) of a sequence; logits are wanted for the last `logits` of them.
  void Add(const std::vector<std::int32_t>& tokens, std::uint32_t begin, std::uint32_t end,
           const std::vector<std::uint32_t>& blocks, std::uint32_t logits) {
    const auto first = static_cast<std::uint32_t>(batch.tokens.size());
    batch.sequences.push_back({first, end - begin, end, blocks});
    batch.tokens.insert(batch.tokens.end(), tokens.begin() + begin, tokens.begin() + end);
    for (std::uint32_t i = end - begin - logits; i < end - begin; ++i) {
      batch.logits_rows.push_back(first + i);
    }
  }

  std::vector<float> Run(Model& model) const {
    std::vector<float> logits(batch.logits_rows.size() * kVocabulary);
    EXPECT_OK(model.Forward(batch, logits));
    return logits;
  }
};

// What a client gets must not depend on what other clients do: the same bits, whether a sequence is
// computed token by token, in pieces, or beside others. (Of steps of up to 32 rows: see linear.h.)
TEST(Decoder, LogitsDoNotDependOnTheDivisionIntoSteps) {
  ASSERT_OK_AND_ASSIGN(const auto model, MakeSmall());
  const std::vector<std::int32_t> tokens = Tokens(150, 1);
  const std::vector<std::uint32_t> blocks = {3, 9, 4, 0, 21, 22, 7, 60, 33, 12};
  std::vector<float> expected;
  for (std::uint32_t i = 0; i < 150; ++i) {
    Step step;
    step.Add(tokens, i, i + 1, blocks, 1);
    const std::vector<float> found = step.Run(*model);
    expected.insert(expected.end(), found.begin(), found.end());
  }
  EXPECT_TRUE(std::ranges::all_of(expected, [](float x) { return std::isfinite(x); }));
  EXPECT_GT(*std::ranges::max_element(expected), 0.5F);

  const std::vector<std::int32_t> other = Tokens(5, 2);
  for (const std::uint32_t most : {1U, 7U, 16U, 21U}) {
    ASSERT_OK(model->ReserveKv(kBlocks));
    for (std::uint32_t done = 0; done < 150; done += most) {
      const std::uint32_t end = std::min(150U, done + most);
      Step step;
      step.Add(other, 0, 1 + done % 5, {41}, 0);
      step.Add(tokens, done, end, blocks, end - done);
      step.Add(other, 0, 5, {55}, 1);
      std::vector<float> found = step.Run(*model);
      found.resize(std::size_t{end - done} * kVocabulary);
      const auto from = expected.begin() + done * std::ptrdiff_t{kVocabulary};
      ASSERT_TRUE(std::equal(found.begin(), found.end(), from))
          << "pieces of " << most << " at " << done;
    }
  }
}

TEST(Decoder, LogitsAreThoseOfTheRowsAskedFor) {
  ASSERT_OK_AND_ASSIGN(const auto model, MakeSmall());
  const std::vector<std::int32_t> tokens = Tokens(20, 3);
  Step all;
  all.Add(tokens, 0, 20, {0, 1}, 20);
  const std::vector<float> expected = all.Run(*model);
  Step some = all;
  some.batch.logits_rows = {19, 3, 3, 0};
  const std::vector<float> found = some.Run(*model);
  for (std::size_t i = 0; i < 4; ++i) {
    const auto row = std::vector<float>(found.begin() + static_cast<long>(i * kVocabulary),
                                        found.begin() + static_cast<long>((i + 1) * kVocabulary));
    const auto from = expected.begin() + some.batch.logits_rows[i] * std::ptrdiff_t{kVocabulary};
    EXPECT_EQ(row, std::vector<float>(from, from + kVocabulary)) << i;
  }
  // As many rows as there are, in another order.
  std::ranges::reverse(all.batch.logits_rows);
  const std::vector<float> reversed = all.Run(*model);
  EXPECT_TRUE(
      std::equal(reversed.begin(), reversed.begin() + kVocabulary, expected.end() - kVocabulary));
  some.batch.logits_rows.clear();
  EXPECT_TRUE(some.Run(*model).empty());
}

TEST(Decoder, StepThatDoesNotFitIsAnError) {
  ASSERT_OK_AND_ASSIGN(const auto model, MakeSmall());
  std::vector<float> logits(kVocabulary);
  Step step;
  step.Add(Tokens(5, 4), 0, 5, {kBlocks}, 1);
  EXPECT_ERROR(model->Forward(step.batch, logits), base::Code::kInternal, "block 64");
  step.batch.sequences[0].blocks = {kBlocks - 1};
  EXPECT_OK(model->Forward(step.batch, logits));
  step.batch.sequences[0].context = 401;
  EXPECT_ERROR(model->Forward(step.batch, logits), base::Code::kInternal, "400 positions");
}

}  // namespace
}  // namespace syncline::model
