#include "engine/check_request.h"

#include <fmt/core.h>

#include <cmath>
#include <span>
#include <string_view>

namespace syncline::engine {
namespace {

base::Status Bad(std::string_view field, std::string_view expected, const auto& found) {
  return base::Fail(base::Code::kInvalidArgument,
                    fmt::format("{}: expected {}, found {}", field, expected, found));
}

base::Status CheckTokens(std::string_view field, std::span<const TokenId> tokens,
                         std::uint32_t vocabulary) {
  for (const TokenId token : tokens) {
    if (token < 0 || static_cast<std::uint32_t>(token) >= vocabulary) {
      return Bad(field, fmt::format("token ids below {}", vocabulary), token);
    }
  }
  return {};
}

base::Status CheckSampling(const SamplingParams& params, std::uint32_t vocabulary) {
  const auto within = [](double value, double low, double high) {
    return value >= low && value <= high;  // false for NaN
  };
  if (!(params.temperature >= 0) || !std::isfinite(params.temperature)) {
    return Bad("temperature", "a number of at least 0", params.temperature);
  }
  if (!within(params.top_p, 0, 1) || params.top_p == 0) {
    return Bad("top_p", "a number above 0 and at most 1", params.top_p);
  }
  if (params.top_k < 1 && params.top_k != -1) {
    return Bad("top_k", "-1 or at least 1", params.top_k);
  }
  if (!within(params.min_p, 0, 1)) return Bad("min_p", "a number from 0 to 1", params.min_p);
  if (!within(params.frequency_penalty, -2, 2)) {
    return Bad("frequency_penalty", "a number from -2 to 2", params.frequency_penalty);
  }
  if (!within(params.presence_penalty, -2, 2)) {
    return Bad("presence_penalty", "a number from -2 to 2", params.presence_penalty);
  }
  if (!within(params.repetition_penalty, 0, 2) || params.repetition_penalty == 0) {
    return Bad("repetition_penalty", "a number above 0 and at most 2", params.repetition_penalty);
  }
  if (params.min_new_tokens > params.max_new_tokens) {
    return Bad("min_new_tokens", fmt::format("at most max_new_tokens ({})", params.max_new_tokens),
               params.min_new_tokens);
  }
  for (const auto& [token, bias] : params.logit_bias) {
    SYNCLINE_TRY(CheckTokens("logit_bias", {&token, 1}, vocabulary));
    if (!within(bias, -100, 100)) return Bad("logit_bias", "numbers from -100 to 100", bias);
  }
  return CheckTokens("stop_token_ids", params.stop_token_ids, vocabulary);
}

}  // namespace

base::Status CheckRequest(const Request& request, const RequestLimits& limits) {
  if (request.input_ids.empty()) return Bad("input_ids", "at least one token", "none");
  SYNCLINE_TRY(CheckTokens("input_ids", request.input_ids, limits.vocabulary));
  // A prompt as long as the context leaves no room for output, but can be scored.
  const std::size_t longest = limits.max_context - (request.sampling.max_new_tokens > 0 ? 1 : 0);
  if (request.input_ids.size() > longest) {
    return Bad("input_ids",
               fmt::format("at most {} tokens (the context holds {})", longest, limits.max_context),
               request.input_ids.size());
  }
  SYNCLINE_TRY(CheckSampling(request.sampling, limits.vocabulary));
  const LogprobParams& logprobs = request.logprobs;
  if (logprobs.start < -1 ||
      logprobs.start >= static_cast<std::int64_t>(request.input_ids.size())) {
    return Bad(
        "logprob_start_len",
        fmt::format("-1 or a position below the prompt's length ({})", request.input_ids.size()),
        logprobs.start);
  }
  if (logprobs.top > limits.vocabulary) {
    return Bad("top_logprobs_num", fmt::format("at most {}", limits.vocabulary), logprobs.top);
  }
  SYNCLINE_TRY(CheckTokens("token_ids_logprob", logprobs.tokens, limits.vocabulary));
  if (!request.experts_from) return {};
  if (!limits.experts) {
    return Bad("return_routed_experts", "a model with a mixture of experts", "a dense one");
  }
  if (*request.experts_from > request.input_ids.size()) {
    return Bad("routed_experts_start_len",
               fmt::format("at most the prompt's length ({})", request.input_ids.size()),
               *request.experts_from);
  }
  return {};
}

}  // namespace syncline::engine
