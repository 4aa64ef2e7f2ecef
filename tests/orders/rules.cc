#include "orders/rules.h"

#include <algorithm>
#include <map>
#include <utility>

namespace syncline::orders {

using update::Selector;
using update::SessionRule;

Rules::Rules(const World& world, const Setting& setting)
    : world_(world),
      setting_(setting),
      live_(world.tensors(), 0),
      came_(world.tensors()),
      groups_(world.groups().size()) {}

bool Rules::may_write() const { return world_.bytes() > setting_.undo_memory; }

std::optional<int> Rules::whole() const {
  const int first = live_.front();
  const bool same = std::ranges::all_of(live_, [&](int version) { return version == first; });
  return same && first != kUnknown ? std::optional(first) : std::nullopt;
}

std::optional<std::string> Rules::pending_label() const {
  return session_ ? session_->label : std::nullopt;
}

bool Rules::lost() const {
  return std::ranges::any_of(groups_, [](const State& group) { return group.lost; });
}

bool Rules::writing() const {
  return std::ranges::any_of(groups_,
                             [](const State& group) { return group.place == Place::kInPlace; });
}

bool Rules::held() const {
  return lost() || halves() || (session_ && session_->sync_base && may_write());
}

// ---- groups ----

void Rules::Touch(std::size_t index) {
  State& group = groups_[index];
  if (group.place != Place::kUntouched) return;
  const std::uint64_t bytes = world_.groups()[index].bytes;
  if (setting_.undo_memory - staged_ >= bytes) {
    staged_ += bytes;
    group.place = Place::kStaged;
  } else {
    group.place = Place::kInPlace;
  }
}

// Groups are numbered by their first parameters, and touched in that order.
void Rules::Write(const Message& message) {
  std::vector<std::size_t> groups;
  for (const std::size_t tensor : message.tensors) groups.push_back(world_.group_of(tensor));
  std::ranges::sort(groups);
  for (const std::size_t group : groups) Touch(group);
  for (const std::size_t tensor : message.tensors) {
    came_[tensor] = message.version;
    if (groups_[world_.group_of(tensor)].place == Place::kInPlace) {
      live_[tensor] = message.version;
    }
  }
}

// Of a quantised group: a module of which a part is missing.
bool Rules::IsHalf(std::size_t index) const {
  const Group& group = world_.groups()[index];
  if (!group.quantised || groups_[index].place == Place::kUntouched) return false;
  std::map<std::string, std::pair<bool, bool>> modules;  // came, missing
  for (const std::size_t tensor : group.tensors) {
    const std::string& name = world_.plan().tensors()[tensor].name;
    auto& [came, missing] = modules[name.substr(0, name.rfind('.'))];
    (came_[tensor] ? came : missing) = true;
  }
  return std::ranges::any_of(
      modules, [](const auto& module) { return module.second.first && module.second.second; });
}

bool Rules::Prepare() {
  bool all = true;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    if (groups_[i].place == Place::kUntouched) continue;
    const bool half = IsHalf(i);
    all = all && !half;
    if (!half) groups_[i].prepared = true;
  }
  return all;
}

void Rules::Leave(std::size_t index) {
  if (groups_[index].place == Place::kStaged) staged_ -= world_.groups()[index].bytes;
  groups_[index].place = Place::kUntouched;
  groups_[index].prepared = false;
  for (const std::size_t tensor : world_.groups()[index].tensors) came_[tensor].reset();
}

void Rules::Commit() {
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    if (!groups_[i].prepared) continue;
    bool complete = true;
    for (const std::size_t tensor : world_.groups()[i].tensors) {
      complete = complete && came_[tensor];
      if (came_[tensor]) live_[tensor] = *came_[tensor];
    }
    if (complete) groups_[i].lost = false;
    Leave(i);
  }
}

void Rules::Drop() {
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    if (groups_[i].place == Place::kInPlace) groups_[i].lost = true;
    Leave(i);
  }
  waits_ = false;
}

// ---- requests ----

bool Rules::Begin(Selector selector, bool sync_base) {
  if (setting_.rule == SessionRule::kIgnored) return true;
  if (session_ && (session_->selector != selector || session_->sync_base != sync_base)) {
    return false;
  }
  Drop();
  session_ = Session{.selector = selector, .sync_base = sync_base};
  return true;
}

bool Rules::End(bool abort) {
  if (setting_.rule == SessionRule::kIgnored) return true;
  if (!session_) {
    if (!abort || !waits_) return false;
    Drop();
    return true;
  }
  const Session session = *session_;
  session_.reset();
  if (abort || session.failed || !Prepare()) {
    Drop();
    return abort;
  }
  Commit();
  label_ = session.label.value_or(label_);
  return true;
}

void Rules::EndFailed() {
  session_.reset();
  Drop();
}

bool Rules::UpdateAlone(const Message& message, Selector selector) {
  const bool seen = Selects(selector);
  const bool fails = message.fault != Fault::kNone && (seen || !message.names_matter);
  if (seen && (!fails || message.fault == Fault::kTwin)) Write(message);
  if (fails) {
    Drop();
    return false;
  }
  if (seen) waits_ = !Prepare();  // else what waits here goes on waiting
  Commit();
  label_ = message.label.value_or(label_);
  return true;
}

bool Rules::Update(const Message& message) {
  if (message.fault == Fault::kRefused) return false;
  if (!session_) {
    if (setting_.rule == SessionRule::kRequired) return false;
    return UpdateAlone(message, message.selector.value_or(Selector::kAll));
  }
  Session& session = *session_;
  const Selector selector = message.selector.value_or(session.selector);
  if (session.failed || !session.sync_base || !Covers(session.selector, selector)) return false;
  const bool seen = Selects(selector);
  const bool fails = message.fault != Fault::kNone && (seen || !message.names_matter);
  if (seen && (!fails || message.fault == Fault::kTwin)) Write(message);
  if (fails) {
    session.failed = true;
    return false;
  }
  session.loaded = session.loaded || (seen && !message.tensors.empty());
  if (message.label) session.label = message.label;
  return true;
}

bool Rules::Disk(int version, const std::optional<std::string>& label) {
  Drop();
  std::ranges::fill(live_, version);
  for (State& group : groups_) group.lost = false;
  if (session_) {
    session_->loaded = session_->failed = false;
    session_->label.reset();
  }
  label_ = label.value_or(label_);
  return true;
}

bool Rules::BrokenDisk(bool late) {
  if (session_ && session_->loaded) session_->failed = true;
  Drop();
  if (!late) return false;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    if (world_.groups()[i].derived) continue;
    Touch(i);
    if (groups_[i].place != Place::kInPlace) continue;
    for (const std::size_t tensor : world_.groups()[i].tensors) live_[tensor] = kUnknown;
  }
  Drop();
  return false;
}

bool Rules::Reset() {
  if (writing()) return false;
  std::ranges::fill(live_, kUnknown);
  return true;
}

void Rules::PutBack(std::size_t parameter) {
  for (std::size_t tensor = 0; tensor < live_.size(); ++tensor) {
    const auto pieces = world_.plan().PiecesOf(tensor);
    if (pieces.front().parameter == parameter) live_[tensor] = (*snapshot_)[tensor];
  }
}

void Rules::Relabel(const std::string& label) {
  if (session_) {
    session_->label = label;
  } else {
    label_ = label;
  }
}

}  // namespace syncline::orders
