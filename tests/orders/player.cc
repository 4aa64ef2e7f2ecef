#include "orders/player.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "orders/probe.h"

namespace syncline::orders {

using base::Json;
using base::Result;
using base::Status;
using update::SessionRule;

namespace {

constexpr std::size_t kShown = 300;  // of a body

bool IsText(const Json* json, std::string_view text) {
  return json != nullptr && json->string() != nullptr && *json->string() == text;
}

}  // namespace

Setting DrawSetting(const World& world, Dice& dice) {
  Setting setting;
  if (dice.Percent(40)) setting.rule = SessionRule::kRequired;
  if (dice.Percent(15)) setting.rule = SessionRule::kIgnored;
  if (dice.Percent(40)) setting.undo_memory = 0;
  if (dice.Percent(20)) setting.undo_memory = dice.Below(world.bytes());
  return setting;
}

Status PlayStory(const World& world, Dice& dice, bool verbose) {
  return Player(world, dice, verbose).Play();
}

Player::Player(const World& world, Dice& dice, bool verbose)
    : world_(world),
      dice_(dice),
      verbose_(verbose),
      setting_(DrawSetting(world, dice)),
      rules_(world, setting_),
      replica_(base::JoinPath(world.scratch(), "replica")) {}

Player::~Player() { (void)base::FileSystem::Posix().RemoveAll(replica_); }

const std::vector<Player::Chance>& Player::Chances() {
  static const std::vector<Chance> chances = {
      {12, &Player::Begin},          {14, &Player::End},        {4, &Player::PostProcess},
      {26, &Player::Update},         {8, &Player::WrongUpdate}, {6, &Player::Disk},
      {2, &Player::DiskAgain},       {4, &Player::BrokenDisk},  {2, &Player::Pull},
      {2, &Player::DiskFromReplica}, {4, &Player::Relabel},     {3, &Player::UseGroup},
      {2, &Player::Reset},           {2, &Player::Snapshot},    {3, &Player::Compare},
      {5, &Player::Pause},           {6, &Player::Continue},    {3, &Player::Flush},
      {3, &Player::Abort},           {12, &Player::Generate},   {6, &Player::Read},
      {6, &Player::Nonsense}};
  return chances;
}

void Player::Say(const std::string& text) const {
  if (verbose_) fmt::print("{}\n", text);
}

Status Player::Play() {
  SYNCLINE_ASSIGN(server_, Server::Start(world_, setting_));
  Say(fmt::format("{}: rule {}, undo memory {} of {}", world_.name(),
                  static_cast<int>(setting_.rule), setting_.undo_memory, world_.bytes()));
  const std::uint64_t moves = dice_.Between(5, 40);
  for (std::uint64_t i = 0; i < moves; ++i) {
    SYNCLINE_TRY(Draw());
    NoteLost();
    // It waits for nothing.
    const auto health = server_->Send("GET", "/health");
    if (health->response().status != 200 || !health->Wait({})) return Wrong("/health: no answer");
    if (!dice_.Percent(60)) continue;
    SYNCLINE_TRY(Settle());
    SYNCLINE_TRY(CheckState());
  }
  SYNCLINE_TRY(Quiesce());
  return {};
}

Status Player::Draw() {
  std::uint64_t total = 0;
  for (const Chance& chance : Chances()) total += chance.weight;
  std::uint64_t at = dice_.Below(total);
  for (const Chance& chance : Chances()) {
    if (at < chance.weight) return (this->*chance.move)();
    at -= chance.weight;
  }
  return {};
}

void Player::NoteLost() {
  if (!rules_.lost()) return;
  was_lost_ = true;
  for (Sent& generation : generations_) generation.may_be_refused = true;
}

// ---- sending and looking at replies ----

void Player::Send(const std::string& target, std::string body, bool success) {
  Say(fmt::format("POST {} {} ({})", target, body.substr(0, kShown),
                  success ? "success" : "refusal"));
  auto client = server_->Send("POST", target, std::move(body));
  if (dice_.Percent(5)) client->Leave();
  sent_.push_back({std::move(client), target, success ? Answer::kSuccess : Answer::kRefusal});
}

Status Player::CheckReply(const Sent& sent) {
  if (!sent.client->Wait(Deadline())) return Wrong(sent.what + ": no reply");
  if (const std::string fault = sent.client->fault(); !fault.empty()) {
    return Wrong(sent.what + ": " + fault);
  }
  if (sent.client->left()) return {};
  const http::Response response = sent.client->response();
  Say(fmt::format("  {}: {}", sent.what, Shown(response)));
  const bool success = response.status == 200;
  const bool refusal = response.status >= 400 && response.status < 500;
  const bool good = sent.answer == Answer::kSuccess   ? success
                    : sent.answer == Answer::kRefusal ? refusal
                                                      : success || refusal;
  if (good) return {};
  return Wrong(fmt::format("{}: expected {}, got {}", sent.what,
                           sent.answer == Answer::kSuccess ? "a success" : "a refusal",
                           Shown(response)));
}

Status Player::Settle() {
  for (const Sent& sent : std::exchange(sent_, {})) SYNCLINE_TRY(CheckReply(sent));
  was_lost_ = rules_.lost();
  return {};
}

Result<http::Response> Player::Alone(const std::string& method, const std::string& target,
                                     std::string body, Answer answer) {
  SYNCLINE_TRY(Settle());
  Say(fmt::format("{} {} {}", method, target, body.substr(0, kShown)));
  const Sent sent = {server_->Send(method, target, std::move(body)), target, answer};
  SYNCLINE_TRY(CheckReply(sent));
  return sent.client->response();
}

Status Player::Submit(const std::string& target, std::string body, bool flush,
                      const std::function<bool()>& rules, const std::function<void()>& refused) {
  if (!flush || !resident_) {
    Send(target, std::move(body), rules());
    return {};
  }
  SYNCLINE_ASSIGN(const http::Response response,
                  Alone("POST", target, std::move(body), Answer::kAny));
  if (response.status == 400 && response.body.find("flush_cache:") != std::string::npos) {
    refused();
    return {};
  }
  const bool success = rules();
  if (success == (response.status == 200)) return {};
  return Wrong(fmt::format("{}: expected a {}, got {}", target, success ? "success" : "refusal",
                           Shown(response)));
}

Result<Json> Player::Ask(const std::string& target) {
  SYNCLINE_ASSIGN(const http::Response response, Alone("GET", target, "", Answer::kSuccess));
  return base::ParseJson(response.body);
}

// ---- the state between two requests ----

Status Player::CheckState() {
  SYNCLINE_ASSIGN(const Json info, Ask("/model_info"));
  const Json* session = info.Find("weight_update_session");
  if (session == nullptr) return Wrong("no session in /model_info");
  const auto is_null = [&](const char* name) { return session->Find(name)->is_null(); };
  const auto pending = rules_.pending_label();
  const Json* label = session->Find("weight_version_pending");
  const auto* waits = session->Find("pending")->array();
  std::string wrong;
  const auto expect = [&](bool good, const char* what) {
    if (!good) wrong += fmt::format(" {}", what);
  };
  expect(std::get<bool>(session->Find("open")->value()) == rules_.open(), "open");
  expect(pending ? IsText(label, *pending) : label->is_null(), "weight_version_pending");
  expect(is_null("failure") != rules_.failed(), "failure");
  expect(is_null("incomplete") != rules_.lost(), "incomplete");
  expect(waits != nullptr && waits->empty() != rules_.halves(), "pending");
  expect(IsText(info.Find("weight_version"), rules_.label()), "weight_version");
  if (!wrong.empty()) {
    return Wrong(fmt::format("/model_info: not as the rules say:{} (label {}, {}): {}", wrong,
                             rules_.label(), rules_.open() ? "open" : "closed", ToText(info)));
  }
  SYNCLINE_TRY(Alone("GET", "/health", "", Answer::kSuccess));
  return CheckDigests();
}

Status Player::CheckDigests() {
  if (rules_.writing()) {
    SYNCLINE_TRY(Alone("GET", "/weights_digest", "", Answer::kRefusal));
    return {};
  }
  SYNCLINE_ASSIGN(const Json reply, Ask("/weights_digest"));
  if (!IsText(reply.Find("weight_version"), rules_.label()))
    return Wrong("digests of another label");
  const Json* digests = reply.Find("digests");
  for (std::size_t i = 0; i < world_.tensors(); ++i) {
    const int version = rules_.live()[i];
    if (version == kUnknown) continue;
    const std::string& name = world_.plan().tensors()[i].name;
    if (IsText(digests->Find(name), world_.digest(i, static_cast<std::size_t>(version)))) continue;
    return Wrong(fmt::format("{}: does not hold the bytes of version {}", name, version));
  }
  return {};
}

// ---- generations ----

Status Player::CheckGeneration(const Sent& sent) {
  if (sent.client->left()) return {};
  if (!sent.client->Wait(Deadline())) return Wrong(sent.what + ": no end");
  if (!sent.client->fault().empty()) return Wrong(sent.what + ": " + sent.client->fault());
  const http::Response response = sent.client->response();
  const std::string_view body = response.body;
  const bool streamed = response.content_type == "text/event-stream";
  if (streamed && !body.ends_with("data: [DONE]\n\n")) {
    return Wrong(sent.what + ": a stream without an end: " + Shown(response));
  }
  if (sent.may_be_refused && (response.status == 503 || body.find("\"code\":503") != body.npos)) {
    return {};
  }
  if (sent.may_be_refused && body.find("incomplete update") != body.npos) return {};
  const bool finished = body.find(R"("finish_reason":{"type":)") != body.npos;
  if (response.status == 200 && finished) return {};
  return Wrong(fmt::format("{}: {}", sent.what, Shown(response)));
}

Status Player::Collect() {
  for (const Sent& sent : std::exchange(generations_, {})) SYNCLINE_TRY(CheckGeneration(sent));
  resident_ = false;
  return {};
}

Status Player::GenerateAlone() {
  SYNCLINE_TRY(Settle());
  SYNCLINE_ASSIGN(const http::Response response, Probe(*server_));
  Say(fmt::format("  /generate: {}", Shown(response)));
  if (rules_.lost()) {
    if (response.status == 503) return {};
    return Wrong("parts of an update that failed are served: " + Shown(response));
  }
  if (response.status != 200) return Wrong("nothing is generated: " + Shown(response));
  if (!rules_.whole()) return {};
  return CheckProbe(world_, static_cast<std::size_t>(*rules_.whole()), response);
}

// ---- the end ----

Status Player::CheckServed() {
  SYNCLINE_TRY(Settle());
  SYNCLINE_TRY(CheckState());
  SYNCLINE_TRY(GenerateAlone());
  const std::optional<int> whole = rules_.whole();
  if (!whole || rules_.lost()) return {};
  if (server_->Holds(world_.live(static_cast<std::size_t>(*whole)))) return {};
  return Wrong(fmt::format("the live bytes are not those of version {}", *whole));
}

// One good update of everything.
Status Player::Heal() {
  const bool disk = setting_.rule == SessionRule::kRequired || dice_.Percent(50);
  if (disk) {
    SYNCLINE_TRY(Disk());
  } else {
    Draft draft;
    draft.message.version = static_cast<int>(dice_.Below(kVersions));
    for (std::size_t i = 0; i < world_.tensors(); ++i) {
      draft.message.tensors.push_back(i);
      draft.views.push_back(world_.View(i, static_cast<std::size_t>(draft.message.version)));
    }
    SYNCLINE_TRY(SendUpdate(draft));
  }
  if (!rules_.whole() || rules_.lost()) return Wrong("the rules know no whole version");
  return CheckServed();
}

Status Player::Quiesce() {
  Say("the end");
  SYNCLINE_TRY(Settle());
  SYNCLINE_TRY(Continue());
  SYNCLINE_TRY(Settle());
  resident_ = true;  // what was paused in place may still hold its memory
  SYNCLINE_TRY(SendEnd("/end_weight_update", {{"abort", true}}, /*abort=*/true));
  NoteLost();
  SYNCLINE_TRY(Settle());
  // Halves that came outside of a session wait on, where there are no sessions.
  if (rules_.held() && !rules_.lost()) SYNCLINE_TRY(Heal());
  SYNCLINE_TRY(Collect());
  SYNCLINE_TRY(CheckServed());
  SYNCLINE_TRY(Heal());
  const auto until = Deadline();
  while (server_->front().open_requests() > 0) {
    if (std::chrono::steady_clock::now() > until) {
      return Wrong(fmt::format("{} requests are left", server_->front().open_requests()));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return {};
}

}  // namespace syncline::orders
