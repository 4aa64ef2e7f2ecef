#include "serve/engine_info.h"

#include <fmt/format.h>

#include <charconv>

#include "serve/router.h"

namespace syncline::serve {
namespace {

using base::Code;
using base::Fail;
using base::Json;
using base::Status;

Status Malformed(const std::string& what) {
  return Fail(Code::kInvalidArgument,
              what + ", expected {rank, transfer_engine_info: {session_id, weights_info_dict}}");
}

bool IsPlace(const Json& place) {
  if (place.array() == nullptr || place.array()->size() != 3) return false;
  for (const Json& number : *place.array()) {
    if (number.unsigned_integer() == nullptr) return false;
  }
  return true;
}

void HandleRegister(EngineInfo& info, const RequestPtr& request, const ExchangePtr& exchange) {
  const base::Result<Json> body = ParseBody(*request);
  const Status done = body ? info.Register(*body) : std::unexpected(body.error());
  if (!done) return exchange->Send(Failure(ErrorStyle::kSglang, 400, done.error().message));
  exchange->Send(TextReply("OK"));
}

void HandleGet(const EngineInfo& info, const RequestPtr& request, const ExchangePtr& exchange) {
  const std::optional<std::uint64_t> rank = RankOf(request->Query("rank"));
  if (!rank) {
    return exchange->Send(Failure(ErrorStyle::kSglang, 400, "Invalid rank parameter"));
  }
  std::optional<Json> found = info.Of(*rank);
  if (found) return exchange->Send(JsonReply(*found));
  exchange->Send(
      Failure(ErrorStyle::kSglang, 404, fmt::format("No transfer engine info for rank {}", *rank)));
}

}  // namespace

void EngineInfo::Set(std::uint64_t rank, const update::WindowInfo& info) {
  Json::Object parameters;
  for (const update::ParameterPlace& place : info.parameters) {
    parameters.emplace_back(place.name,
                            Json::Array{place.address, place.elements, place.element_bytes});
  }
  const std::scoped_lock lock(mutex_);
  entries_[rank] = {.session = info.session, .parameters = std::move(parameters), .own = true};
}

Status EngineInfo::Register(const Json& message) {
  const Json* rank = message.Find("rank");
  if (rank == nullptr) rank = message.Find("tp_rank");
  if (rank == nullptr || rank->unsigned_integer() == nullptr) return Malformed("no rank");
  if (*rank->unsigned_integer() >= kRanks) {
    return Malformed(fmt::format("rank {} is not below {}", *rank->unsigned_integer(), kRanks));
  }
  const Json* info = message.Find("transfer_engine_info");
  if (info == nullptr || info->object() == nullptr) return Malformed("no transfer_engine_info");
  const Json* session = info->Find("session_id");
  if (session == nullptr || session->string() == nullptr) return Malformed("no session_id");
  const Json* parameters = info->Find("weights_info_dict");
  if (parameters == nullptr || parameters->object() == nullptr) {
    return Malformed("no weights_info_dict");
  }
  for (const auto& [name, place] : *parameters->object()) {
    if (!IsPlace(place)) return Malformed("a parameter without [address, elements, bytes]");
  }
  const std::scoped_lock lock(mutex_);
  Entry& entry = entries_[*rank->unsigned_integer()];
  if (entry.own) {
    return Fail(Code::kAlreadyExists,
                fmt::format("rank {} is this engine's own", *rank->unsigned_integer()));
  }
  entry = {.session = *session, .parameters = *parameters};
  return {};
}

std::optional<Json> EngineInfo::Of(std::uint64_t rank) const {
  const std::scoped_lock lock(mutex_);
  const auto found = entries_.find(rank);
  if (found == entries_.end()) return std::nullopt;
  const Entry& entry = found->second;
  return Json(Json::Object{
      {"rank", rank},
      {"remote_instance_transfer_engine_info", Json::Array{entry.session, entry.parameters}}});
}

std::optional<std::uint64_t> RankOf(const std::string* text) {
  if (text == nullptr) return std::nullopt;
  std::uint64_t rank = 0;
  const char* const end = text->data() + text->size();
  const auto [rest, fault] = std::from_chars(text->data(), end, rank);
  if (fault != std::errc() || rest != end) return std::nullopt;
  return rank;
}

void AddEngineInfoRoutes(Router& router, EngineInfo& info) {
  router.Add({.methods = {"GET"},
              .path = "/health",
              .level = Level::kOpen,
              .handler = [](const RequestPtr&,
                            const ExchangePtr& exchange) { exchange->Send(TextReply("OK")); },
              .needs_model = false});
  router.Add(
      {.methods = {"PUT"},
       .path = "/register_transfer_engine_info",
       .level = Level::kAdminOptional,
       .handler = [&info](const RequestPtr& request,
                          const ExchangePtr& exchange) { HandleRegister(info, request, exchange); },
       .needs_model = false});
  router.Add(
      {.methods = {"GET"},
       .path = "/get_transfer_engine_info",
       .level = Level::kAdminOptional,
       .handler = [&info](const RequestPtr& request,
                          const ExchangePtr& exchange) { HandleGet(info, request, exchange); },
       .needs_model = false});
}

}  // namespace syncline::serve
