// GET /v1/models, /v1/models/NAME, /v1/loads; POST /v1/completions, /v1/chat/completions.
#include "serve/openai_routes.h"

#include <chrono>

#include "serve/router.h"

namespace syncline::serve {
namespace {

using base::Json;

Json ModelEntry(const Front& front) {
  const auto created =
      std::chrono::duration_cast<std::chrono::seconds>(front.started().time_since_epoch());
  return Json(Json::Object{{"id", front.card().served_name},
                           {"object", "model"},
                           {"created", static_cast<std::int64_t>(created.count())},
                           {"owned_by", "syncline"},
                           {"root", front.card().served_name},
                           {"parent", nullptr},
                           {"max_model_len", std::uint64_t{front.engine().max_context()}}});
}

void ListModels(Front& front, const RequestPtr&, const ExchangePtr& exchange) {
  exchange->Send(JsonReply(
      Json(Json::Object{{"object", "list"}, {"data", Json(Json::Array{ModelEntry(front)})}})));
}

void ShowModel(Front& front, const RequestPtr& request, const ExchangePtr& exchange) {
  const std::string name = request->path.substr(std::string_view("/v1/models/").size());
  if (name != front.card().served_name) {
    return exchange->Send(
        Failure(ErrorStyle::kOpenAi, 404, "the model \"" + name + "\" does not exist"));
  }
  exchange->Send(JsonReply(ModelEntry(front)));
}

}  // namespace

void AddOpenAiRoutes(Router& router, Front& front) {
  const auto add = [&](const char* method, const char* path, auto handle) {
    router.Add(
        {.methods = {method},
         .path = path,
         .level = Level::kNormal,
         .handler = [&front, handle](const RequestPtr& request, const ExchangePtr& exchange) {
           handle(front, request, exchange);
         }});
  };
  add("GET", "/v1/models", ListModels);
  add("GET", "/v1/models/*", ShowModel);
  add("POST", "/v1/completions", HandleCompletions);
  add("POST", "/v1/chat/completions", HandleChat);
}

}  // namespace syncline::serve
