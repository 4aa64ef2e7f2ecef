// Chooses a token from one row of logits, and says how probable tokens were.
//
// Order of the steps, as in SGLang: end tokens forbidden until `min_new_tokens`; logit_bias;
// repetition, frequency and presence penalties; division by the temperature; log-probabilities are
// of this distribution; then top-k, top-p (both on the sorted distribution before either cut it)
// and min-p choose the candidates.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "engine/request.h"

namespace syncline::engine {

// What the penalties of one request count.
class TokenCounts {
 public:
  explicit TokenCounts(std::span<const TokenId> prompt);
  void Add(TokenId token) { ++counts_[token].output; }
  // Changes `logits` by the penalties of `params`.
  void Apply(const SamplingParams& params, std::span<float> logits) const;

 private:
  struct Count {
    std::uint32_t prompt = 0;
    std::uint32_t output = 0;
  };
  std::map<TokenId, Count> counts_;
};

struct Draw {
  std::span<const TokenId> forbidden;   // never chosen
  const TokenCounts* counts = nullptr;  // null: no penalties
  double uniform = 0;                   // in [0, 1): decides a random choice
};

// Chooses a token. `logits` is changed: afterwards it holds the distribution from which the token
// was chosen (up to a constant), for ReadLogprobs.
TokenId ChooseToken(const SamplingParams& params, const Draw& draw, std::span<float> logits);

// Appends the log-probability of `token` in softmax(logits) to `to`, with the alternatives that
// `params` asks for.
void ReadLogprobs(std::span<const float> logits, TokenId token, const LogprobParams& params,
                  Logprobs& to);

// A number in [0, 1) for the output token at `position` of a request with `seed`: the same whatever
// else is computed.
double UniformAt(std::uint64_t seed, std::uint64_t position);

}  // namespace syncline::engine
