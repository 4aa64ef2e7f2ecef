// What the server counts; served by /metrics.
#pragma once

#include "base/metrics.h"

namespace syncline::engine {
struct Stats;
}

namespace syncline::update {
struct SessionState;
}

namespace syncline::serve {

// References into a registry, which must outlive this. Thread-safe.
class Meters {
 public:
  explicit Meters(base::MetricsRegistry& registry);

  // The registry's text, with the gauges set to what the engine and the session of updates say
  // (null: not there).
  std::string Export(const engine::Stats* stats, const update::SessionState* session);

  base::Counter& http_requests;
  base::Counter& http_client_errors;
  base::Counter& http_server_errors;
  base::Counter& generations;
  base::Counter& aborted_generations;
  base::Counter& prompt_tokens;
  base::Counter& cached_tokens;
  base::Counter& generated_tokens;
  base::Counter& updates;
  base::Counter& failed_updates;
  base::Counter& unchanged_updates;  // with the weights that were live already
  base::Counter& joined_updates;
  base::Counter& tensor_updates;  // messages with tensors
  base::Counter& failed_tensor_updates;
  base::Counter& tensor_bytes;
  base::Counter& sessions;         // begun
  base::Counter& ended_sessions;   // as the client wished, an undone one too
  base::Counter& failed_sessions;  // at their end
  base::Counter& pulls;
  base::Counter& failed_pulls;
  base::Histogram& generation_seconds;
  base::Histogram& first_token_seconds;
  base::Histogram& update_stage_seconds;
  base::Histogram& update_apply_seconds;
  base::Histogram& tensor_stage_seconds;
  base::Histogram& tensor_apply_seconds;  // at the end of a session, or of an update without one
  base::Histogram& pause_seconds;

 private:
  base::MetricsRegistry& registry_;
};

}  // namespace syncline::serve
