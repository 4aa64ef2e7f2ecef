// What the two OpenAI routes share of their requests.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/json.h"
#include "serve/fields.h"
#include "serve/router.h"
#include "serve/samples.h"

namespace syncline::serve {

struct OpenAiOptions {
  PromptItem item;  // of every prompt of the call
  std::optional<std::uint32_t> max_tokens;
  bool stream = false;
  bool include_usage = false;  // a last chunk that carries the usage
};

// Sampling, length, streaming and the id; not the prompt and not the log-probabilities.
void ReadOpenAiOptions(Fields& fields, OpenAiOptions& options);

// The JSON body of a request whose content type is JSON.
base::Result<base::Json> ParseOpenAiBody(const http::Request& request);

}  // namespace syncline::serve
