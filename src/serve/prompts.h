// From texts or token ids to the prompts of a call.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "serve/front.h"

namespace syncline::serve {

using Prompts = std::vector<std::vector<text::TokenId>>;

// Calls `then` on the worker thread, once: with `ids` where there are no texts, else with the
// tokens of the texts. Without a tokenizer texts fail with kInvalidArgument.
void WithTokens(Front& front, std::vector<std::string> texts, Prompts ids,
                std::function<void(base::Result<Prompts>)> then);

// What is said where there is no tokenizer.
base::Error NoTokenizer();

}  // namespace syncline::serve
