#include "model/routing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>
#include <set>

namespace syncline::model {
namespace {

using testing::ElementsAre;
using testing::FloatNear;
using Scoring = ExpertsConfig::Scoring;
using GroupScore = ExpertsConfig::GroupScore;

TEST(Routing, SoftmaxOverAllThenTheBest) {
  const ExpertsConfig config{.experts = 4, .per_token = 2};
  // e^0, e^1, e^2, e^1 over their sum.
  const Routes routes = ChooseExperts(config, std::vector<float>{0, 1, 2, 1}, {});
  const float sum = 1 + 2 * std::exp(1.0F) + std::exp(2.0F);
  EXPECT_THAT(routes.experts, ElementsAre(2, 1));  // of two equal ones the first
  EXPECT_THAT(routes.weights, ElementsAre(FloatNear(std::exp(2.0F) / sum, 1e-6F),
                                          FloatNear(std::exp(1.0F) / sum, 1e-6F)));
}

TEST(Routing, NormalisedWeightsAddUpToTheScale) {
  const ExpertsConfig config{.experts = 4, .per_token = 3, .normalise = true, .scale = 2.5};
  const Routes routes = ChooseExperts(config, std::vector<float>{3, 1, -2, 1}, {});
  EXPECT_NEAR(routes.weights[0] + routes.weights[1] + routes.weights[2], 2.5, 1e-5);
}

TEST(Routing, CorrectionBiasChoosesAndDoesNotWeigh) {
  const ExpertsConfig config{.experts = 3, .per_token = 1, .scoring = Scoring::kSigmoid};
  const std::vector<float> logits = {2, 0, -1};
  const Routes plain = ChooseExperts(config, logits, {});
  EXPECT_THAT(plain.experts, ElementsAre(0));
  const Routes biased = ChooseExperts(config, logits, std::vector<float>{0, 0, 1});
  EXPECT_THAT(biased.experts, ElementsAre(2));
  EXPECT_NEAR(biased.weights[0], 1 / (1 + std::exp(1.0)), 1e-6);
}

TEST(Routing, GroupsAreRankedByTheirBestOrTheirBestTwo) {
  ExpertsConfig config{.experts = 6,
                       .per_token = 1,
                       .groups = 2,
                       .groups_per_token = 1,
                       .scoring = Scoring::kSigmoid};
  const std::vector<float> logits = {3, -9, -9, 1, 1, 0};
  EXPECT_THAT(ChooseExperts(config, logits, {}).experts, ElementsAre(0));
  config.group_score = GroupScore::kBestTwo;
  EXPECT_THAT(ChooseExperts(config, logits, {}).experts, ElementsAre(3));
}

// Damaged weights must not bring down the process.
TEST(Routing, NotANumberIsLowest) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Scoring scoring : {Scoring::kSoftmax, Scoring::kSigmoid}) {
    const ExpertsConfig config{
        .experts = 4, .per_token = 3, .groups = 2, .groups_per_token = 2, .scoring = scoring};
    for (const auto& logits : {std::vector<float>{nan, nan, nan, nan},
                               std::vector<float>{1, nan, infinity, -infinity}}) {
      const Routes routes = ChooseExperts(config, logits, {});
      const std::set<std::uint32_t> different(routes.experts.begin(), routes.experts.end());
      EXPECT_EQ(different.size(), 3U);
      EXPECT_LT(*different.rbegin(), 4U);
    }
  }
  const ExpertsConfig config{.experts = 3, .per_token = 2, .scoring = Scoring::kSigmoid};
  EXPECT_THAT(ChooseExperts(config, std::vector<float>{nan, -5, 2}, {}).experts, ElementsAre(2, 1));
}

// Whatever the sizes: the chosen are different, come from the best groups, none that is left out in
// them is better, and a row is routed as if it were alone.
RC_GTEST_PROP(Routing, ChosenAreTheBestOfTheBestGroups, ()) {
  const auto draw = [](std::uint32_t low, std::uint32_t high) {
    return *rc::gen::inRange<std::uint32_t>(low, high + 1);
  };
  ExpertsConfig config{.scoring = *rc::gen::element(Scoring::kSoftmax, Scoring::kSigmoid),
                       .group_score = *rc::gen::element(GroupScore::kMax, GroupScore::kBestTwo),
                       .normalise = *rc::gen::arbitrary<bool>()};
  config.groups = draw(1, 5);
  const std::uint32_t size = draw(2, 6);
  config.experts = config.groups * size;
  config.groups_per_token = draw(1, config.groups);
  config.per_token = draw(1, config.groups_per_token * size);
  const std::uint32_t rows = draw(1, 4);
  const auto number =
      rc::gen::map(rc::gen::inRange(-40, 40), [](int x) { return static_cast<float>(x) / 8; });
  const auto logits = *rc::gen::container<std::vector<float>>(rows * config.experts, number);
  const auto bias = *rc::gen::arbitrary<bool>()
                        ? *rc::gen::container<std::vector<float>>(config.experts, number)
                        : std::vector<float>();
  const Routes routes = ChooseExperts(config, logits, bias);
  RC_ASSERT(routes.experts.size() == rows * config.per_token);
  for (std::uint32_t row = 0; row < rows; ++row) {
    const auto own = std::span(logits).subspan(row * config.experts, config.experts);
    const auto chosen = std::span(routes.experts).subspan(row * config.per_token, config.per_token);
    const Routes alone = ChooseExperts(config, own, bias);
    RC_ASSERT(std::ranges::equal(alone.experts, chosen));
    RC_ASSERT(std::ranges::equal(
        alone.weights,
        std::span(routes.weights).subspan(row * config.per_token, config.per_token)));

    // By another way: all experts but the chosen, without weights' rounding.
    double sum = 0;
    for (const float logit : own) sum += std::exp(static_cast<double>(logit));
    const auto score = [&](std::uint32_t e) {
      const double logit = own[e];
      const double plain =
          config.scoring == Scoring::kSoftmax ? std::exp(logit) / sum : 1 / (1 + std::exp(-logit));
      return plain + (bias.empty() ? 0.0 : static_cast<double>(bias[e]));
    };
    const auto group_score = [&](std::uint32_t group) {
      std::vector<double> scores;
      for (std::uint32_t i = 0; i < size; ++i) scores.push_back(score(group * size + i));
      std::ranges::sort(scores, std::greater<>());
      return config.group_score == GroupScore::kMax ? scores[0] : scores[0] + scores[1];
    };
    std::set<std::uint32_t> groups;
    for (const std::uint32_t e : chosen) groups.insert(e / size);
    RC_ASSERT(std::set(chosen.begin(), chosen.end()).size() == chosen.size());
    RC_ASSERT(groups.size() <= config.groups_per_token);
    constexpr double kRounding = 1e-5;
    const double worst = score(chosen.back());
    for (std::uint32_t e = 0; e < config.experts; ++e) {
      if (std::ranges::find(chosen, e) != chosen.end()) continue;
      if (groups.contains(e / size)) {
        RC_ASSERT(score(e) <= worst + kRounding);
      } else if (groups.size() == config.groups_per_token) {
        for (const std::uint32_t group : groups) {
          RC_ASSERT(group_score(e / size) <= group_score(group) + kRounding);
        }
      }
    }
  }
}

}  // namespace
}  // namespace syncline::model
