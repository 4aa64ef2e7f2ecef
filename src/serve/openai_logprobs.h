// Log-probabilities in the two shapes of OpenAI's routes.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "engine/request.h"
#include "text/vocabulary.h"

namespace syncline::serve {

// Chat: {"content": [{"token", "logprob", "bytes", "top_logprobs"}], "refusal": null}
base::Json ChatLogprobs(const engine::Logprobs& logprobs, const text::Vocabulary& vocabulary);

// Completions: {"tokens", "token_logprobs", "top_logprobs", "text_offset"}, in pieces.
class CompletionLogprobs {
 public:
  // `vocabulary` must outlive this.
  explicit CompletionLogprobs(const text::Vocabulary& vocabulary) : vocabulary_(&vocabulary) {}

  void Add(const engine::Logprobs& logprobs);
  // What was added since the last call; offsets go on.
  base::Json Take();

 private:
  const text::Vocabulary* vocabulary_;
  base::Json::Array tokens_;
  base::Json::Array values_;
  base::Json::Array top_;
  base::Json::Array offsets_;
  std::uint64_t offset_ = 0;  // characters of all tokens before
};

}  // namespace syncline::serve
