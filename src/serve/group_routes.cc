// POST /init_weights_update_group, /destroy_weights_update_group and /update_weights_from_distributed.
//
// A trainer posts an update and begins to broadcast at the same time, so whatever comes of the request, its
// broadcast must end:
//   1. Names, types and shapes cannot be understood: nobody knows what will come. The group is left, which
//      ends the broadcast with an error.
//   2. They can, but the update must be refused: it is received, then refused.
//   3. Else update::Weights receives it at once, whatever else it is doing, and then updates.
#include <fmt/format.h>

#include <utility>

#include "payload/announced.h"
#include "serve/fields.h"
#include "serve/router.h"
#include "serve/update_fields.h"

namespace syncline::serve {
namespace {

using base::Code;
using base::Json;
using base::Result;
using base::Status;
using update::GroupRequest;
using update::GroupUpdate;
using update::UpdateReport;

constexpr char kDefaultGroup[] = "weight_update_group";

void Init(Front& front, const Json& body, const ExchangePtr& exchange) {
  GroupRequest request = {.address = {.name = kDefaultGroup, .backend = "nccl"}};
  Fields fields(body);
  fields.Require("master_address", request.address.host);
  fields.Require("master_port", request.address.port);
  fields.Require("rank_offset", request.rank_offset);
  fields.Require("world_size", request.address.size);
  fields.Read("group_name", request.address.name);
  fields.Read("backend", request.address.backend);
  if (!fields.status()) {
    return exchange->Send(InvalidRequest(ErrorStyle::kSglang, fields.status().error().message));
  }
  front.weights().JoinGroup(std::move(request), [exchange](const Status& joined) {
    exchange->Send(
        joined ? Outcome(true, "Succeeded to initialize custom process group.")
               : Outcome(false, fmt::format("Failed to initialize custom process group: {}.",
                                            joined.error().message)));
  });
}

void Destroy(Front& front, const Json& body, const ExchangePtr& exchange) {
  std::string name = kDefaultGroup;
  Fields fields(body);
  fields.Read("group_name", name);
  if (!fields.status()) {
    return exchange->Send(InvalidRequest(ErrorStyle::kSglang, fields.status().error().message));
  }
  front.weights().LeaveGroup(std::move(name), [exchange](const Status& left) {
    if (left) {
      return exchange->Send(Outcome(true, "Succeeded to destroy custom process group."));
    }
    const base::Error& error = left.error();
    exchange->Send(Outcome(
        false, error.code == Code::kNotFound
                   ? error.message
                   : fmt::format("Failed to destroy custom process group: {}.", error.message)));
  });
}

struct DistributedRequest {
  GroupUpdate update;
  bool abort_all = false;
};

// What is read apart from what will be broadcast. An error here is a refusal.
void ReadOptions(const Json& body, DistributedRequest& request) {
  Fields fields(body);
  fields.Read("flush_cache", request.update.flush_cache);
  fields.Read("abort_all_requests", request.abort_all);
  fields.Read("weight_version", request.update.weight_version);
  ReadSelector(fields, request.update.selector);
  if (!fields.status()) request.update.refusal = fields.status().error().message;
}

// What will be broadcast. An error here means that nobody knows.
Status ReadTensors(const Json& body, update::GroupTensors& tensors) {
  std::vector<std::string> names;
  std::vector<std::string> dtypes;
  std::vector<std::vector<std::uint64_t>> shapes;
  std::optional<std::string> format;
  Fields fields(body);
  fields.Read("group_name", tensors.group);
  fields.Require("names", names);
  fields.Require("dtypes", dtypes);
  fields.Require("shapes", shapes);
  fields.Read("load_format", format);
  if (format && *format != "flattened_bucket") {
    fields.Refuse("load_format",
                  R"(expected null or "flattened_bucket", got )" + Describe(Json(*format)));
  }
  SYNCLINE_TRY(fields.status());
  tensors.flattened = format.has_value();
  SYNCLINE_ASSIGN(tensors.announced, payload::AnnouncedTensors(names, dtypes, shapes));
  return {};
}

void Refuse(Front& front, const std::string& group, const std::string& why,
            const ExchangePtr& exchange) {
  front.weights().LeaveGroup(group, [exchange, group, why](const Status& left) {
    exchange->Send(InvalidRequest(
        ErrorStyle::kSglang,
        left ? fmt::format("{} (group {} was left: what it brings is not known)", why, group)
             : why));
  });
}

void FromDistributed(Front& front, const Json& body, const ExchangePtr& exchange) {
  DistributedRequest request;
  request.update.tensors.group = kDefaultGroup;
  const Status read = ReadTensors(body, request.update.tensors);
  if (!read) return Refuse(front, request.update.tensors.group, read.error().message, exchange);
  ReadOptions(body, request);
  if (request.abort_all) front.engine().Abort("", engine::Engine::AbortMatch::kAll, "");
  const std::optional<std::string> label = request.update.weight_version;
  front.weights().FromGroup(
      std::move(request.update), [&front, exchange, label](Result<UpdateReport> result) {
        if (!result && result.error().code != Code::kOutOfOrder &&
            !result.error().message.starts_with("Failed to receive weights")) {
          result = base::Annotate(result.error(), "Failed to update parameter online");
        }
        exchange->Send(TensorReply(front, result, "Succeeded to update parameter online.", label));
      });
}

}  // namespace

void AddGroupRoutes(Router& router, Front& front) {
  AddJsonRoute(router, front, "/init_weights_update_group", Init);
  AddJsonRoute(router, front, "/destroy_weights_update_group", Destroy);
  AddJsonRoute(router, front, "/update_weights_from_distributed", FromDistributed,
               /*update=*/true);
}

}  // namespace syncline::serve
