// From the prompts of a call to its engine requests: one for each sample of each prompt.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/request.h"
#include "serve/front.h"
#include "serve/prompts.h"

namespace syncline::serve {

// What is asked of one prompt.
struct PromptItem {
  engine::SamplingParams sampling;
  engine::LogprobParams logprobs;
  std::uint32_t samples = 1;
  std::string id;  // of the request; several samples get "ID_0", "ID_1"… Empty: made here
  std::optional<std::uint32_t> experts_from;  // engine::Request, as the next one
  std::string cache_partition;
};

// One text for both of SGLang's names of a part of the prefix cache; none where both are empty.
std::string CachePartition(const std::string& extra_key, const std::string& cache_salt);

// Samples of a prompt stand together, prompts in their order. `prompts` has one entry an item.
// kLimitExceeded where the call asks for too much at once.
base::Result<std::vector<engine::Request>> ExpandSamples(Front& front,
                                                         const std::vector<PromptItem>& items,
                                                         const Prompts& prompts);

}  // namespace syncline::serve
