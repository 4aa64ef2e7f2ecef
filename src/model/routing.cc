#include "model/routing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "model/parallel.h"

namespace syncline::model {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

void Softmax(std::span<float> x) {
  const float highest = *std::ranges::max_element(x);
  float sum = 0;
  for (float& value : x) sum += value = std::exp(value - highest);
  for (float& value : x) value /= sum;
}

void Sigmoid(std::span<float> x) {
  for (float& value : x) value = 1.0F / (1.0F + std::exp(-value));
}

// Routes rows one after the other; keeps its memory between them.
class Router {
 public:
  Router(const ExpertsConfig& config, std::span<const float> bias)
      : config_(config), bias_(bias), ranks_(config.experts), scores_(config.experts) {}

  void Route(std::span<const float> logits, std::span<std::uint32_t> experts,
             std::span<float> weights) {
    std::ranges::copy(logits, scores_.begin());
    if (config_.scoring == ExpertsConfig::Scoring::kSoftmax) {
      Softmax(scores_);
    } else {
      Sigmoid(scores_);
    }
    for (std::size_t i = 0; i < scores_.size(); ++i) {
      const float score = bias_.empty() ? scores_[i] : scores_[i] + bias_[i];
      ranks_[i] = std::isnan(score) ? kLowest : score;
    }
    if (config_.groups_per_token < config_.groups) LeaveBestGroups();
    TakeBest(ranks_, experts);
    float sum = 1e-20F;
    for (std::size_t i = 0; i < experts.size(); ++i) sum += weights[i] = scores_[experts[i]];
    const auto scale = static_cast<float>(config_.scale);
    for (float& weight : weights) weight = (config_.normalise ? weight / sum : weight) * scale;
  }

 private:
  // The numbers of the highest of `values`, in order.
  void TakeBest(std::span<const float> values, std::span<std::uint32_t> best) {
    order_.resize(values.size());
    std::iota(order_.begin(), order_.end(), 0U);
    std::ranges::partial_sort(order_, order_.begin() + std::ssize(best),
                              [values](std::uint32_t a, std::uint32_t b) {
                                return values[a] != values[b] ? values[a] > values[b] : a < b;
                              });
    std::copy_n(order_.begin(), best.size(), best.begin());
  }

  void LeaveBestGroups() {
    const std::size_t size = ranks_.size() / config_.groups;
    group_scores_.clear();
    for (std::size_t begin = 0; begin < ranks_.size(); begin += size) {
      float first = kLowest;
      float second = kLowest;
      for (const float rank : std::span(ranks_).subspan(begin, size)) {
        second = std::max(second, std::min(first, rank));
        first = std::max(first, rank);
      }
      const bool best_two = config_.group_score == ExpertsConfig::GroupScore::kBestTwo;
      group_scores_.push_back(best_two ? first + second : first);
    }
    groups_.resize(config_.groups_per_token);
    TakeBest(group_scores_, groups_);
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      const auto group = static_cast<std::uint32_t>(i / size);
      if (std::ranges::find(groups_, group) == groups_.end()) ranks_[i] = kLowest;
    }
  }

  const ExpertsConfig& config_;
  std::span<const float> bias_;
  std::vector<float> ranks_;  // what experts are chosen by
  std::vector<float> scores_;
  std::vector<float> group_scores_;
  std::vector<std::uint32_t> groups_;
  std::vector<std::uint32_t> order_;
};

}  // namespace

Routes ChooseExperts(const ExpertsConfig& config, std::span<const float> logits,
                     std::span<const float> bias) {
  const std::size_t experts = config.experts;
  const std::size_t chosen = config.per_token;
  const std::size_t rows = logits.size() / experts;
  Routes routes;
  routes.experts.resize(rows * chosen);
  routes.weights.resize(rows * chosen);
  ParallelFor(static_cast<std::int64_t>(rows), 8 * static_cast<std::int64_t>(experts),
              [&](std::int64_t first, std::int64_t last) {
                Router router(config, bias);
                for (auto row = static_cast<std::size_t>(first);
                     row < static_cast<std::size_t>(last); ++row) {
                  router.Route(logits.subspan(row * experts, experts),
                               std::span(routes.experts).subspan(row * chosen, chosen),
                               std::span(routes.weights).subspan(row * chosen, chosen));
                }
              });
  return routes;
}

}  // namespace syncline::model
