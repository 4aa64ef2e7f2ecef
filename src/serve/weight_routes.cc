// POST /update_weights_from_disk and /pull_weights.
//
// Requests for the same update (or pull) at the same time share one; an update to a labelled
// version that is live already, from files that have not changed since, is answered without a load.
// Others wait for each other in update::Weights.
#include <fmt/format.h>

#include <algorithm>

#include "serve/fields.h"
#include "serve/fingerprint.h"
#include "serve/router.h"

namespace syncline::serve {
namespace {

using base::Json;
using base::Result;
using update::DiskUpdate;
using update::HostPull;
using update::UpdateReport;

struct UpdateRequest {
  DiskUpdate update;
  bool abort_all = false;
};

Result<UpdateRequest> ReadUpdate(const Json& body) {
  UpdateRequest request;
  Fields fields(body);
  fields.RequirePath("model_path", request.update.path);
  fields.Read("weight_version", request.update.weight_version);
  fields.Read("flush_cache", request.update.flush_cache);
  fields.Read("abort_all_requests", request.abort_all);
  std::string format = "auto";
  fields.Read("load_format", format);
  if (format != "auto" && format != "safetensors") {
    fields.Refuse("load_format",
                  "expected \"auto\" or \"safetensors\", got " + Describe(Json(format)));
  }
  SYNCLINE_TRY(fields.status());
  return request;
}

std::string VersionSuffix(const DiskUpdate& update) {
  if (!update.weight_version) return "";
  return fmt::format(" Weight version updated to {}.", *update.weight_version);
}

http::Response UpdateReply(std::string message, const UpdateReport& report, bool joined,
                           bool already) {
  return JsonReply(Json(Json::Object{{"success", true},
                                     {"message", std::move(message)},
                                     {"num_paused_requests", std::uint64_t{0}},
                                     {"stage_seconds", report.stage_seconds},
                                     {"apply_seconds", report.apply_seconds},
                                     {"tensors", report.tensors},
                                     {"skipped_tensors", report.skipped},
                                     {"bytes", report.bytes},
                                     {"unchanged", report.unchanged},
                                     {"joined", joined},
                                     {"already_loaded", already}}));
}

http::Response UpdateFailure(const base::Error& error) {
  return JsonReply(
      Json(Json::Object{
          {"success", false},
          {"message",
           fmt::format("Failed to update weights: {}.\nRolling back to original weights.",
                       error.message)},
          {"num_paused_requests", std::uint64_t{0}}}),
      400);
}

// Is exactly this version live? Not during a session, nor after an update that failed half-way, nor
// without memory.
bool IsLive(const Front& front, const DiskUpdate& update, const std::string& fingerprint) {
  const update::SessionState session = front.weights().session();
  if (session.open || session.incomplete || session.released.weights) return false;
  const std::optional<LoadedVersion> loaded = front.loaded();
  return loaded && update.weight_version && loaded->path == update.path &&
         loaded->label == *update.weight_version && loaded->fingerprint == fingerprint &&
         front.engine().stats().weight_version == loaded->label;
}

// Runs the update that all requests for it share. `fingerprint`: of the files before they are read.
void StartUpdate(Front& front, const DiskUpdate& update, const std::string& fingerprint,
                 const std::function<void(Result<UpdateReport>)>& finish) {
  front.weights().FromDisk(update, [&front, update, fingerprint, finish,
                                    since = front.changes()](const Result<UpdateReport>& result) {
    Meters& meters = front.meters();
    if (result) {
      meters.updates.Add();
      if (result->unchanged) meters.unchanged_updates.Add();
      meters.update_stage_seconds.Observe(result->stage_seconds);
      meters.update_apply_seconds.Observe(result->apply_seconds);
      const bool known = update.weight_version && !fingerprint.empty();
      front.SetLoaded(
          known ? std::optional(LoadedVersion{update.path, *update.weight_version, fingerprint})
                : std::nullopt,
          since);
    } else {
      meters.failed_updates.Add();
    }
    finish(result);
  });
}

// On the disk worker.
void RunUpdate(Front& front, const DiskUpdate& update, const ExchangePtr& exchange) {
  const std::string fingerprint = Fingerprint(front.paths.files(), update.path).value_or("");
  if (!fingerprint.empty() && IsLive(front, update, fingerprint)) {
    return exchange->Send(UpdateReply(fmt::format("Succeeded to update model weights. Already at "
                                                  "weight version {}.",
                                                  *update.weight_version),
                                      {}, false, true));
  }
  const Json label = update.weight_version ? Json(*update.weight_version) : Json();
  const std::string key =
      ToText(Json(Json::Array{Json(update.path), Json(update.flush_cache), label}));
  front.joined_updates.Run(
      key,
      [&front, exchange, update](const Result<UpdateReport>& result, bool joined) {
        if (joined) front.meters().joined_updates.Add();
        exchange->Send(
            result ? UpdateReply("Succeeded to update model weights." + VersionSuffix(update),
                                 *result, joined, false)
                   : UpdateFailure(result.error()));
      },
      [&](const std::function<void(Result<UpdateReport>)>& finish) {
        StartUpdate(front, update, fingerprint, finish);
      });
}

void UpdateFromDisk(Front& front, const Json& body, const ExchangePtr& exchange) {
  const Result<UpdateRequest> request = ReadUpdate(body);
  if (!request) {
    return exchange->Send(InvalidRequest(ErrorStyle::kSglang, request.error().message));
  }
  front.disk_worker().Post([&front, exchange, request = *request] {
    const base::Status allowed = front.paths.CheckPath("model_path", request.update.path);
    if (!allowed) return exchange->Send(Outcome(false, allowed.error().message));
    if (request.abort_all) front.engine().Abort("", engine::Engine::AbortMatch::kAll, "");
    RunUpdate(front, request.update, exchange);
  });
}

Result<update::PullRequest> ReadPull(const Json& body) {
  update::PullRequest request;
  Fields fields(body);
  fields.RequirePath("source_dir", request.source);
  fields.RequirePath("local_checkpoint_dir", request.replica);
  fields.Require("target_version", request.version);
  SYNCLINE_TRY(fields.status());
  return request;
}

// "host 10.0.0.2 (node 1)"
std::string HostText(const HostPull& pull) {
  return fmt::format("host {} (node {})", pull.host, pull.node_rank);
}

std::string HeldText(const HostPull& pull) {
  return pull.outcome.held ? fmt::format("at version {}", *pull.outcome.held)
                           : "without a whole version";
}

// Of one host only its own words. Of several: who failed and why, and where all of them are now.
std::string PullMessage(const std::vector<HostPull>& pulls) {
  if (pulls.size() == 1) {
    return pulls[0].outcome.status ? "Success." : pulls[0].outcome.status.error().message;
  }
  std::string failed;
  std::string now;
  for (const HostPull& pull : pulls) {
    if (!pull.outcome.status) {
      failed += fmt::format("{}{}: {}", failed.empty() ? "" : "; ", HostText(pull),
                            pull.outcome.status.error().message);
    }
    now += fmt::format("{}{} is {}", now.empty() ? "" : ", ", HostText(pull), HeldText(pull));
  }
  return failed.empty() ? "Success." : fmt::format("{}. Now {}.", failed, now);
}

http::Response PullReply(const std::vector<HostPull>& pulls, bool joined) {
  Json::Array hosts;
  bool success = true;
  for (const HostPull& pull : pulls) {
    const base::Status& status = pull.outcome.status;
    success = success && status.has_value();
    hosts.emplace_back(
        Json::Object{{"host", pull.host},
                     {"node_rank", std::uint64_t{pull.node_rank}},
                     {"success", status.has_value()},
                     {"message", status ? "Success." : status.error().message.c_str()},
                     {"version", pull.outcome.held ? Json(*pull.outcome.held) : Json()}});
  }
  return JsonReply(Json(Json::Object{{"success", success},
                                     {"message", PullMessage(pulls)},
                                     {"joined", joined},
                                     {"hosts", Json(std::move(hosts))}}),
                   success ? 200 : 400);
}

base::Status CheckPull(const Front& front, const update::PullRequest& request) {
  SYNCLINE_TRY(front.paths.CheckSource("source_dir", request.source));
  return front.paths.CheckPath("local_checkpoint_dir", request.replica);
}

// On the disk worker.
void RunPull(Front& front, const update::PullRequest& request, const ExchangePtr& exchange) {
  if (const base::Status allowed = CheckPull(front, request); !allowed) {
    return exchange->Send(Outcome(false, allowed.error().message));
  }
  const std::string key =
      ToText(Json(Json::Array{Json(request.source), Json(request.replica), Json(request.version)}));
  front.joined_pulls.Run(
      key,
      [exchange](const Result<std::vector<HostPull>>& pulls, bool joined) {
        exchange->Send(PullReply(*pulls, joined));
      },
      [&](const std::function<void(Result<std::vector<HostPull>>)>& finish) {
        front.weights().Pull(request, [&front, finish](std::vector<HostPull> pulls) {
          const bool all = std::ranges::all_of(
              pulls, [](const HostPull& pull) { return pull.outcome.status.has_value(); });
          (all ? front.meters().pulls : front.meters().failed_pulls).Add();
          finish(std::move(pulls));
        });
      });
}

void Pull(Front& front, const Json& body, const ExchangePtr& exchange) {
  const Result<update::PullRequest> request = ReadPull(body);
  if (!request) {
    return exchange->Send(InvalidRequest(ErrorStyle::kSglang, request.error().message));
  }
  front.disk_worker().Post(
      [&front, exchange, request = *request] { RunPull(front, request, exchange); });
}

}  // namespace

void AddWeightRoutes(Router& router, Front& front) {
  AddJsonRoute(router, front, "/update_weights_from_disk", UpdateFromDisk, /*update=*/true);
  AddJsonRoute(router, front, "/pull_weights", Pull);
}

}  // namespace syncline::serve
