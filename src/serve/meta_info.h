// The `meta_info` of /generate.
#pragma once

#include "base/json.h"
#include "engine/request.h"
#include "serve/completion.h"
#include "text/vocabulary.h"

namespace syncline::serve {

// The text of one token alone, as valid UTF-8; a leading space is kept.
std::string TokenText(const text::Vocabulary& vocabulary, text::TokenId token);

// {"type": "stop" | "length" | "abort", ...}; null while there is none.
base::Json FinishReason(const std::optional<engine::Finish>& finish);

// `vocabulary`: texts in the log-probabilities; null: none.
base::Json MetaInfo(const Completion& result, const engine::LogprobParams& asked,
                    const text::Vocabulary* vocabulary);

}  // namespace syncline::serve
