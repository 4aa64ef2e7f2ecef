// What the server says of itself: health, model, start-up options, load, metrics. None of these
// waits for the engine.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>

#include "serve/router.h"
#include "serve/update_fields.h"

namespace syncline::serve {
namespace {

using base::Json;

// An engine whose thread did not come by for so long hangs.
constexpr std::chrono::seconds kAliveWithin{20};

void Health(Front& front, const RequestPtr&, const ExchangePtr& exchange) {
  const bool ready = front.state() == Front::State::kReady;
  const bool alive =
      ready && !front.weights().session().awaiting &&
      std::chrono::steady_clock::now() - front.engine().stats().alive <= kAliveWithin;
  exchange->Send(TextReply("", alive ? 200 : 503));
}

// Of updates from tensors.
Json SessionJson(const update::SessionState& session) {
  const auto text = [](const std::optional<std::string>& value) {
    return value ? Json(*value) : Json();
  };
  return Json(
      Json::Object{{"open", session.open},
                   {"selector", session.open ? Json(update::Name(session.selector)) : Json()},
                   {"loaded", session.loaded},
                   {"open_for_writes", session.open_for_writes},
                   {"weight_version_pending", text(session.weight_version)},
                   {"failure", text(session.failure)},
                   {"pending", NameList(session.pending)},
                   {"incomplete", text(session.incomplete)}});
}

Json::Object ModelInfo(const Front& front) {
  const ModelCard& card = front.card();
  return {
      {"model_path", front.weights().model_path()},
      {"served_model_name", card.served_name},
      {"tokenizer_path", card.tokenizer_path},
      {"is_generation", true},
      {"preferred_sampling_params", nullptr},
      {"weight_version", front.engine().stats().weight_version},
      {"weight_update_session", SessionJson(front.weights().session())},
      {"load_format", "auto"},
      {"reasoning_parser", nullptr},
      {"tool_call_parser", nullptr},
      {"has_image_understanding", false},
      {"has_audio_understanding", false},
      {"model_type", card.model_type},
      {"architectures", Json(Json::Array(card.architectures.begin(), card.architectures.end()))}};
}

void ShowModelInfo(Front& front, const RequestPtr&, const ExchangePtr& exchange) {
  exchange->Send(JsonReply(ModelInfo(front)));
}

// Of the prompt tokens since the start, those that the prefix cache had.
double HitRate(const engine::Stats& stats) {
  const std::uint64_t all = stats.cached_tokens + stats.prompt_tokens;
  return all == 0 ? 0 : static_cast<double>(stats.cached_tokens) / static_cast<double>(all);
}

Json ReleasedJson(const update::MemoryParts& released) {
  Json::Array tags;
  if (released.kv_cache) tags.emplace_back("kv_cache");
  if (released.weights) tags.emplace_back("weights");
  return Json(std::move(tags));
}

Json::Object Load(const Front& front) {
  const engine::Stats stats = front.engine().stats();
  const double usage = stats.kv_tokens_total == 0 ? 0.0
                                                  : static_cast<double>(stats.kv_tokens_used) /
                                                        static_cast<double>(stats.kv_tokens_total);
  return {{"dp_rank", std::uint64_t{0}},
          {"num_running_reqs", std::uint64_t{stats.running}},
          {"num_waiting_reqs", std::uint64_t{stats.waiting} + stats.gated},
          {"num_total_reqs", std::uint64_t{stats.running} + stats.waiting + stats.gated},
          {"num_used_tokens", stats.kv_tokens_used},
          {"max_total_num_tokens", stats.kv_tokens_total},
          {"token_usage", usage},
          {"gen_throughput", stats.tokens_per_second},
          {"cache_hit_rate", HitRate(stats)},
          {"memory_released", ReleasedJson(front.weights().session().released)}};
}

void ShowServerInfo(Front& front, const RequestPtr&, const ExchangePtr& exchange) {
  const engine::Stats stats = front.engine().stats();
  Json::Object info = *front.card().arguments.object();
  const auto set = [&info](const char* name, Json value) {
    for (auto& [known, old] : info) {
      if (known == name) {
        old = std::move(value);
        return;
      }
    }
    info.emplace_back(name, std::move(value));
  };
  for (const auto& [name, value] : ModelInfo(front)) set(name.c_str(), value);
  set("encoder_only", false);
  set("enable_memory_saver", true);
  set("disaggregation_mode", "null");
  set("disaggregation_bootstrap_port", nullptr);
  set("version", front.card().software_version);
  set("startup_time", std::chrono::duration<double>(front.started().time_since_epoch()).count());
  set("kv_events", nullptr);
  set("device_uuids", NameList(front.card().device_uuids));
  Json::Object state = Load(front);
  state.emplace_back("paused", stats.paused);
  state.emplace_back("prompt_tokens", stats.prompt_tokens);
  state.emplace_back("cached_tokens", stats.cached_tokens);
  state.emplace_back("generated_tokens", stats.generated_tokens);
  state.emplace_back("steps", stats.steps);
  state.emplace_back("step_seconds", stats.step_seconds);
  state.emplace_back("collective_seconds", stats.collective_seconds);
  set("internal_states", Json(Json::Array{Json(std::move(state))}));
  exchange->Send(JsonReply(info));
}

void ShowWeightVersion(Front& front, const RequestPtr&, const ExchangePtr& exchange) {
  exchange->Send(
      JsonReply(Json(Json::Object{{"weight_version", front.engine().stats().weight_version}})));
}

void ShowLoads(Front& front, const RequestPtr&, const ExchangePtr& exchange) {
  const auto now =
      std::chrono::time_point_cast<std::chrono::seconds>(std::chrono::system_clock::now());
  exchange->Send(JsonReply(
      Json(Json::Object{{"timestamp", fmt::format("{:%Y-%m-%dT%H:%M:%S+00:00}", fmt::gmtime(now))},
                        {"version", front.card().software_version},
                        {"loads", Json(Json::Array{Json(Load(front))})}})));
}

void ShowMetrics(Front& front, const RequestPtr&, const ExchangePtr& exchange) {
  http::Response response = TextReply("");
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  if (front.has_backend()) {
    const engine::Stats stats = front.engine().stats();
    const update::SessionState session = front.weights().session();
    response.body = front.meters().Export(&stats, &session);
  } else {
    response.body = front.meters().Export(nullptr, nullptr);
  }
  exchange->Send(std::move(response));
}

void ShowRoot(Front&, const RequestPtr&, const ExchangePtr& exchange) {
  exchange->Send(TextReply("Syncline inference engine: see /model_info and /v1/models.\n"));
}

}  // namespace

void AddInfoRoutes(Router& router, Front& front) {
  const auto add = [&](const char* path, Level level, bool needs_model, auto handle) {
    router.Add({.methods = {"GET"},
                .path = path,
                .level = level,
                .handler = [&front, handle](
                               const RequestPtr& request,
                               const ExchangePtr& exchange) { handle(front, request, exchange); },
                .needs_model = needs_model});
  };
  add("/health", Level::kOpen, false, Health);
  add("/health_generate", Level::kOpen, false, Health);
  add("/ping", Level::kNormal, false, Health);  // asked by checkpoint-engine's scripts
  add("/metrics", Level::kOpen, false, ShowMetrics);
  add("/", Level::kNormal, false, ShowRoot);
  add("/model_info", Level::kNormal, true, ShowModelInfo);
  add("/get_model_info", Level::kNormal, true, ShowModelInfo);
  add("/server_info", Level::kNormal, true, ShowServerInfo);
  add("/get_server_info", Level::kNormal, true, ShowServerInfo);
  add("/get_weight_version", Level::kNormal, true, ShowWeightVersion);
  add("/weight_version", Level::kNormal, true, ShowWeightVersion);
  add("/v1/loads", Level::kNormal, true, ShowLoads);
}

}  // namespace syncline::serve
