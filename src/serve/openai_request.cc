#include "serve/openai_request.h"

#include "serve/sampling.h"

namespace syncline::serve {

using base::Json;

void ReadOpenAiOptions(Fields& fields, OpenAiOptions& options) {
  ReadOpenAiSampling(fields, options.item.sampling, options.item.samples);
  fields.Read("max_tokens", options.max_tokens);
  fields.Read("max_completion_tokens", options.max_tokens);
  fields.Read("stream", options.stream);
  fields.Read("rid", options.item.id);
  std::string extra_key;
  std::string cache_salt;
  fields.Read("extra_key", extra_key);
  fields.Read("cache_salt", cache_salt);
  options.item.cache_partition = CachePartition(extra_key, cache_salt);
  if (const Json* stream_options = fields.Find("stream_options")) {
    Fields inner(*stream_options, "stream_options.");
    inner.Read("include_usage", options.include_usage);
    fields.Adopt(inner);
  }
}

base::Result<Json> ParseOpenAiBody(const http::Request& request) {
  const std::string* type = request.Header("content-type");
  if (type == nullptr || !type->starts_with("application/json")) {
    return base::Fail(base::Code::kInvalidArgument,
                      "Unsupported Media Type: expected application/json, got " +
                          (type == nullptr ? std::string("none") : *type));
  }
  return ParseBody(request);
}

}  // namespace syncline::serve
