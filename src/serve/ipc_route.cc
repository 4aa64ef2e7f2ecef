// POST /update_weights_from_ipc: checkpoint-engine's producers send an update past HTTP, one to
// each rank.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "serve/fields.h"
#include "serve/router.h"
#include "serve/update_fields.h"

namespace syncline::serve {
namespace {

using base::Json;
using base::Result;
using update::TensorUpdate;
using update::UpdateReport;

constexpr char kHandles[] = "zmq_handles";

// The endpoint of each rank, by its UUID. An entry of another engine is nothing to us.
void ReadEndpoints(Fields& fields, const std::vector<std::string>& uuids, TensorUpdate& update) {
  const Json* found = fields.Find(kHandles);
  if (found == nullptr) return fields.Refuse(kHandles, "is required");
  const Json::Object* handles = found->object();
  if (handles == nullptr) {
    return fields.Refuse(kHandles,
                         "expected an object {device UUID: endpoint}, got " + Describe(*found));
  }
  for (const auto& [uuid, endpoint] : *handles) {
    if (endpoint.string() == nullptr) {
      return fields.Refuse(kHandles, fmt::format("{}: expected an endpoint as a string, got {}",
                                                 Describe(Json(uuid)), Describe(endpoint)));
    }
  }
  for (const std::string& uuid : uuids) {
    const Json* endpoint = found->Find(uuid);
    if (endpoint != nullptr) update.endpoints.push_back(*endpoint->string());
  }
}

// Of the first rank that no endpoint is for; as SGLang words it.
std::string MissingText(const Json& body, const std::vector<std::string>& uuids) {
  constexpr std::size_t kShown = 8;
  const Json& handles = *body.Find(kHandles);
  std::vector<std::string> given;
  for (const auto& [uuid, endpoint] : *handles.object()) {
    if (given.size() == kShown) {
      given.emplace_back("…");
      break;
    }
    given.push_back(fmt::format("'{}'", uuid.substr(0, 100)));
  }
  const auto missing = std::ranges::find_if(
      uuids, [&](const std::string& uuid) { return handles.Find(uuid) == nullptr; });
  return fmt::format("Device UUID {} not found in {}: [{}]", *missing, kHandles,
                     fmt::join(given, ", "));
}

void FromIpc(Front& front, const Json& body, const ExchangePtr& exchange) {
  const std::vector<std::string>& uuids = front.card().device_uuids;
  TensorUpdate update = {.route = "update_weights_from_ipc"};
  Fields fields(body);
  ReadEndpoints(fields, uuids, update);
  fields.Read("flush_cache", update.flush_cache);
  fields.Read("weight_version", update.weight_version);
  if (!fields.status()) {
    return exchange->Send(InvalidRequest(ErrorStyle::kSglang, fields.status().error().message));
  }
  if (update.endpoints.size() < uuids.size()) {
    return exchange->Send(Outcome(false, MissingText(body, uuids)));
  }
  const std::optional<std::string> label = update.weight_version;
  front.weights().FromTensors(std::move(update), [&front, exchange,
                                                  label](const Result<UpdateReport>& result) {
    exchange->Send(TensorReply(front, result, "IPC weight update completed successfully", label));
  });
}

}  // namespace

void AddIpcRoute(Router& router, Front& front) {
  AddJsonRoute(router, front, "/update_weights_from_ipc", FromIpc, /*update=*/true);
}

}  // namespace syncline::serve
