// The body of /generate, read and checked.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "serve/prompts.h"
#include "serve/samples.h"

namespace syncline::serve {

struct GenerateRequest {
  std::vector<std::string> texts;  // empty where ids were given
  Prompts input_ids;               // empty where texts were given
  std::vector<PromptItem> items;   // one a prompt
  std::string group;  // the client's id where it stands for several requests, else empty
  bool list = false;  // the reply is a list
  bool stream = false;
  bool text_in_logprobs = false;
};

// kInvalidArgument names the field.
base::Result<GenerateRequest> ReadGenerateRequest(const base::Json& body);

}  // namespace syncline::serve
