// Several clients that know nothing of each other. Each sends only whole versions, with a label that
// names the version: so whatever the order of their requests is, what is live is one version as a
// whole, with a label of it.
#include <fmt/format.h>

#include <atomic>
#include <functional>
#include <thread>

#include "base/json.h"
#include "orders/payloads.h"
#include "orders/probe.h"
#include "orders/story.h"

namespace syncline::orders {
namespace {

using base::Json;
using base::Result;
using base::Status;

// "v2-17" is a label of version 2.
std::size_t VersionOf(std::string_view label) {
  return label.size() > 1 ? static_cast<std::size_t>(label[1] - '0') : kVersions;
}

class Crowd {
 public:
  Crowd(const World& world, Dice& dice, bool verbose)
      : world_(world), dice_(dice), verbose_(verbose), setting_(DrawSetting(world, dice)) {}

  Status Play();

 private:
  using Clients = std::vector<std::shared_ptr<Client>>;

  Status PlayOne(std::uint64_t seed);
  Status Move(Dice& dice, Clients& waiting);
  std::shared_ptr<Client> SendVersion(Dice& dice);
  std::shared_ptr<Client> SendOther(Dice& dice);
  Status CheckReply(Client& client);
  Status CheckDigests(const http::Response& response) const;
  // May live weights be half written, so that digests are of no version?
  bool may_write() const { return world_.bytes() > setting_.undo_memory; }
  Result<http::Response> Ask(const std::string& method, const std::string& target,
                             const std::string& body = "");
  Status CheckEnd();
  Status CheckWhole();

