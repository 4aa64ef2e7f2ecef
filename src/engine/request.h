// What a client asks of the engine, and what it gets: no tensor types here.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "text/vocabulary.h"

namespace syncline::engine {

using text::TokenId;

// Names, defaults and meaning as in the `sampling_params` of SGLang's /generate.
struct SamplingParams {
  std::uint32_t max_new_tokens = 128;
  std::uint32_t min_new_tokens = 0;  // until then no end token and no stop token is chosen
  double temperature = 1.0;          // 0: the most probable token
  double top_p = 1.0;                // in (0, 1]
  std::int32_t top_k = -1;           // -1: all
  double min_p = 0.0;                // in [0, 1]: of the highest probability
  double frequency_penalty = 0.0;    // in [-2, 2]; counts output tokens
  double presence_penalty = 0.0;     // in [-2, 2]; counts output tokens
  double repetition_penalty = 1.0;   // in (0, 2]; counts prompt and output tokens
  std::map<TokenId, double> logit_bias;
  std::vector<std::string> stop;
  std::vector<TokenId> stop_token_ids;
  bool ignore_eos = false;
  bool skip_special_tokens = true;
  bool no_stop_trim = false;
  // Then the result depends on nothing else that is served meanwhile, beside rounding
  std::optional<std::uint64_t> seed;
};

struct LogprobParams {
  bool enabled = false;
  std::int64_t start = -1;      // prompt position where the run begins; -1: none of the prompt
  std::uint32_t top = 0;        // alternatives of each position
  std::vector<TokenId> tokens;  // these tokens at each position
};

struct TokenLogprob {
  TokenId token = 0;
  std::optional<float> logprob;  // natural; nothing for the first of a run of prompt tokens
};

// Of a run of positions; `top` and `chosen` have one entry a position if they were asked for, else
// they are empty.
struct Logprobs {
  std::vector<TokenLogprob> tokens;
  std::vector<std::vector<TokenLogprob>> top;     // falling
  std::vector<std::vector<TokenLogprob>> chosen;  // in the order of LogprobParams::tokens
};

struct Request {
  std::string id;  // unique among those that are not finished
  std::vector<TokenId> input_ids;
  SamplingParams sampling;
  LogprobParams logprobs;
  bool stream = false;  // an event for each step; else only the last one
  // The experts that tokens go to are wanted, from this position on
  std::optional<std::uint32_t> experts_from;
  // Of a beginning that another request has computed, what lies in the cache is used only if this
  // is equal.
  std::string cache_partition;
};

// Output tokens [start, end) were computed with weights of this version.
struct VersionSpan {
  std::string version;
  std::uint32_t start = 0;
  std::uint32_t end = 0;
};

struct Finish {
  enum class Kind { kStopToken, kStopString, kLength, kAbort };
  Kind kind = Kind::kLength;
  TokenId matched_token = 0;   // kStopToken
  std::string matched_string;  // kStopString
  std::uint32_t length = 0;    // kLength
  std::string message;         // kAbort
  // KAbort: 0 where the client or a pause asked for it, else 4xx or 5xx
  int http_status = 0;
};

// What is new since the last event of the request.
struct Event {
  std::vector<TokenId> tokens;
  std::string text;
  Logprobs output_logprobs;                // of `tokens`
  std::optional<Logprobs> input_logprobs;  // once, with the first event
  std::string weight_version;              // of the last token
  std::optional<Finish> finish;            // set in the last event

  // Set in the last event.
  std::vector<VersionSpan> weight_versions;  // cover all output tokens
  // Cover the prompt by what computed its keys and values; empty if it was never computed
  std::vector<VersionSpan> prefill_weight_versions;
  std::uint32_t retractions = 0;
  std::uint32_t cached_tokens = 0;  // of the prompt, that others had computed
  // Where they were asked for: of each token from there on that was computed, so not of the last
  // one; [tokens, layers, per token] as in model::Model.
  std::vector<std::int32_t> experts;
};

// Called on the engine's thread, in order; must not block.
using Sink = std::function<void(Event)>;

}  // namespace syncline::engine
