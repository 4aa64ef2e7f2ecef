#include "serve/meters.h"

#include "engine/engine.h"
#include "update/weights.h"

namespace syncline::serve {

Meters::Meters(base::MetricsRegistry& registry)
    : http_requests(registry.GetCounter("syncline_http_requests_total", "Requests answered")),
      http_client_errors(
          registry.GetCounter("syncline_http_client_errors_total", "Replies with a 4xx status")),
      http_server_errors(
          registry.GetCounter("syncline_http_server_errors_total", "Replies with a 5xx status")),
      generations(registry.GetCounter("syncline_generations_total", "Sequences finished")),
      aborted_generations(
          registry.GetCounter("syncline_generations_aborted_total", "Sequences aborted")),
      prompt_tokens(registry.GetCounter("syncline_prompt_tokens_total", "Prompt tokens taken in")),
      cached_tokens(registry.GetCounter("syncline_cached_tokens_total",
                                        "Prompt tokens that the prefix cache had")),
      generated_tokens(
          registry.GetCounter("syncline_generated_tokens_total", "Tokens given to clients")),
      updates(
          registry.GetCounter("syncline_weight_updates_total", "Weight updates that succeeded")),
      failed_updates(registry.GetCounter("syncline_weight_updates_failed_total",
                                         "Weight updates that failed")),
      unchanged_updates(
          registry.GetCounter("syncline_weight_updates_unchanged_total",
                              "Weight updates with the weights that were live already")),
      joined_updates(registry.GetCounter("syncline_weight_updates_joined_total",
                                         "Requests answered by the update of another request")),
      tensor_updates(registry.GetCounter("syncline_tensor_updates_total",
                                         "Messages with tensors that were taken in")),
      failed_tensor_updates(registry.GetCounter("syncline_tensor_updates_failed_total",
                                                "Messages with tensors that failed")),
      tensor_bytes(registry.GetCounter("syncline_tensor_update_bytes_total",
                                       "Bytes of tensors that were taken in, over all ranks")),
      sessions(registry.GetCounter("syncline_weight_sessions_total", "Update sessions begun")),
      ended_sessions(registry.GetCounter("syncline_weight_sessions_ended_total",
                                         "Update sessions that ended as the client wished")),
      failed_sessions(registry.GetCounter("syncline_weight_sessions_failed_total",
                                          "Ends of update sessions that failed")),
      pulls(registry.GetCounter("syncline_pulls_total", "Pulls that succeeded")),
      failed_pulls(registry.GetCounter("syncline_pulls_failed_total", "Pulls that failed")),
      generation_seconds(registry.GetHistogram("syncline_generation_seconds",
                                               "From the request to its last token")),
      first_token_seconds(registry.GetHistogram("syncline_first_token_seconds",
                                                "From a streamed request to its first token")),
      update_stage_seconds(registry.GetHistogram("syncline_weight_update_stage_seconds",
                                                 "Reading and checking of an update")),
      update_apply_seconds(registry.GetHistogram("syncline_weight_update_apply_seconds",
                                                 "Time of an update in which no forward can run")),
      tensor_stage_seconds(registry.GetHistogram("syncline_tensor_update_stage_seconds",
                                                 "Reading and checking of a message with tensors")),
      tensor_apply_seconds(
          registry.GetHistogram("syncline_tensor_update_apply_seconds",
                                "Time of an update from tensors in which no forward can run")),
      pause_seconds(registry.GetHistogram("syncline_pause_seconds", "From a pause to its end")),
      registry_(registry) {}

std::string Meters::Export(const engine::Stats* stats, const update::SessionState* session) {
  const auto set = [this](std::string_view name, std::string_view help, auto value) {
    registry_.GetGauge(name, help).Set(static_cast<double>(value));
  };
  if (stats != nullptr) {
    set("syncline_running_requests", "Sequences being computed", stats->running);
    set("syncline_waiting_requests", "Sequences that wait for memory", stats->waiting);
    set("syncline_gated_requests", "Sequences that wait for a pause or an update to end",
        stats->gated);
    set("syncline_paused", "1 while generation is paused", stats->paused ? 1 : 0);
    set("syncline_kv_tokens_used", "Tokens in the key-value cache", stats->kv_tokens_used);
    set("syncline_kv_tokens", "Tokens that the key-value cache can hold", stats->kv_tokens_total);
    set("syncline_tokens_per_second", "Generated over the last ten seconds",
        stats->tokens_per_second);
  }
  if (session != nullptr) {
    set("syncline_weight_session_open", "1 while an update session is open", session->open ? 1 : 0);
    set("syncline_weights_incomplete", "1 while the engine holds no whole version",
        session->incomplete ? 1 : 0);
    set("syncline_kv_cache_released", "1 while the key-value cache has given its memory back",
        session->released.kv_cache ? 1 : 0);
    set("syncline_weights_released", "1 while the weights have given their memory back",
        session->released.weights ? 1 : 0);
  }
  return registry_.ToPrometheus();
}

}  // namespace syncline::serve
