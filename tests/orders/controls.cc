// Moves of a story that change no weights, but for the checker's.
#include <fmt/format.h>

#include <array>

#include "orders/player.h"

namespace syncline::orders {

using base::Json;
using base::Status;

namespace {

std::string ActionBody(const char* action) {
  return ToText(Json(Json::Object{{"action", action}}));
}

constexpr char kChecker[] = "/weights_checker";

}  // namespace

// ---- the checker ----

Status Player::Reset() {
  SYNCLINE_TRY(Settle());
  const bool success = rules_.Reset();
  SYNCLINE_TRY(Alone("POST", kChecker, ActionBody("reset_tensors"),
                     success ? Answer::kSuccess : Answer::kRefusal));
  return {};
}

Status Player::Snapshot() {
  SYNCLINE_TRY(Settle());
  const bool writing = rules_.writing();
  SYNCLINE_TRY(Alone("POST", kChecker, ActionBody("snapshot"),
                     writing ? Answer::kRefusal : Answer::kSuccess));
  if (!writing) rules_.Snapshot();
  return {};
}

Status Player::Compare() {
  SYNCLINE_TRY(Settle());
  Answer answer = Answer::kAny;
  if (!rules_.snapshot() || rules_.writing()) {
    answer = Answer::kRefusal;
  } else {
    bool known = true;
    bool equal = true;
    for (std::size_t i = 0; i < world_.tensors(); ++i) {
      const int now = rules_.live()[i];
      const int then = (*rules_.snapshot())[i];
      known = known && now != kUnknown && then != kUnknown;
      equal = equal && now == then;
    }
    if (known) answer = equal ? Answer::kSuccess : Answer::kRefusal;
  }
  SYNCLINE_ASSIGN(const http::Response response,
                  Alone("POST", kChecker, ActionBody("compare"), answer));
  SYNCLINE_ASSIGN(const Json reply, base::ParseJson(response.body));
  const Json* put_back = reply.Find("put_back");
  if (put_back == nullptr) return {};
  for (const Json& name : *put_back->array()) {
    rules_.PutBack(world_.plan().FindParameter(*name.string()));
  }
  return {};
}

// ---- generation ----

Status Player::Pause() {
  const char* mode = dice_.Percent(40) ? "abort" : dice_.Percent(50) ? "retract" : "in_place";
  const Json::Object body = {{"mode", mode}};
  Send("/pause_generation", ToText(Json(body)), true);
  paused_ = true;
  if (mode == std::string_view("in_place") && !generations_.empty()) resident_ = true;
  return {};
}

Status Player::Continue() {
  Send("/continue_generation", dice_.Percent(50) ? "" : "{}", true);
  paused_ = false;
  return {};
}

Status Player::Flush() {
  SYNCLINE_TRY(Alone(dice_.Percent(50) ? "GET" : "POST",
                     dice_.Percent(80) ? "/flush_cache" : "/flush_cache?timeout=0.01", "",
                     Answer::kAny));
  return {};
}

Status Player::Abort() {
  Json::Object body;
  if (dice_.Percent(50)) {
    body.emplace_back("abort_all", true);
  } else {
    body.emplace_back("rid", fmt::format("rid{}", dice_.Below(count_ + 1)));
    if (dice_.Percent(30)) body.emplace_back("prefix", true);
  }
  Send("/abort_request", ToText(Json(body)), true);
  return {};
}

Status Player::Generate() {
  const bool free = !paused_ && !rules_.held() && generations_.empty();
  if (free && dice_.Percent(40)) return GenerateAlone();
  Json::Array ids;
  for (std::uint64_t i = dice_.Between(1, 20); i > 0; --i) ids.emplace_back(dice_.Below(40));
  Json::Object sampling = {{"max_new_tokens", dice_.Below(12)}};
  if (dice_.Percent(20)) sampling.emplace_back("n", std::uint64_t{2});
  const Json::Object body = {{"input_ids", Json(std::move(ids))},
                             {"rid", fmt::format("rid{}", ++count_)},
                             {"stream", dice_.Percent(50)},
                             {"return_logprob", dice_.Percent(20)},
                             {"sampling_params", Json(std::move(sampling))}};
  const std::string text = ToText(Json(body));
  Say("POST /generate " + text);
  auto client = server_->Send("POST", "/generate", text);
  generations_.push_back({client, text, Answer::kAny, was_lost_});
  if (dice_.Percent(10)) client->Leave();
  return {};
}

// ---- reading, and what no client should send ----

Status Player::Read() {
  const layout::TensorSpec& spec = world_.plan().tensors()[dice_.Below(world_.tensors())];
  const std::array<std::string, 14> targets = {
      "/server_info",
      "/model_info",
      "/get_weight_version",
      "/v1/models",
      "/v1/loads",
      "/metrics",
      "/health_generate",
      "/export_weights",
      "/export_weights?name=" + spec.name,
      "/get_weights_by_name?name=" + spec.name,
      "/export_weights?name=nobody",
      "/weights_checker",
      "/weights_digest?version=2&source=" + world_.store(),
      "/weights_digest?version=99&source=" + world_.store()};
  const std::string& target = dice_.Pick(targets);
  Say("GET " + target);
  auto client = server_->Send("GET", target);
  if (dice_.Percent(10)) client->Leave();
  sent_.push_back({std::move(client), target, Answer::kAny});
  return {};
}

Status Player::Nonsense() {
  const std::string wrong = ToBase64(WrongPickle(dice_));
  const std::array<std::pair<const char*, std::string>, 14> requests = {{
      {"/update_weights_from_tensor", "{"},
      {"/update_weights_from_tensor", std::string(100, '[')},
      {"/update_weights_from_tensor", R"({"serialized_named_tensors":[]})"},
      {"/update_weights_from_tensor", R"({"serialized_named_tensors":["","",""]})"},
      {"/update_weights_from_tensor", R"({"serialized_named_tensors":["not base64!"]})"},
      {"/update_weights_from_tensor", R"({"serialized_named_tensors":7})"},
      {"/update_weights_from_tensor",
       R"({"serialized_named_tensors":[")" + wrong + R"("],"load_format":"my.loader"})"},
      {"/update_weights_from_disk", R"({"model_path":""})"},
      {"/update_weights_from_disk", R"({"model_path":"/x","load_format":"gguf"})"},
      {"/begin_weight_update", R"({"selector":"everything"})"},
      {"/end_weight_update", R"({"expected_lora_checksums":{"a":{"b":"c"}}})"},
      {"/pause_generation", R"({"mode":"sometimes"})"},
      {"/generate", R"({"input_ids":[1,2,99999999]})"},
      {"/generate", R"({"input_ids":[]})"},
  }};
  const auto& [target, body] = dice_.Pick(requests);
  if (dice_.Percent(20)) {
    SYNCLINE_TRY(Alone("DELETE", target, body, Answer::kRefusal));
    return {};
  }
  // A number of payloads that is wrong is found in its turn.
  if (std::string_view(target) == "/end_weight_update" || dice_.Percent(50)) {
    SYNCLINE_TRY(Alone("POST", target, body, Answer::kRefusal));
    return {};
  }
  Send(target, body, false);
  return {};
}

}  // namespace syncline::orders
