// POST /init_weights_send_group_for_remote_instance and /send_weights_to_remote_instance: the live
// weights for another engine that starts; and GET /seed_info, by which it sees whether both are
// alike.
//
// A request to the first that names no `ports` is answered at once with those that were chosen.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <utility>

#include "serve/fields.h"
#include "serve/router.h"

namespace syncline::serve {
namespace {

using base::Json;
using base::Result;
using update::SeedGroups;
using update::SeedReport;

// "40001,40002"
bool ReadPorts(std::string_view text, std::vector<std::uint16_t>& ports) {
  while (true) {
    const std::string_view one = text.substr(0, text.find(','));
    std::uint16_t& port = ports.emplace_back();
    const auto [rest, fault] = std::from_chars(one.data(), one.data() + one.size(), port);
    if (fault != std::errc() || rest != one.data() + one.size() || port == 0) return false;
    if (one.size() == text.size()) return true;
    text.remove_prefix(one.size() + 1);
  }
}

Result<SeedGroups> ReadGroups(const Json& body) {
  SeedGroups groups = {.name = "weight_send_group", .backend = "nccl"};
  std::optional<std::string> ports;
  Fields fields(body);
  fields.Require("master_address", groups.host);
  fields.Read("ports", ports);
  fields.Require("group_rank", groups.rank);
  fields.Require("world_size", groups.size);
  fields.Read("group_name", groups.name);
  fields.Read("backend", groups.backend);
  if (groups.name.empty()) fields.Refuse("group_name", "is empty");
  if (groups.rank != 0) fields.Refuse("group_rank", "the engine that sends is rank 0");
  if (ports && !ReadPorts(*ports, groups.ports)) {
    fields.Refuse("ports", "expected numbers with commas between them, got " + Describe(*ports));
  }
  SYNCLINE_TRY(fields.status());
  return groups;
}

void InitGroup(Front& front, const Json& body, const ExchangePtr& exchange) {
  Result<SeedGroups> groups = ReadGroups(body);
  if (!groups) {
    return exchange->Send(InvalidRequest(ErrorStyle::kSglang, groups.error().message));
  }
  const std::string host = groups->host;
  front.weights().OpenSeed(
      *std::move(groups), [exchange, host](const Result<std::vector<std::uint16_t>>& ports) {
        if (!ports) {
          return exchange->Send(
              Outcome(false, fmt::format("Failed to init group: {}.", ports.error().message)));
        }
        const std::string text = fmt::format("{}", fmt::join(*ports, ","));
        exchange->Send(JsonReply(Json(Json::Object{
            {"success", true},
            {"message", fmt::format("Succeeded to init group through {}:{} group.", host, text)},
            {"ports", text}})));
      });
}

http::Response SentReply(const SeedReport& sent, const std::string& group) {
  return JsonReply(
      Json(Json::Object{{"success", true},
                        {"message", fmt::format("Succeeded to send weights through {}.", group)},
                        {"weight_version", sent.weight_version},
                        {"hashes", Json(Json::Array(sent.hashes.begin(), sent.hashes.end()))}}));
}

void SendWeights(Front& front, const Json& body, const ExchangePtr& exchange) {
  std::string group = "weight_send_group";
  Fields fields(body);
  fields.Read("group_name", group);
  if (!fields.status()) {
    return exchange->Send(InvalidRequest(ErrorStyle::kSglang, fields.status().error().message));
  }
  front.weights().SendSeed(group, [exchange, group](const Result<SeedReport>& sent) {
    exchange->Send(
        sent ? SentReply(*sent, group)
             : Outcome(false, fmt::format("Failed to send weights: {}.", sent.error().message)));
  });
}

void ShowSeedInfo(const Front& front, const ExchangePtr& exchange) {
  Json::Object dtypes;
  for (const auto& [name, dtype] : front.card().dtypes) {
    dtypes.emplace_back(name, tensor::Name(dtype));
  }
  exchange->Send(JsonReply(Json(Json::Object{{"fingerprint", front.card().fingerprint},
                                             {"layout", front.weights().layout()},
                                             {"dtypes", std::move(dtypes)}})));
}

}  // namespace

void AddSeedRoutes(Router& router, Front& front) {
  AddJsonRoute(router, front, "/init_weights_send_group_for_remote_instance", InitGroup);
  AddJsonRoute(router, front, "/send_weights_to_remote_instance", SendWeights);
  router.Add({.methods = {"GET"},
              .path = "/seed_info",
              .level = Level::kAdminOptional,
              .handler = [&front](const RequestPtr&, const ExchangePtr& exchange) {
                ShowSeedInfo(front, exchange);
              }});
}

}  // namespace syncline::serve
