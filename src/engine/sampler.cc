#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "engine/row_math.h"

namespace syncline::engine {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// Position in [0, weights.size()) such that each has a share of [0, 1) by its weight.
std::size_t Locate(std::span<const float> weights, double total, double uniform) {
  double left = uniform * total;
  std::size_t last = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] <= 0) continue;
    last = i;
    left -= weights[i];
    if (left < 0) return i;
  }
  return last;  // rounding: the sum was a little more than what is there
}

// From the whole distribution.
TokenId ChooseFromAll(std::span<const float> logits, double uniform) {
  const float shift = logits[ArgMax(logits)];
  std::vector<float> powers(logits.size());
  std::vector<double> sums((logits.size() + kExpBlock - 1) / kExpBlock);
  ExpInBlocks(logits, shift, powers, sums);
  const double total = std::accumulate(sums.begin(), sums.end(), 0.0);
  double left = uniform * total;
  std::size_t block = 0;
  while (block + 1 < sums.size() && left >= sums[block]) left -= sums[block++];
  const std::size_t begin = block * kExpBlock;
  const std::size_t size = std::min(kExpBlock, logits.size() - begin);
  const std::size_t at = Locate(std::span(powers).subspan(begin, size), sums[block],
                                left / std::max(sums[block], 1e-300));
  return static_cast<TokenId>(begin + at);
}

// From the most probable ones only. Sorting goes on only as far as top-p needs.
TokenId ChooseFromTop(const SamplingParams& params, std::span<const float> logits, double uniform) {
  const float shift = logits[ArgMax(logits)];
  const double total = SumOfExp(logits, shift);
  std::vector<TokenId> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto more_probable = [&](TokenId a, TokenId b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  const std::size_t limit =
      params.top_k > 0 ? std::min<std::size_t>(params.top_k, order.size()) : order.size();
  std::vector<float> kept;
  double mass = 0;  // of the tokens before this one
  std::size_t sorted = 0;
  for (std::size_t i = 0; i < limit; ++i) {
    if (i == sorted) {
      sorted = std::min(limit, std::max<std::size_t>(256, sorted * 4));
      std::partial_sort(order.begin() + static_cast<std::ptrdiff_t>(i),
                        order.begin() + static_cast<std::ptrdiff_t>(sorted), order.end(),
                        more_probable);
    }
    const double power = std::exp(static_cast<double>(logits[order[i]]) - shift);
    // The first one always stays.
    if (i > 0 && (mass / total > params.top_p || power < params.min_p)) break;
    kept.push_back(static_cast<float>(power));
    mass += power;
  }
  const double kept_mass = std::accumulate(kept.begin(), kept.end(), 0.0);
  return order[Locate(kept, kept_mass, uniform)];
}

}  // namespace

TokenCounts::TokenCounts(std::span<const TokenId> prompt) {
  for (const TokenId token : prompt) ++counts_[token].prompt;
}

void TokenCounts::Apply(const SamplingParams& params, std::span<float> logits) const {
  const auto repetition = static_cast<float>(params.repetition_penalty);
  for (const auto& [token, count] : counts_) {
    float& logit = logits[token];
    logit = logit > 0 ? logit / repetition : logit * repetition;
    if (count.output == 0) continue;
    logit -= static_cast<float>(params.frequency_penalty * count.output + params.presence_penalty);
  }
}

TokenId ChooseToken(const SamplingParams& params, const Draw& draw, std::span<float> logits) {
  for (const auto& [token, bias] : params.logit_bias) logits[token] += static_cast<float>(bias);
  if (draw.counts != nullptr) draw.counts->Apply(params, logits);
  for (const TokenId token : draw.forbidden) logits[token] = kNever;
  if (params.temperature == 0) return static_cast<TokenId>(ArgMax(logits));
  if (params.temperature != 1) Scale(logits, static_cast<float>(1 / params.temperature));
  if (params.top_k == 1) return static_cast<TokenId>(ArgMax(logits));
  if (params.top_k > 0 || params.top_p < 1 || params.min_p > 0) {
    return ChooseFromTop(params, logits, draw.uniform);
  }
  return ChooseFromAll(logits, draw.uniform);
}

void ReadLogprobs(std::span<const float> logits, TokenId token, const LogprobParams& params,
                  Logprobs& to) {
  const float shift = logits[ArgMax(logits)];
  const double log_sum = shift + std::log(SumOfExp(logits, shift));
  const auto entry = [&](TokenId id) {
    return TokenLogprob{id, static_cast<float>(logits[id] - log_sum)};
  };
  to.tokens.push_back(entry(token));
  if (params.top > 0) {
    std::vector<TokenId> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    const std::size_t count = std::min<std::size_t>(params.top, order.size());
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count),
                      order.end(), [&](TokenId a, TokenId b) {
                        return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
                      });
    auto& top = to.top.emplace_back();
    for (std::size_t i = 0; i < count; ++i) top.push_back(entry(order[i]));
  }
  if (!params.tokens.empty()) {
    auto& chosen = to.chosen.emplace_back();
    for (const TokenId id : params.tokens) chosen.push_back(entry(id));
  }
}

double UniformAt(std::uint64_t seed, std::uint64_t position) {
  // splitmix64 (Steele, Lea and Flood, 2014), twice, so that neighbouring seeds and positions have
  // nothing in common.
  const auto mix = [](std::uint64_t x) {
    x += 0x9E3779B97F4A7C15;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
  };
  return static_cast<double>(mix(mix(seed) ^ position) >> 11) * 0x1.0p-53;
}

}  // namespace syncline::engine
