#include "orders/probe.h"

#include <fmt/format.h>

#include <map>
#include <mutex>

#include "base/json.h"
#include "orders/story.h"

namespace syncline::orders {

using base::Json;
using base::Result;
using base::Status;

namespace {

constexpr std::chrono::seconds kPatience{60};  // nothing here takes one
constexpr std::size_t kShown = 300;
constexpr char kPrompt[] =
    R"({"input_ids":[5,17,33],)"
    R"("sampling_params":{"max_new_tokens":6,"temperature":0,"ignore_eos":true}})";

Result<std::string> TokensOf(const http::Response& response) {
  SYNCLINE_ASSIGN(const Json reply, base::ParseJson(response.body));
  const Json* ids = reply.Find("output_ids");
  if (ids == nullptr) return Wrong("nothing was generated: " + Shown(response));
  return ToText(*ids);
}

Result<std::string> ColdTokens(const World& world, std::size_t version) {
  static std::mutex mutex;
  static std::map<std::pair<const World*, std::size_t>, std::string> known;
  const std::scoped_lock lock(mutex);
  std::string& tokens = known[{&world, version}];
  if (!tokens.empty()) return tokens;
  SYNCLINE_ASSIGN(const auto server, Server::Start(world, {}, version));
  SYNCLINE_ASSIGN(const http::Response response, Probe(*server));
  SYNCLINE_ASSIGN(tokens, TokensOf(response));
  return tokens;
}

}  // namespace

std::chrono::steady_clock::time_point Deadline() {
  return std::chrono::steady_clock::now() + kPatience;
}

std::string Shown(const http::Response& response) {
  return fmt::format("{} {}", response.status, response.body.substr(0, kShown));
}

Result<http::Response> Probe(Server& server) {
  const auto client = server.Send("POST", "/generate", kPrompt);
  if (!client->Wait(Deadline())) return Wrong("a generation without an end");
  return client->response();
}

Status CheckProbe(const World& world, std::size_t version, const http::Response& response) {
  SYNCLINE_ASSIGN(const std::string tokens, TokensOf(response));
  SYNCLINE_ASSIGN(const std::string expected, ColdTokens(world, version));
  if (tokens == expected) return {};
  return Wrong(fmt::format("version {} generates {}, not {}", version, tokens, expected));
}

}  // namespace syncline::orders
