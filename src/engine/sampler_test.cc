#include "engine/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "engine/row_math.h"

namespace syncline::engine {
namespace {

using Row = std::vector<float>;

Row RandomRow(std::uint64_t seed, std::size_t size, float spread) {
  Row row(size);
  for (std::size_t i = 0; i < size; ++i) {
    row[i] = static_cast<float>(UniformAt(seed, i) - 0.5) * 2 * spread;
  }
  return row;
}

std::vector<double> Softmax(const Row& row) {
  const float largest = *std::ranges::max_element(row);
  std::vector<double> result(row.size());
  double sum = 0;
  for (std::size_t i = 0; i < row.size(); ++i)
    sum += result[i] = std::exp(double{row[i]} - largest);
  for (double& value : result) value /= sum;
  return result;
}

// The tokens that top-k, top-p and min-p leave, by the plain definition.
std::set<TokenId> Candidates(const SamplingParams& params, const Row& row) {
  const std::vector<double> share = Softmax(row);
  std::vector<TokenId> order(row.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater(), [&](TokenId id) { return row[id]; });
  std::set<TokenId> kept;
  double before = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const double own = share[order[i]];
    const bool in_k = params.top_k < 1 || i < static_cast<std::size_t>(params.top_k);
    if (i == 0 || (in_k && before <= params.top_p && own >= params.min_p * share[order[0]])) {
      kept.insert(order[i]);
    }
    before += own;
  }
  return kept;
}

RC_GTEST_PROP(Sampler, ChoosesOnlyCandidatesAndAllOfThem, ()) {
  const auto seed = *rc::gen::arbitrary<std::uint64_t>();
  const auto size = *rc::gen::inRange<std::size_t>(2, 40);
  const Row row = RandomRow(seed, size, 3);
  SamplingParams params;
  params.top_k = *rc::gen::element(-1, 1, 2, 5, 30);
  params.top_p = *rc::gen::element(0.05, 0.5, 0.9, 1.0);
  params.min_p = *rc::gen::element(0.0, 0.02, 0.3, 1.0);
  const std::set<TokenId> expected = Candidates(params, row);
  std::set<TokenId> seen;
  for (int i = 0; i < 4000; ++i) {
    Row copy = row;
    seen.insert(ChooseToken(params, {.uniform = (i + 0.5) / 4000}, copy));
  }
  RC_ASSERT(seen == expected);
}

// Stepping evenly through [0, 1), each token comes as often as its probability says, to within one
// step at each end of its range.
RC_GTEST_PROP(Sampler, SharesAreTheProbabilities, ()) {
  const auto size = *rc::gen::inRange<std::size_t>(1, 2000);
  const Row row = RandomRow(*rc::gen::arbitrary<std::uint64_t>(), size, 4);
  const double temperature = *rc::gen::element(0.3, 1.0, 2.0);
  const int steps = 5000;
  std::vector<int> counts(size);
  SamplingParams params;
  params.temperature = temperature;
  for (int i = 0; i < steps; ++i) {
    Row copy = row;
    ++counts[ChooseToken(params, {.uniform = (i + 0.5) / steps}, copy)];
  }
  Row scaled = row;
  for (float& value : scaled) value = static_cast<float>(value / temperature);
  const std::vector<double> share = Softmax(scaled);
  for (std::size_t i = 0; i < size; ++i) {
    RC_ASSERT(std::abs(counts[i] - share[i] * steps) < 1.1);
  }
}

TEST(Sampler, TopPOfALargeVocabularySortsAsFarAsNeeded) {
  const Row row = RandomRow(5, 50000, 0.1F);  // nearly flat: 90 % are 45,000 tokens
  SamplingParams params;
  params.top_p = 0.9;
  const std::set<TokenId> expected = Candidates(params, row);
  Row copy = row;
  EXPECT_TRUE(expected.contains(ChooseToken(params, {.uniform = 0.999999}, copy)));
  Row sorted = row;
  std::ranges::sort(sorted, std::greater());
  copy = row;
  const TokenId last = ChooseToken(params, {.uniform = 0.999999}, copy);
  EXPECT_NEAR(row[last], sorted[expected.size() - 1], 1e-4);
}

TEST(Sampler, GreedyTakesTheFirstOfEquals) {
  Row row = {1, 3, 3, 2};
  SamplingParams params;
  params.temperature = 0;
  EXPECT_EQ(ChooseToken(params, {}, row), 1);
  const std::vector<TokenId> forbidden = {1};
  EXPECT_EQ(ChooseToken(params, {.forbidden = forbidden}, row), 2);
  params.logit_bias = {{3, 2.0}};
  EXPECT_EQ(ChooseToken(params, {}, row), 3);
}

TEST(Sampler, PenaltiesFollowTheirFormulas) {
  const std::vector<TokenId> prompt = {0, 1};
  TokenCounts counts(prompt);
  counts.Add(2);
  counts.Add(2);
  SamplingParams params;
  params.repetition_penalty = 2;
  params.frequency_penalty = 0.5;
  params.presence_penalty = 0.25;
  Row row = {4, -4, 4, 4};
  counts.Apply(params, row);
  EXPECT_THAT(row, testing::ElementsAre(2, -8, 2 - 2 * 0.5F - 0.25F, 4));
}

TEST(Sampler, LogprobsAreOfTheTemperedDistribution) {
  const Row row = RandomRow(9, 1000, 5);
  Row tempered = row;
  SamplingParams params;
  params.temperature = 0.5;
  const TokenId token = ChooseToken(params, {.uniform = 0.3}, tempered);
  Logprobs logprobs;
  ReadLogprobs(tempered, token, {.enabled = true, .top = 3, .tokens = {7}}, logprobs);
  Row doubled = row;
  for (float& value : doubled) value *= 2;
  const std::vector<double> share = Softmax(doubled);
  EXPECT_NEAR(*logprobs.tokens[0].logprob, std::log(share[token]), 1e-4);
  EXPECT_NEAR(*logprobs.chosen[0][0].logprob, std::log(share[7]), 1e-4);
  std::vector<double> sorted = share;
  std::ranges::sort(sorted, std::greater());
  for (int i = 0; i < 3; ++i) {
    EXPECT_NEAR(*logprobs.top[0][i].logprob, std::log(sorted[i]), 1e-4);
  }
}

// Weights can be broken; then the choice does not matter, but nothing may crash.
TEST(Sampler, SurvivesRowsThatAreNoNumbers) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Row& row :
       {Row(70, nan), Row(70, -infinity), Row(70, infinity), Row{nan, 1, infinity}}) {
    for (const std::int32_t top_k : {-1, 5}) {
      Row copy = row;
      SamplingParams params;
      params.top_k = top_k;
      const TokenId token = ChooseToken(params, {.uniform = 0.7}, copy);
      EXPECT_GE(token, 0);
      EXPECT_LT(token, static_cast<TokenId>(row.size()));
      Logprobs logprobs;
      ReadLogprobs(copy, token, {.enabled = true, .top = 2}, logprobs);
    }
  }
}

