// Pause, continue, flush, abort, and the label of the weights.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <optional>

#include "serve/fields.h"
#include "serve/router.h"

namespace syncline::serve {
namespace {

using base::Json;
using base::Status;
using engine::Engine;

http::Response Acknowledge(std::string_view message) {
  return JsonReply(Json(Json::Object{{"message", message}, {"status", "ok"}}));
}

void Pause(Front& front, const Json& body, const ExchangePtr& exchange) {
  std::string name = "abort";
  Fields fields(body);
  fields.Read("mode", name);
  engine::PauseMode mode = engine::PauseMode::kAbort;
  if (name == "retract") {
    mode = engine::PauseMode::kRetract;
  } else if (name == "in_place") {
    mode = engine::PauseMode::kInPlace;
  } else if (name != "abort") {
    fields.Refuse("mode",
                  "expected \"abort\", \"retract\" or \"in_place\", got " + Describe(Json(name)));
  }
  if (!fields.status()) {
    return exchange->Send(InvalidRequest(ErrorStyle::kSglang, fields.status().error().message));
  }
  front.pause_order.AfterChanges([&front, mode, exchange] {
    front.NotePause();
    front.engine().Pause(mode, [exchange](const Status& paused) {
      exchange->Send(paused ? Acknowledge("Generation paused successfully.")
                            : Failure(ErrorStyle::kSglang, paused.error()));
    });
  });
}

void Continue(Front& front, const Json&, const ExchangePtr& exchange) {
  front.pause_order.AfterUpdates([&front, exchange] {
    front.engine().Continue([&front, exchange](const Status& continued) {
      front.NoteContinue();
      exchange->Send(continued ? Acknowledge("Generation continued successfully.")
                               : Failure(ErrorStyle::kSglang, continued.error()));
    });
  });
}

// Seconds in the query; nothing for anything else.
std::optional<std::chrono::milliseconds> ReadTimeout(const http::Request& request) {
  const std::string* text = request.Query("timeout");
  if (text == nullptr) return std::chrono::milliseconds(0);
  double seconds = 0;
  const char* end = text->data() + text->size();
  const auto parsed = std::from_chars(text->data(), end, seconds);
  constexpr double kDay = 86400;
  if (parsed.ec != std::errc() || parsed.ptr != end || !(seconds >= 0)) return std::nullopt;
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::min(seconds, kDay) * 1000));
}

std::string FlushFault(const base::Error& error) {
  if (error.code == base::Code::kLocked) return "Another flush_cache is already in progress.";
  if (error.code == base::Code::kTimeout) return "Timed out waiting for idle state.";
  return "Flush cache failed. " + error.message;
}

void Flush(Front& front, const RequestPtr& request, const ExchangePtr& exchange) {
  const auto wait = ReadTimeout(*request);
  if (!wait) {
    return exchange->Send(TextReply("timeout: expected a number of seconds of at least 0, got \"" +
                                        *request->Query("timeout") + "\"\n",
                                    400));
  }
  front.engine().Flush(*wait, [exchange](const Status& flushed) {
    if (flushed) return exchange->Send(TextReply("Cache flushed.\n"));
    exchange->Send(TextReply(FlushFault(flushed.error()) + "\n", 400));
  });
}

// One id may stand for the requests of a batch.
void AbortExact(Front& front, const std::string& rid, const std::string& message) {
  const auto group = front.groups.find(rid);
  if (group == front.groups.end()) {
    return front.engine().Abort(rid, Engine::AbortMatch::kExact, message);
  }
  for (const std::string& id : group->second) {
    front.engine().Abort(id, Engine::AbortMatch::kExact, message);
  }
}

void Abort(Front& front, const Json& body, const ExchangePtr& exchange) {
  std::string rid;
  std::string message;
  bool all = false;
  bool prefix = false;
  Fields fields(body);
  fields.Read("rid", rid);
  fields.Read("abort_all", all);
  fields.Read("prefix", prefix);
  fields.Read("abort_message", message);
  if (!fields.status()) {
    return exchange->Send(InvalidRequest(ErrorStyle::kSglang, fields.status().error().message));
  }
  // On the worker: after the generate calls that came before.
  front.worker().Post([&front, exchange, rid, message, all, prefix] {
    if (all) {
      front.engine().Abort("", Engine::AbortMatch::kAll, message);
    } else if (prefix && !rid.empty()) {
      front.engine().Abort(rid, Engine::AbortMatch::kPrefix, message);
    } else if (!rid.empty()) {
      AbortExact(front, rid, message);
    }
    exchange->Send({.status = 200, .body = ""});
  });
}

void UpdateVersion(Front& front, const Json& body, const ExchangePtr& exchange) {
  std::string version;
  bool abort_all = true;
  Fields fields(body);
  fields.Require("new_version", version);
  fields.Read("abort_all_requests", abort_all);
  if (!fields.status()) {
    return exchange->Send(InvalidRequest(ErrorStyle::kSglang, fields.status().error().message));
  }
  front.worker().Post([&front, exchange, version, abort_all] {
    if (abort_all) front.engine().Abort("", Engine::AbortMatch::kAll, "");
    front.weights().SetVersion(version, [&front, exchange, version](const Status& set) {
      if (!set) {
        return exchange->Send(
            Outcome(false, "Failed to update weight version: " + set.error().message));
      }
      Json::Object reply = {{"success", true},
                            {"message", "Weight version updated to " + version},
                            {"new_version", version}};
      // In a session: its end sets the label.
      if (front.weights().session().open) reply.emplace_back("pending", true);
      exchange->Send(JsonReply(Json(std::move(reply))));
    });
  });
}

}  // namespace

void AddControlRoutes(Router& router, Front& front) {
  AddJsonRoute(router, front, "/pause_generation", Pause);
  AddJsonRoute(router, front, "/continue_generation", Continue);
  AddJsonRoute(router, front, "/abort_request", Abort);
  AddJsonRoute(router, front, "/update_weight_version", UpdateVersion);
  router.Add({.methods = {"GET", "POST"},
              .path = "/flush_cache",
              .level = Level::kAdminOptional,
              .handler = [&front](const RequestPtr& request, const ExchangePtr& exchange) {
                Flush(front, request, exchange);
              }});
}

}  // namespace syncline::serve
