// POST /update_weights_from_disk and /pull_weights.
//
// Requests for the same update (or pull) at the same time share one; an update to a labelled
// version that is live already, from files that have not changed since, is answered without a load.
// Others wait for each other in update::Weights.
#include <fmt/format.h>

#include "serve/fields.h"
#include "serve/fingerprint.h"
#include "serve/router.h"

namespace syncline::serve {
namespace {

using base::Json;
using base::Result;
using update::DiskUpdate;
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
                                     {"bytes", report.bytes},
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

// Is exactly this version live?
bool IsLive(const Front& front, const DiskUpdate& update, const std::string& fingerprint) {
  const std::optional<LoadedVersion> loaded = front.loaded();
  return loaded && update.weight_version && loaded->path == update.path &&
         loaded->label == *update.weight_version && loaded->fingerprint == fingerprint &&
         front.engine().stats().weight_version == loaded->label;
}

// Runs the update that all requests for it share. `fingerprint`: of the files before they are read.
void StartUpdate(Front& front, const DiskUpdate& update, const std::string& fingerprint,
                 const std::function<void(Result<UpdateReport>)>& finish) {
  front.weights().FromDisk(
      update, [&front, update, fingerprint, finish](const Result<UpdateReport>& result) {
        Meters& meters = front.meters();
        if (result) {
          meters.updates.Add();
          meters.update_stage_seconds.Observe(result->stage_seconds);
          meters.update_apply_seconds.Observe(result->apply_seconds);
          const bool known = update.weight_version && !fingerprint.empty();
          front.SetLoaded(
              known ? std::optional(LoadedVersion{update.path, *update.weight_version, fingerprint})
                    : std::nullopt);
        } else {
          meters.failed_updates.Add();
        }
        finish(result);
      });
}

// On the disk worker.
void RunUpdate(Front& front, const DiskUpdate& update, const ExchangePtr& exchange) {
  const std::string fingerprint = Fingerprint(update.path).value_or("");
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
  if (request->abort_all) front.engine().Abort("", engine::Engine::AbortMatch::kAll, "");
  front.disk_worker().Post(
      [&front, exchange, update = request->update] { RunUpdate(front, update, exchange); });
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

void Pull(Front& front, const Json& body, const ExchangePtr& exchange) {
  const Result<update::PullRequest> request = ReadPull(body);
  if (!request) {
    return exchange->Send(InvalidRequest(ErrorStyle::kSglang, request.error().message));
  }
  const std::string key = ToText(
      Json(Json::Array{Json(request->source), Json(request->replica), Json(request->version)}));
  front.joined_pulls.Run(
      key,
      [exchange](const Result<std::monostate>& result, bool joined) {
        Json::Object reply = {{"success", result.has_value()},
                              {"message", result ? "Success." : result.error().message.c_str()},
                              {"joined", joined}};
        exchange->Send(JsonReply(reply, result ? 200 : 400));
      },
      [&](const std::function<void(Result<std::monostate>)>& finish) {
        front.weights().Pull(*request, [&front, finish](const base::Status& pulled) {
          (pulled ? front.meters().pulls : front.meters().failed_pulls).Add();
          if (pulled) return finish(std::monostate());
          finish(std::unexpected(pulled.error()));
        });
      });
}

}  // namespace

void AddWeightRoutes(Router& router, Front& front) {
  AddJsonRoute(router, front, "/update_weights_from_disk", UpdateFromDisk);
  AddJsonRoute(router, front, "/pull_weights", Pull);
}

}  // namespace syncline::serve