RC_GTEST_PROP(RowMath, AgreesWithPlainLoops, ()) {
  const auto size = *rc::gen::inRange<std::size_t>(1, 1300);
  Row row = RandomRow(*rc::gen::arbitrary<std::uint64_t>(), size, 20);
  if (*rc::gen::arbitrary<bool>()) row[size / 2] = std::numeric_limits<float>::quiet_NaN();
  std::size_t best = size;
  double sum = 0;
  for (std::size_t i = 0; i < size; ++i) {
    if (std::isnan(row[i])) continue;
    if (best == size || row[i] > row[best]) best = i;
    sum += std::exp(double{row[i]} - 3);
  }
  RC_ASSERT(ArgMax(row) == (best == size ? 0 : best));
  RC_ASSERT(std::abs(SumOfExp(row, 3) - sum) <= 1e-5 * sum);
  Row powers(size);
  std::vector<double> sums((size + kExpBlock - 1) / kExpBlock);
  ExpInBlocks(row, 3, powers, sums);
  RC_ASSERT(std::abs(std::accumulate(sums.begin(), sums.end(), 0.0) - sum) <= 1e-5 * sum);
  RC_ASSERT(std::abs(std::accumulate(powers.begin(), powers.end(), 0.0) - sum) <= 1e-4 * sum);
}

TEST(UniformAt, IsUniformAndRepeats) {
  double sum = 0;
  std::set<double> seen;
  for (std::uint64_t i = 0; i < 10000; ++i) {
    const double value = UniformAt(1 + i % 3, i);
    ASSERT_GE(value, 0);
    ASSERT_LT(value, 1);
    sum += value;
    seen.insert(value);
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.015);  // five standard errors
  EXPECT_EQ(seen.size(), 10000U);
  EXPECT_EQ(UniformAt(7, 9), UniformAt(7, 9));
  EXPECT_NE(UniformAt(7, 9), UniformAt(7, 10));
  EXPECT_NE(UniformAt(7, 9), UniformAt(8, 9));
}

}  // namespace
}  // namespace syncline::engine
