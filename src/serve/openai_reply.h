// What the replies of the two OpenAI routes share.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "serve/completion.h"

namespace syncline::serve {

struct OpenAiHead {
  std::string id;
  std::string model;
  std::int64_t created = 0;  // seconds since the epoch
  std::uint32_t samples = 1;

  // {"id", "object", "created", "model", "choices"}
  base::Json::Object Object(std::string_view object, base::Json::Array choices) const;
};

OpenAiHead MakeHead(std::string id, std::string model, std::uint32_t samples);

// "stop", "length" or "abort"; null while there is none.
base::Json FinishName(const Completion& result);

// Prompts are counted once, whatever the number of their samples.
base::Json Usage(const std::vector<Completion>& results, std::uint32_t samples);

// {"weight_version", "weight_versions", "prefill_weight_versions"} of one result; the last one where
// its prompt was computed.
base::Json VersionMetadata(const Completion& result);

// The choice's own fields after those that the route gives it.
void AddFinish(base::Json::Object& choice, const Completion& result);

}  // namespace syncline::serve
