// One request while the engine works on it: its tokens, its place in the cache, and what its client
// has been told.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/prefix_keys.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "text/stop_strings.h"
#include "text/vocabulary.h"

namespace syncline::engine {

// Makes spans that are of a run of positions from 0 reach to `end`: what is new has this version.
void ExtendSpans(std::vector<VersionSpan>& spans, std::uint32_t end, const std::string& version);

class Sequence {
 public:
  // `end_tokens` and `vocabulary` must outlive it. `seed`: for a request that brings none.
  Sequence(Request request, Sink sink, const text::Vocabulary& vocabulary,
           std::span<const TokenId> end_tokens, std::uint64_t seed);

  const Request& request() const { return request_; }
  const std::vector<TokenId>& tokens() const { return tokens_; }  // prompt and output
  std::uint32_t prompt_length() const { return prompt_length_; }
  std::uint32_t output_length() const {
    return static_cast<std::uint32_t>(tokens_.size()) - prompt_length_;
  }

  // Keys and values: of the first `computed` tokens, in `blocks`. Kept by the scheduler.
  std::uint32_t computed = 0;
  std::vector<std::uint32_t> blocks;
  // Of the blocks, the first `published` can be found by others, under their keys.
  std::optional<PrefixKeys> keys;
  std::uint32_t published = 0;

  // Tokens still to compute before the next one can be chosen.
  std::uint32_t remaining() const { return static_cast<std::uint32_t>(tokens_.size()) - computed; }
  bool decoding() const { return output_length() > 0 && remaining() == 1; }

  // Positions whose logits give the log-probability of the next prompt token, among the next
  // `length` tokens to compute: [first, last).
  struct Range {
    std::uint32_t first = 0;
    std::uint32_t last = 0;
  };
  Range InputLogprobRows(std::uint32_t length) const;
  // `logits` of position `position`.
  void AddInputLogprob(std::uint32_t position, std::span<const float> logits);

  // Of the tokens, the first that need not be computed if others have computed them.
  std::uint32_t reusable() const;
  // Starts with `length` tokens in the cache that weights of these versions have computed.
  void Reuse(std::uint32_t length, std::vector<VersionSpan> spans);
  // The experts of the next `length` tokens to compute: [length, …].
  void AddExperts(std::uint32_t length, std::span<const std::int32_t> experts);
  // `length` more tokens are in the cache, computed by weights of this version.
  void Advance(std::uint32_t length, const std::string& version);
  // By what [begin, end) of the tokens in the cache were computed.
  std::vector<VersionSpan> ComputedBy(std::uint32_t begin, std::uint32_t end) const;
  // Lost its cache: everything is computed again.
  void Retract();

  // The prompt is computed and no output is asked for.
  bool NeedsNoOutput() const { return request_.sampling.max_new_tokens == 0; }
  // Chooses the next token from `logits` (which it changes) and tells the client what is to be
  // told. True if the request is finished.
  bool Generate(std::span<float> logits, const std::string& version);

  // Sends the last event. Nothing may be called after it.
  void End(Finish finish, const std::string& version);

 private:
  std::optional<Finish> CheckEnd(TokenId token, std::string& text);
  bool IsStopToken(TokenId token) const;
  void Tell(std::optional<Finish> finish, const std::string& version);

  Request request_;
  Sink sink_;
  std::span<const TokenId> end_tokens_;
  std::uint64_t seed_;
  std::vector<TokenId> tokens_;
  std::uint32_t prompt_length_;
  text::Detokenizer detokenizer_;
  text::StopStrings stops_;
  std::optional<TokenCounts> counts_;  // only where a penalty asks for it
  std::vector<TokenId> forbidden_;     // until min_new_tokens
  std::optional<Logprobs> input_logprobs_;
  std::uint32_t input_logprobs_end_ = 0;  // prompt positions before it have theirs
  Event pending_;                         // not told yet
  std::vector<VersionSpan> spans_;
  std::vector<VersionSpan>
      computed_by_;                    // tokens in the cache; after a retraction, those that were
  std::vector<std::int32_t> experts_;  // from Request::experts_from on
  std::uint32_t computed_most_ = 0;    // tokens that were in the cache at any time
  std::uint32_t cached_tokens_ = 0;
  std::uint32_t retractions_ = 0;
};

}  // namespace syncline::engine
