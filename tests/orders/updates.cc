// Moves of a story that change weights.
#include <fmt/format.h>

#include <algorithm>

#include "orders/player.h"

namespace syncline::orders {

using base::Json;
using base::Status;
using update::Selector;

Player::Label Player::MaybeLabel() {
  if (dice_.Percent(40)) return std::nullopt;
  return fmt::format("label{}", ++count_);
}

Status Player::Begin() {
  const Selector selector = dice_.Percent(85)   ? Selector::kAll
                            : dice_.Percent(70) ? Selector::kTarget
                                                : Selector::kDraft;
  const bool sync_base = !dice_.Percent(7);
  Json::Object body = {{"sync_base", sync_base}};
  if (selector != Selector::kAll || dice_.Percent(50)) {
    body.emplace_back("selector", update::Name(selector));
  }
  Send("/begin_weight_update", ToText(Json(body)), rules_.Begin(selector, sync_base));
  return {};
}

Status Player::SendEnd(const std::string& target, Json::Object body, bool abort) {
  return Submit(
      target, ToText(Json(std::move(body))), /*flush=*/true, [&] { return rules_.End(abort); },
      [&] { rules_.EndFailed(); });
}

Status Player::End() {
  const bool abort = dice_.Percent(20);
  Json::Object body;
  if (abort || dice_.Percent(50)) body.emplace_back("abort", abort);
  return SendEnd("/end_weight_update", std::move(body), abort);
}

// An end looks whether a session is open before its turn has come, so both are sent alone.
Status Player::PostProcess() {
  const bool restore = dice_.Percent(60);
  const bool process = dice_.Percent(60);
  SYNCLINE_TRY(Settle());
  const Json::Object body = {{"restore_weights_before_load", restore},
                             {"post_process_quantization", process}};
  const auto rules = [&] {
    if (restore && !rules_.Begin(Selector::kAll, true)) return false;
    return !process || !rules_.open() || rules_.End(false);
  };
  SYNCLINE_TRY(Submit("/post_process_weights", ToText(Json(body)), process, rules,
                      [&] { rules_.EndFailed(); }));
  return Settle();
}

// ---- tensors ----

Player::Draft Player::DrawTensors() {
  Draft draft;
  Message& message = draft.message;
  message.version = static_cast<int>(dice_.Below(kVersions));
  message.label = MaybeLabel();
  if (dice_.Percent(10)) {
    message.selector = dice_.Percent(70) ? Selector::kTarget : Selector::kDraft;
  }
  const std::uint64_t share = dice_.Percent(40) ? 100 : dice_.Percent(80) ? dice_.Below(100) : 4;
  for (std::size_t i = 0; i < world_.tensors(); ++i) {
    if (dice_.Percent(share)) message.tensors.push_back(i);
  }
  for (std::size_t i = message.tensors.size(); i > 1; --i) {
    std::swap(message.tensors[i - 1], message.tensors[dice_.Below(i)]);
  }
  for (const std::size_t tensor : message.tensors) {
    draft.views.push_back(world_.View(tensor, static_cast<std::size_t>(message.version)));
  }
  return draft;
}

// A whole parameter that is not quantised.
Player::Draft Player::DrawDirect() {
  std::vector<const Group*> plain;
  for (const Group& group : world_.groups()) {
    if (!group.quantised && !group.derived) plain.push_back(&group);
  }
  const Group& group = *dice_.Pick(plain);
  Draft draft;
  draft.direct = true;
  draft.message.version = static_cast<int>(dice_.Below(kVersions));
  draft.message.label = MaybeLabel();
  draft.message.tensors = group.tensors;
  const auto& parameters = world_.plan().parameters();
  std::vector<base::MutableByteSpan> memory(parameters.size());
  const std::size_t parameter = group.parameters.front();
  draft.bytes.resize(parameters[parameter].bytes());
  memory[parameter] = draft.bytes;
  for (const std::size_t tensor : group.tensors) {
    const auto view = world_.View(tensor, static_cast<std::size_t>(draft.message.version));
    world_.plan().Scatter(tensor, view.bytes, memory);
  }
  draft.views.push_back({parameters[parameter].name, parameters[parameter].dtype,
                         parameters[parameter].shape, draft.bytes});
  return draft;
}

// The payload as text, and what `body` says of its form.
std::string Player::Payload(const Draft& draft, Json::Object& body) {
  if (draft.direct) {
    body.emplace_back("load_format", "direct");
    return PickleOf(draft.views, memories_);
  }
  if (dice_.Percent(60)) {
    body.emplace_back("load_format", "safetensors");
    return SafetensorsOf(draft.views);
  }
  if (dice_.Percent(50)) return PickleOf(draft.views, memories_);
  body.emplace_back("load_format", "flattened_bucket");
  return BucketOf(draft.views, memories_);
}

Status Player::SendUpdate(const Draft& draft) {
  const Message& message = draft.message;
  const bool flush = dice_.Percent(40);
  const auto rules = [&] { return rules_.Update(message); };
  if (!draft.direct && dice_.Percent(20)) {
    std::string target = fmt::format("/update_weights_from_tensor_raw?flush_cache={}", flush);
    if (message.label) target += "&weight_version=" + *message.label;
    if (message.selector) target += fmt::format("&selector={}", update::Name(*message.selector));
    return Submit(target, SafetensorsOf(draft.views), flush, rules);
  }
  Json::Object body;
  if (message.label) body.emplace_back("weight_version", *message.label);
  if (message.selector) body.emplace_back("selector", update::Name(*message.selector));
  if (!flush || dice_.Percent(50)) body.emplace_back("flush_cache", flush);
  if (dice_.Percent(10)) body.emplace_back("abort_all_requests", true);
  const std::string payload = ToBase64(Payload(draft, body));
  body.emplace_back("serialized_named_tensors", Json(Json::Array{Json(payload)}));
  return Submit("/update_weights_from_tensor", ToText(Json(std::move(body))), flush, rules);
}

Status Player::Update() { return SendUpdate(dice_.Percent(12) ? DrawDirect() : DrawTensors()); }

// A payload that cannot be read, whoever it is for.
Status Player::Unreadable() {
  Draft draft = DrawTensors();
  draft.message.fault = Fault::kWrong;
  draft.message.names_matter = false;
  const bool flush = dice_.Percent(40);
  const auto rules = [&] { return rules_.Update(draft.message); };
  const std::string safetensors = WrongSafetensors(SafetensorsOf(draft.views), dice_);
  std::string query = fmt::format("?flush_cache={}", flush);
  Json::Object body = {{"flush_cache", flush}};
  if (draft.message.selector) {
    body.emplace_back("selector", update::Name(*draft.message.selector));
    query += fmt::format("&selector={}", update::Name(*draft.message.selector));
  }
  if (dice_.Percent(30)) {
    return Submit("/update_weights_from_tensor_raw" + query, safetensors, flush, rules);
  }
  const bool pickled = dice_.Percent(60);
  if (!pickled) body.emplace_back("load_format", "safetensors");
  if (pickled && dice_.Percent(50)) body.emplace_back("load_format", "flattened_bucket");
  const std::string payload = ToBase64(pickled ? WrongPickle(dice_) : safetensors);
  body.emplace_back("serialized_named_tensors", Json(Json::Array{Json(payload)}));
  return Submit("/update_weights_from_tensor", ToText(Json(std::move(body))), flush, rules);
}

Status Player::WrongUpdate() {
  if (dice_.Percent(40)) return Unreadable();
  Draft draft = DrawTensors();
  Message& message = draft.message;
  message.fault = Fault::kWrong;
  static const std::vector<std::byte> bytes(12);
  switch (dice_.Below(world_.alias().empty() ? 2 : 3)) {
    case 0:
      draft.views.push_back({"no.such.weight", tensor::Dtype::kF32, {3}, bytes});
      return SendUpdate(draft);
    case 1:
      if (message.tensors.empty()) return {};
      draft.views.front().dtype = tensor::Dtype::kF32;
      draft.views.front().shape = {3};
      draft.views.front().bytes = bytes;
      return SendUpdate(draft);
    default:
      if (std::ranges::find(message.tensors, world_.aliased()) == message.tensors.end()) return {};
      draft.views.push_back(
          world_.View(world_.aliased(), static_cast<std::size_t>(message.version + 1) % kVersions));
      draft.views.back().name = world_.alias();
      message.fault = Fault::kTwin;
      return SendUpdate(draft);
  }
}

// ---- checkpoints ----

Status Player::SendDisk(const std::string& path, const std::function<bool(Label)>& rules) {
  const bool flush = dice_.Percent(40);
  const Label label = MaybeLabel();
  Json::Object body = {{"model_path", path}, {"flush_cache", flush}};
  if (label) body.emplace_back("weight_version", *label);
  if (dice_.Percent(10)) body.emplace_back("abort_all_requests", true);
  const std::string text = ToText(Json(std::move(body)));
  const std::uint64_t times = dice_.Percent(10) ? 3 : 1;  // shared, or there already
  for (std::uint64_t i = 0; i < times; ++i) {
    SYNCLINE_TRY(Submit("/update_weights_from_disk", text, flush, [&] { return rules(label); }));
  }
  return times == 1 ? Status() : Settle();
}

Status Player::Disk() {
  const std::size_t version = dice_.Below(kVersions);
  return SendDisk(world_.directory(version), [&](const Label& label) {
    return rules_.Disk(static_cast<int>(version), label);
  });
}

// The label that is live, with a path that may be.
Status Player::DiskAgain() {
  SYNCLINE_TRY(Settle());
  const std::size_t version = dice_.Below(kVersions);
  const Json::Object body = {{"model_path", world_.directory(version)},
                             {"weight_version", rules_.label()}};
  SYNCLINE_TRY(Submit("/update_weights_from_disk", ToText(Json(body)), /*flush=*/true,
                      [&] { return rules_.Disk(static_cast<int>(version), rules_.label()); }));
  return Settle();
}

Status Player::BrokenDisk() {
  const BrokenCheckpoint& broken = dice_.Pick(world_.broken());
  return SendDisk(broken.path, [&](const Label&) { return rules_.BrokenDisk(broken.late); });
}

Status Player::Pull() {
  const std::uint64_t version = dice_.Below(kVersions + 1);  // one more than there are
  const Json::Object body = {{"source_dir", world_.store()},
                             {"local_checkpoint_dir", replica_},
                             {"target_version", version}};
  SYNCLINE_ASSIGN(const http::Response response,
                  Alone("POST", "/pull_weights", ToText(Json(body)), Answer::kAny));
  const bool forward = version >= static_cast<std::uint64_t>(replica_version_.value_or(0));
  if (forward && version < kVersions && response.status != 200) {
    return Wrong("/pull_weights: " + response.body);
  }
  SYNCLINE_ASSIGN(const Json reply, base::ParseJson(response.body));
  const auto* held = reply.Find("hosts")->array()->front().Find("version")->unsigned_integer();
  replica_version_.reset();
  if (held != nullptr) replica_version_ = static_cast<int>(*held);
  if (response.status != 200 || (held != nullptr && *held == version)) return {};
  return Wrong("/pull_weights says it has another version: " + response.body);
}

Status Player::DiskFromReplica() {
  return SendDisk(replica_, [&](const Label& label) {
    return replica_version_ ? rules_.Disk(*replica_version_, label)
                            : rules_.BrokenDisk(/*late=*/false);
  });
}

// Groups of processes that nobody has made.
Status Player::UseGroup() {
  SYNCLINE_TRY(Settle());
  constexpr char kUpdate[] = "/update_weights_from_distributed";
  switch (dice_.Below(4)) {
    case 0:
      SYNCLINE_TRY(Alone("POST", "/destroy_weights_update_group", "", Answer::kRefusal));
      return {};
    case 1:
      SYNCLINE_TRY(Alone("POST", "/init_weights_update_group",
                         R"({"master_address":"localhost","master_port":"no"})", Answer::kRefusal));
      return {};
    case 2:
      SYNCLINE_TRY(
          Alone("POST", kUpdate, R"({"names":["a"],"dtypes":[],"shapes":[]})", Answer::kRefusal));
      return {};
    default:
      rules_.FailSession();
      SYNCLINE_TRY(Alone("POST", kUpdate, R"({"names":["a"],"dtypes":["bfloat16"],"shapes":[[2]]})",
                         Answer::kRefusal));
      return {};
  }
}

Status Player::Relabel() {
  const std::string label = fmt::format("label{}", ++count_);
  const Json::Object body = {{"new_version", label}, {"abort_all_requests", dice_.Percent(50)}};
  SYNCLINE_TRY(Alone("POST", "/update_weight_version", ToText(Json(body)), Answer::kSuccess));
  rules_.Relabel(label);
  return {};
}

}  // namespace syncline::orders
