// Protocol: 1. the seed's ranks open a group each and say where (/init_weights_send_group…, without
// ports); 2. our ranks join; 3. meanwhile the seed is asked to send; 4. its answer has the label
// and the hashes of what it has sent, which must be those of what has come.
#include "serve/seed_client.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <chrono>

#include "objects/transfer.h"
#include "objects/url.h"

namespace syncline::serve {
namespace {

using base::Code;
using base::Fail;
using base::Json;
using base::Result;
using base::Status;

constexpr std::uint64_t kLongestReply = std::uint64_t{64} << 20;
constexpr double kPatience = 600;  // seconds: sending takes a while

Result<std::string> TextOf(const Json& reply, const char* name) {
  const Json* found = reply.Find(name);
  if (found != nullptr && found->string() != nullptr) return *found->string();
  return Fail(Code::kIncompatible,
              fmt::format("it says no {}: it is no engine of this kind", name));
}

// SGLang's and FastAPI's forms of an error.
std::string WhyOf(const objects::Reply& reply) {
  const Result<Json> body = base::ParseJson(reply.error_body);
  const Json* message = body ? body->Find("message") : nullptr;
  if (message == nullptr && body) {
    const Json* error = body->Find("error");
    if (error != nullptr && error->object() != nullptr) message = error->Find("message");
  }
  if (message != nullptr && message->string() != nullptr) return *message->string();
  return fmt::format("status {}", reply.head.status);
}

}  // namespace

std::function<tensor::Dtype(std::string_view)> DtypesOf(const SeedInfo& info) {
  return [dtypes = info.dtypes](std::string_view name) {
    const auto found = dtypes.find(name);
    return found == dtypes.end() ? tensor::Dtype::kBF16 : found->second;
  };
}

Result<SeedClient> SeedClient::Make(const std::string& url, const Keys& keys) {
  SYNCLINE_ASSIGN(const objects::Url parsed, objects::ParseUrl(url));
  if (parsed.scheme != "http" && parsed.scheme != "https") {
    return Fail(Code::kInvalidArgument,
                fmt::format("{}: expected http://HOST:PORT of a running engine", parsed.Shown()));
  }
  std::string text = url;
  while (text.ends_with('/')) text.pop_back();
  return SeedClient(text, parsed.host, keys.admin.empty() ? keys.api : keys.admin);
}

Result<Json> SeedClient::Call(const std::string& method, const std::string& path,
                              const Json& body) const {
  objects::Client client({.stall_seconds = kPatience, .retry_seconds = 0});
  objects::Request request = {.method = method, .send_once = true};
  SYNCLINE_ASSIGN(request.url, objects::ParseUrl(url_ + path));
  const std::string text = ToText(body);
  if (method == "POST") {
    request.text = text;
    request.body_bytes = text.size();
    request.headers.emplace_back("Content-Type", "application/json");
  }
  if (!key_.empty()) request.headers.emplace_back("Authorization", "Bearer " + key_);
  objects::TextReceiver receiver(request.What(), kLongestReply);
  const objects::Tried<objects::Reply> reply = client.Send(request, &receiver, nullptr);
  if (!reply) return base::Annotate(reply.error().error, "the seed");
  if (reply->head.status / 100 != 2) {
    return Fail(Code::kUnavailable, fmt::format("the seed {}: {}", url_, WhyOf(*reply)));
  }
  return base::ParseJson(receiver.text());
}

Result<SeedInfo> SeedClient::Ask(const std::string& own) const {
  SYNCLINE_ASSIGN(const Json reply, Call("GET", "/seed_info", {}));
  SeedInfo info;
  SYNCLINE_ASSIGN(info.fingerprint, TextOf(reply, "fingerprint"));
  if (info.fingerprint != own) {
    return Fail(Code::kIncompatible, fmt::format("the seed {} is another engine ({}, here {})",
                                                 url_, info.fingerprint, own));
  }
  SYNCLINE_ASSIGN(info.layout, TextOf(reply, "layout"));
  const Json* dtypes = reply.Find("dtypes");
  if (dtypes == nullptr || dtypes->object() == nullptr) {
    return Fail(Code::kIncompatible, fmt::format("the seed {} names no tensors", url_));
  }
  for (const auto& [name, text] : *dtypes->object()) {
    const std::optional<tensor::Dtype> dtype =
        text.string() == nullptr ? std::nullopt : tensor::FindDtype(*text.string());
    if (!dtype) {
      return Fail(Code::kIncompatible,
                  fmt::format("the seed {}: tensor {} has an unknown type", url_, name));
    }
    info.dtypes.emplace(name, *dtype);
  }
  return info;
}

Result<update::SeedGroups> SeedClient::OpenGroups() const {
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  update::SeedGroups groups = {
      .name = fmt::format("send_weights_{}_{}", getpid(), now), .host = host_, .rank = 1};
  SYNCLINE_ASSIGN(const Json reply, Call("POST", "/init_weights_send_group_for_remote_instance",
                                         Json::Object{{"master_address", host_},
                                                      {"group_rank", std::uint64_t{0}},
                                                      {"world_size", std::uint64_t{2}},
                                                      {"group_name", groups.name},
                                                      {"backend", groups.backend}}));
  SYNCLINE_ASSIGN(const std::string text, TextOf(reply, "ports"));
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  while (at < end) {
    const auto [rest, fault] = std::from_chars(at, end, groups.ports.emplace_back());
    if (fault != std::errc() || groups.ports.back() == 0) {
      return Fail(Code::kIncompatible, fmt::format("the seed {}: no ports: {}", url_, text));
    }
    at = rest < end ? rest + 1 : rest;
  }
  return groups;
}

Result<update::SeedReport> SeedClient::AskToSend(const std::string& group) const {
  SYNCLINE_ASSIGN(const Json reply,
                  Call("POST", "/send_weights_to_remote_instance",
                       Json::Object{{"master_address", host_}, {"group_name", group}}));
  update::SeedReport sent;
  SYNCLINE_ASSIGN(sent.weight_version, TextOf(reply, "weight_version"));
  const Json* hashes = reply.Find("hashes");
  if (hashes == nullptr || hashes->array() == nullptr) {
    return Fail(Code::kIncompatible, fmt::format("the seed {} says no hashes", url_));
  }
  for (const Json& hash : *hashes->array()) {
    sent.hashes.push_back(hash.string() == nullptr ? "" : *hash.string());
  }
  return sent;
}

Status SeedClient::Take(update::Weights& weights, const SeedInfo& info) const {
  if (weights.layout() != info.layout) {
    return Fail(
        Code::kIncompatible,
        fmt::format("the seed {} lays its weights out in another way (--fp8-scales?)", url_));
  }
  SYNCLINE_ASSIGN(const update::SeedGroups groups, OpenGroups());
  const Status taken = weights.TakeSeed(groups, [&] { return AskToSend(groups.name); });
  if (taken) return {};
  return base::Annotate(taken.error(), fmt::format("no weights from {}", url_));
}

}  // namespace syncline::serve
