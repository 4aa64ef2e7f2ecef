// GET, POST /release_memory_occupation and /resume_memory_occupation: memory goes back to the
// system while a trainer on the same machine needs it.
//
// They go through the disk worker, so that they reach update::Weights in order with updates.
#include <fmt/format.h>

#include <functional>

#include "serve/fields.h"
#include "serve/router.h"

namespace syncline::serve {
namespace {

using base::Json;
using base::Result;
using base::Status;
using update::MemoryParts;

Result<MemoryParts> ReadTags(const Json& body) {
  std::vector<std::string> tags;
  Fields fields(body);
  fields.Read("tags", tags);
  if (tags.empty()) tags = {"kv_cache", "weights", "cuda_graph"};
  MemoryParts parts;
  for (const std::string& tag : tags) {
    if (tag == "kv_cache") {
      parts.kv_cache = true;
    } else if (tag == "weights") {
      parts.weights = true;
    } else if (tag != "cuda_graph") {  // there are none on a CPU
      fields.Refuse(
          "tags", R"(expected "kv_cache", "weights" or "cuda_graph", got )" + Describe(Json(tag)));
    }
  }
  SYNCLINE_TRY(fields.status());
  return parts;
}

// Whatever fails, these clients look for one shape and one status.
http::Response Refused(const base::Error& error) {
  return Failure(ErrorStyle::kSglang, 400, error.message);
}

std::function<void(const Status&)> Answer(const ExchangePtr& exchange) {
  return [exchange](const Status& done) {
    exchange->Send(done ? JsonReply(Json()) : Refused(done.error()));
  };
}

void Release(Front& front, const Json& body, const ExchangePtr& exchange) {
  const Result<MemoryParts> parts = ReadTags(body);
  if (!parts) return exchange->Send(Refused(parts.error()));
  front.weights().ReleaseMemory(*parts, Answer(exchange));
}

void Resume(Front& front, const Json& body, const ExchangePtr& exchange) {
  const Result<MemoryParts> parts = ReadTags(body);
  if (!parts) return exchange->Send(Refused(parts.error()));
  front.weights().ResumeMemory(*parts, Answer(exchange));
}

}  // namespace

void AddMemoryRoutes(Router& router, Front& front) {
  AddQueuedRoute(router, front, {"GET", "POST"}, "/release_memory_occupation", Release);
  AddQueuedRoute(router, front, {"GET", "POST"}, "/resume_memory_occupation", Resume);
}

}  // namespace syncline::serve
