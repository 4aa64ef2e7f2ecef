#include "serve/samples.h"

#include <fmt/format.h>

namespace syncline::serve {
namespace {

constexpr std::uint64_t kMaxResults = 16384;           // of one call
constexpr std::uint64_t kMaxPromptTokens = 64U << 20;  // of one call, for each sample anew

base::Status CheckSize(const std::vector<PromptItem>& items, const Prompts& prompts) {
  std::uint64_t results = 0;
  std::uint64_t tokens = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    results += items[i].samples;
    tokens += prompts[i].size() * items[i].samples;
  }
  if (results <= kMaxResults && tokens <= kMaxPromptTokens) return {};
  return base::Fail(base::Code::kLimitExceeded,
                    fmt::format("one call may ask for {} results and {} prompt tokens in all, got "
                                "{} and {}",
                                kMaxResults, kMaxPromptTokens, results, tokens));
}

std::string SampleId(Front& front, const PromptItem& item, std::uint32_t sample) {
  if (item.id.empty()) return front.NewId();
  return item.samples == 1 ? item.id : fmt::format("{}_{}", item.id, sample);
}

}  // namespace

std::string CachePartition(const std::string& extra_key, const std::string& cache_salt) {
  if (extra_key.empty() && cache_salt.empty()) return "";
  return ToText(base::Json(base::Json::Array{base::Json(extra_key), base::Json(cache_salt)}));
}

base::Result<std::vector<engine::Request>> ExpandSamples(Front& front,
                                                         const std::vector<PromptItem>& items,
                                                         const Prompts& prompts) {
  if (prompts.size() != items.size()) {
    return base::Fail(
        base::Code::kInternal,
        fmt::format("the tokenizer: expected {} prompts, got {}", items.size(), prompts.size()));
  }
  SYNCLINE_TRY(CheckSize(items, prompts));
  std::vector<engine::Request> requests;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const PromptItem& item = items[i];
    for (std::uint32_t sample = 0; sample < item.samples; ++sample) {
      requests.push_back({.id = SampleId(front, item, sample),
                          .input_ids = prompts[i],
                          .sampling = item.sampling,
                          .logprobs = item.logprobs,
                          .experts_from = item.experts_from,
                          .cache_partition = item.cache_partition});
      // With one seed all samples of a prompt would be the same.
      if (item.sampling.seed) requests.back().sampling.seed = *item.sampling.seed + sample;
    }
  }
  return requests;
}

}  // namespace syncline::serve