  const World& world_;
  Dice& dice_;
  const bool verbose_;
  const Setting setting_;
  std::unique_ptr<Server> server_;
  std::atomic<std::uint64_t> count_ = 0;
};

std::shared_ptr<Client> Crowd::SendVersion(Dice& dice) {
  const std::size_t version = dice.Below(kVersions);
  const std::string label = fmt::format("v{}-{}", version, ++count_);
  if (dice.Percent(30)) {
    const Json::Object body = {{"model_path", world_.directory(version)},
                               {"weight_version", label},
                               {"flush_cache", dice.Percent(50)}};
    return server_->Send("POST", "/update_weights_from_disk", ToText(Json(body)));
  }
  std::vector<tensor::TensorView> views;
  for (std::size_t i = 0; i < world_.tensors(); ++i) views.push_back(world_.View(i, version));
  std::string payload = SafetensorsOf(views);
  if (dice.Percent(15)) payload = WrongSafetensors(std::move(payload), dice);
  return server_->Send("POST",
                       fmt::format("/update_weights_from_tensor_raw?weight_version={}&"
                                   "flush_cache={}",
                                   label, dice.Percent(50)),
                       std::move(payload));
}

std::shared_ptr<Client> Crowd::SendOther(Dice& dice) {
  const auto post = [&](const char* target, const std::string& body) {
    return server_->Send("POST", target, body);
  };
  switch (dice.Below(13)) {
    case 0:
    case 1:
      return post("/begin_weight_update", "");
    case 2:
    case 3:
      return post("/end_weight_update", dice.Percent(25) ? R"({"abort":true})" : "");
    case 4:
      return post("/post_process_weights", R"({"post_process_quantization":true})");
    case 5:
      return post("/pause_generation", dice.Percent(50) ? "" : R"({"mode":"retract"})");
    case 6:
      return post("/continue_generation", "");
    case 7:
      return post("/flush_cache", "");
    case 8:
      return post("/abort_request", R"({"abort_all":true})");
    case 9:
      return post("/weights_checker", R"({"action":"snapshot"})");
    case 10:
      return post("/weights_checker", "");
    default:
      return post("/generate", fmt::format(R"({{"input_ids":[1,2,3],"stream":{},)"
                                           R"("sampling_params":{{"max_new_tokens":{}}}}})",
                                           dice.Percent(50), dice.Below(10)));
  }
}

Status Crowd::CheckDigests(const http::Response& response) const {
  if (response.status != 200 || may_write()) return {};
  SYNCLINE_ASSIGN(const Json reply, base::ParseJson(response.body));
  const std::string& label = *reply.Find("weight_version")->string();
  for (std::size_t i = 0; i < world_.tensors(); ++i) {
    const std::string& name = world_.plan().tensors()[i].name;
    const Json* digest = reply.Find("digests")->Find(name);
    if (*digest->string() == world_.digest(i, VersionOf(label))) continue;
    return Wrong(fmt::format("{} is not of the version that the label {} names", name, label));
  }
  return {};
}

Status Crowd::CheckReply(Client& client) {
  if (client.left()) return {};
  if (!client.Wait(Deadline())) return Wrong("no reply");
  if (!client.fault().empty()) return Wrong(client.fault());
  const http::Response response = client.response();
  const bool known = response.status == 200 || response.status == 400 || response.status == 409 ||
                     response.status == 503;
  return known ? Status() : Wrong("a reply of another kind: " + Shown(response));
}

Status Crowd::Move(Dice& dice, Clients& waiting) {
  if (dice.Percent(10)) {
    const auto client = server_->Send("GET", "/weights_digest");
    SYNCLINE_TRY(CheckReply(*client));
    return CheckDigests(client->response());
  }
  waiting.push_back(dice.Percent(40) ? SendVersion(dice) : SendOther(dice));
  if (dice.Percent(10)) waiting.back()->Leave();
  return {};
}

// Requests of generation may wait for others to go on, so replies are looked at in the end.
Status Crowd::PlayOne(std::uint64_t seed) {
  Dice dice(seed);
  Clients waiting;
  for (std::uint64_t moves = dice.Between(3, 15); moves > 0; --moves) {
    SYNCLINE_TRY(Move(dice, waiting));
  }
  const auto gone_on = server_->Send("POST", "/continue_generation");
  for (const auto& client : waiting) {
    // Another one may have paused it again, or have a session that holds the engine.
    while (!client->left() &&
           !client->Wait(std::chrono::steady_clock::now() + std::chrono::milliseconds(20))) {
      server_->Send("POST", "/continue_generation");
      if (may_write()) server_->Send("POST", "/end_weight_update", R"({"abort":true})");
    }
    SYNCLINE_TRY(CheckReply(*client));
  }
  return CheckReply(*gone_on);
}

Result<http::Response> Crowd::Ask(const std::string& method, const std::string& target,
                                  const std::string& body) {
  const auto client = server_->Send(method, target, body);
  SYNCLINE_TRY(CheckReply(*client));
  if (verbose_) fmt::print("{}: {}\n", target, Shown(client->response()));
  return client->response();
}

// What is live is what the label says.
Status Crowd::CheckWhole() {
  SYNCLINE_ASSIGN(const http::Response info, Ask("GET", "/model_info"));
  SYNCLINE_ASSIGN(const Json json, base::ParseJson(info.body));
  const std::string label = *json.Find("weight_version")->string();
  if (VersionOf(label) >= kVersions) return Wrong("an unknown label: " + label);
  if (!server_->Holds(world_.live(VersionOf(label)))) {
    return Wrong(fmt::format("the live bytes are not those of {}", label));
  }
  SYNCLINE_ASSIGN(const http::Response probe, Probe(*server_));
  return CheckProbe(world_, VersionOf(label), probe);
}

Status Crowd::CheckEnd() {
  SYNCLINE_TRY(Ask("POST", "/continue_generation"));
  SYNCLINE_TRY(Ask("POST", "/end_weight_update", R"({"abort":true})"));
  SYNCLINE_ASSIGN(const http::Response info, Ask("GET", "/model_info"));
  SYNCLINE_ASSIGN(const Json json, base::ParseJson(info.body));
  const Json* session = json.Find("weight_update_session");
  if (session->Find("incomplete")->is_null()) {
    SYNCLINE_TRY(CheckWhole());
  } else {
    SYNCLINE_ASSIGN(const http::Response probe, Probe(*server_));
    if (probe.status != 503) return Wrong("parts of an update are served: " + Shown(probe));
  }
  const Json::Object body = {{"model_path", world_.directory(1)}, {"weight_version", "v1-last"}};
  SYNCLINE_ASSIGN(const http::Response healed,
                  Ask("POST", "/update_weights_from_disk", ToText(Json(body))));
  if (healed.status != 200) return Wrong("the last update failed: " + Shown(healed));
  return CheckWhole();
}

Status Crowd::Play() {
  SYNCLINE_ASSIGN(server_, Server::Start(world_, setting_));
  const std::size_t clients = dice_.Between(2, 4);
  std::vector<Status> ends(clients);
  {
    std::vector<std::jthread> threads;
    for (Status& end : ends) {
      threads.emplace_back([this, &end, seed = dice_.Seed()] { end = PlayOne(seed); });
    }
  }
  for (const Status& end : ends) SYNCLINE_TRY(end);
  return CheckEnd();
}

}  // namespace

Status PlayCrowd(const World& world, Dice& dice, bool verbose) {
  return Crowd(world, dice, verbose).Play();
}

}  // namespace syncline::orders
