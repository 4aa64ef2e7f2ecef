// What one engine request has given so far.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/request.h"

namespace syncline::serve {

struct Completion {
  std::string id;
  std::uint32_t prompt_tokens = 0;
  std::vector<engine::TokenId> tokens;
  std::string text;
  engine::Logprobs output;  // of `tokens`
  std::optional<engine::Logprobs> input;
  std::string weight_version;  // of the last token
  std::vector<engine::VersionSpan> weight_versions;
  std::vector<engine::VersionSpan> prefill_weight_versions;
  std::uint32_t retractions = 0;
  std::uint32_t cached_tokens = 0;
  bool asked_experts = false;
  std::vector<std::int32_t> experts;  // engine::Event
  std::optional<engine::Finish> finish;
  double seconds = 0;  // from the request to the last event

  void Add(const engine::Event& event);
  bool aborted() const { return finish && finish->kind == engine::Finish::Kind::kAbort; }
};

// [{"version", "start", "end"}, ...]
base::Json SpansJson(const std::vector<engine::VersionSpan>& spans);

}  // namespace syncline::serve
