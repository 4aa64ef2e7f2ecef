// GET|POST /weights_checker: snapshot, reset, compare and checksums of the live weights.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "checker/checker.h"
#include "serve/fields.h"
#include "serve/router.h"
#include "serve/update_fields.h"
#include "store/file_hash.h"

namespace syncline::serve {
namespace {

using base::Json;
using base::Result;
using checker::NamedHash;
using update::CheckReport;
using update::CheckRequest;
using update::RoleChecksums;
using Action = update::CheckRequest::Action;

std::optional<Action> FindAction(std::string_view name) {
  if (name == "snapshot") return Action::kSnapshot;
  if (name == "reset_tensors") return Action::kReset;
  if (name == "compare") return Action::kCompare;
  if (name == "checksum") return Action::kChecksum;
  return std::nullopt;
}

// But for the action.
void ReadCheck(Fields& fields, CheckRequest& request) {
  std::optional<update::Selector> selector;
  ReadSelector(fields, selector);
  request.selector = selector.value_or(request.selector);
  fields.Read("allow_quant_error", request.options.allow_quant_error);
  fields.Read("skip_tensor_list", request.options.skip);
  std::string hash = "device";
  fields.Read("hash", hash);
  if (hash == "sha256") {
    request.options.hash = checker::CheckHash::kSha256;
  } else if (hash != "device") {
    fields.Refuse("hash", R"(expected "device" or "sha256", got )" + Describe(Json(hash)));
  }
}

Json HashMap(const std::vector<NamedHash>& hashes) {
  Json::Object map;
  map.reserve(hashes.size());
  for (const NamedHash& hash : hashes) map.emplace_back(hash.name, hash.hash);
  return Json(std::move(map));
}

// Of all runners of a rank. Their names must differ.
base::Status Merge(std::vector<NamedHash>& all, const std::vector<NamedHash>& more) {
  all.insert(all.end(), more.begin(), more.end());
  std::vector<std::string_view> names;
  names.reserve(all.size());
  for (const NamedHash& hash : all) names.emplace_back(hash.name);
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  if (twice == names.end()) return {};
  return base::Fail(base::Code::kInternal,
                    fmt::format("checksum key collision: two tensors are called {}", *twice));
}

Json Parallelism(std::string_view role, std::uint64_t rank, std::uint64_t size) {
  return Json(Json::Object{{"role", role},
                           {"tp_rank", rank},
                           {"tp_size", size},
                           {"dp_rank", std::uint64_t{0}},
                           {"dp_size", std::uint64_t{1}},
                           {"pp_rank", std::uint64_t{0}},
                           {"pp_size", std::uint64_t{1}},
                           {"rank", rank},
                           {"size", size}});
}

struct RankChecksums {
  Json json;
  std::string per_gpu;
};

Result<RankChecksums> DescribeRank(const std::vector<RoleChecksums>& roles, std::size_t rank,
                                   std::size_t ranks) {
  std::vector<NamedHash> tensors;
  std::vector<NamedHash> derived;
  Json::Array parallelism;
  for (const RoleChecksums& role : roles) {
    SYNCLINE_TRY(Merge(tensors, role.checksums.tensors));
    SYNCLINE_TRY(Merge(derived, role.checksums.derived));
    parallelism.push_back(Parallelism(role.role, rank, ranks));
  }
  std::string per_gpu = checker::OverallChecksum(tensors);
  Json json(Json::Object{{"checksums", HashMap(tensors)},
                         {"per_gpu_checksum", per_gpu},
                         {"parallelism_info", Json(std::move(parallelism))},
                         {"derived_checksums", HashMap(derived)}});
  return RankChecksums{std::move(json), std::move(per_gpu)};
}

base::Status AddChecksums(const CheckReport& report, Json::Object& reply) {
  Json::Array ranks;
  store::Sha256 engine;
  for (std::size_t rank = 0; rank < report.ranks.size(); ++rank) {
    SYNCLINE_ASSIGN(RankChecksums one, DescribeRank(report.ranks[rank], rank, report.ranks.size()));
    engine.Update(base::AsBytes(one.per_gpu));
    ranks.push_back(std::move(one.json));
  }
  reply.emplace_back("ranks", Json(std::move(ranks)));
  reply.emplace_back("per_engine_checksum", engine.Hex());
  return {};
}

http::Response CheckReply(Action action, const CheckReport& report) {
  const bool equal = report.message.empty();
  Json::Object reply = {{"success", equal},
                        {"message", equal ? std::string("Success.") : report.message}};
  if (action == Action::kChecksum) {
    if (const base::Status added = AddChecksums(report, reply); !added) {
      return Outcome(false, added.error().message);
    }
  }
  if (action == Action::kCompare) {
    reply.emplace_back("compared", report.compared);
    reply.emplace_back("put_back", NameList(report.put_back));
  }
  if (action != Action::kSnapshot) reply.emplace_back("skipped", NameList(report.skipped));
  return JsonReply(Json(std::move(reply)), equal ? 200 : 400);
}

void Check(Front& front, const Json& body, const ExchangePtr& exchange) {
  CheckRequest request;
  std::string name = "checksum";
  Fields fields(body);
  fields.Read("action", name);
  ReadCheck(fields, request);
  if (!fields.status()) {
    return exchange->Send(InvalidRequest(ErrorStyle::kSglang, fields.status().error().message));
  }
  const std::optional<Action> action = FindAction(name);
  if (!action) return exchange->Send(Outcome(false, "Unsupported action='" + name + "'"));
  request.action = *action;
  front.weights().Check(request, [&front, exchange,
                                  action = *action](const Result<CheckReport>& report) {
    // Random weights, or those of a snapshot, are no longer those of the last update.
    const bool changed = action == Action::kReset || !report || !report->put_back.empty();
    if (changed) front.NoteChange();
    exchange->Send(report ? CheckReply(action, *report) : Outcome(false, report.error().message));
  });
}

}  // namespace

void AddCheckerRoute(Router& router, Front& front) {
  AddQueuedRoute(router, front, {"GET", "POST"}, "/weights_checker", Check);
}

}  // namespace syncline::serve
