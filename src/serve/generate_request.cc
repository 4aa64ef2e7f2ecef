#include "serve/generate_request.h"

#include <fmt/format.h>

#include <algorithm>

#include "serve/fields.h"
#include "serve/sampling.h"

namespace syncline::serve {
namespace {

using base::Json;

constexpr const char* kUnsupported[] = {
    "image_data",           "audio_data",          "video_data",
    "input_embeds",         "lora_path",           "session_params",
    "return_hidden_states", "return_indexer_topk", "custom_logit_processor",
    "bootstrap_host",       "bootstrap_room"};

void ReadPrompts(Fields& fields, GenerateRequest& request) {
  const Json* ids = fields.Find("input_ids");
  const Json* text = fields.Find("text");
  if (ids == nullptr && text == nullptr) {
    return fields.Refuse("input_ids", "either text or input_ids must be given");
  }
  const Json& prompts = ids != nullptr ? *ids : *text;
  if (prompts.array() != nullptr && prompts.array()->empty()) {
    return fields.Refuse(ids != nullptr ? "input_ids" : "text", "the list is empty");
  }
  if (ids != nullptr) {  // as in SGLang, they win over a text
    request.list = ids->array() != nullptr && ids->array()->front().array() != nullptr;
    if (request.list) {
      fields.Read("input_ids", request.input_ids);
    } else {
      fields.Read("input_ids", request.input_ids.emplace_back());
    }
  } else {
    request.list = text->array() != nullptr;
    if (request.list) {
      fields.Read("text", request.texts);
    } else {
      fields.Read("text", request.texts.emplace_back());
    }
  }
}

// One id for the whole call, or one for each prompt.
void ReadIds(Fields& fields, bool batch, GenerateRequest& request) {
  const Json* rid = fields.Find("rid");
  if (rid == nullptr) return;
  std::vector<PromptItem>& items = request.items;
  if (rid->array() == nullptr) {
    std::string id;
    fields.Read("rid", id);
    if (request.list) request.group = id;
    for (std::size_t i = 0; i < items.size(); ++i) {
      items[i].id = batch && !id.empty() ? fmt::format("{}_{}", id, i) : id;
    }
    return;
  }
  std::vector<std::string> ids;
  fields.Read("rid", ids);
  if (ids.size() != items.size()) {
    return fields.Refuse("rid", fmt::format("expected {} ids, got {}", items.size(), ids.size()));
  }
  for (std::size_t i = 0; i < items.size(); ++i) items[i].id = ids[i];
}

void ReadItem(Fields& fields, std::size_t index, std::size_t count, PromptItem& item) {
  if (const Json* params = fields.FindFor(index, count, "sampling_params", false)) {
    const bool own = fields.Find("sampling_params")->array() != nullptr;
    Fields sampling(*params, own ? fmt::format("sampling_params[{}].", index) : "sampling_params.");
    ReadSampling(sampling, item.sampling, item.samples);
    fields.Adopt(sampling);
  }
  fields.ReadFor(index, count, "return_logprob", item.logprobs.enabled);
  fields.ReadFor(index, count, "logprob_start_len", item.logprobs.start);
  fields.ReadFor(index, count, "top_logprobs_num", item.logprobs.top);
  fields.ReadFor(index, count, "token_ids_logprob", item.logprobs.tokens);
  bool experts = false;
  std::uint32_t experts_from = 0;
  fields.ReadFor(index, count, "return_routed_experts", experts);
  fields.ReadFor(index, count, "routed_experts_start_len", experts_from);
  if (experts) item.experts_from = experts_from;
  std::string extra_key;
  std::string cache_salt;
  fields.ReadFor(index, count, "extra_key", extra_key);
  fields.ReadFor(index, count, "cache_salt", cache_salt);
  item.cache_partition = CachePartition(extra_key, cache_salt);
}

// One engine runs all: there are no ranks to choose from.
void RefuseRanks(Fields& fields) {
  for (const char* name : {"routed_dp_rank", "data_parallel_rank"}) {
    std::int64_t rank = 0;
    fields.Read(name, rank);
    if (rank > 0) fields.Refuse(name, "there is no data parallelism inside this engine");
  }
}

}  // namespace

base::Result<GenerateRequest> ReadGenerateRequest(const Json& body) {
  GenerateRequest request;
  Fields fields(body);
  for (const char* name : kUnsupported) fields.Unsupported(name);
  RefuseRanks(fields);
  ReadPrompts(fields, request);
  SYNCLINE_TRY(fields.status());
  const std::size_t count = std::max(request.texts.size(), request.input_ids.size());
  const bool batch = request.list;
  request.items.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    ReadItem(fields, i, count, request.items[i]);
    request.list = request.list || request.items[i].samples > 1;
  }
  ReadIds(fields, batch, request);
  fields.Read("stream", request.stream);
  fields.Read("return_text_in_logprobs", request.text_in_logprobs);
  SYNCLINE_TRY(fields.status());
  return request;
}

}  // namespace syncline::serve
