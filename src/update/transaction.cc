// Invariants:
//   1. Live slots of a group are in the runtime layout unless the group is in place and not
//      prepared.
//   2. Staged slots of a group are in the load layout until it is prepared, then in the runtime
//      layout; targets_ of its parameters are the staged slots, of all other parameters the live
//      ones.
//   3. A group is complete if every tensor that lies in it has come. What has not come is in a
//      staged group only after Fill.
#include "update/transaction.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <set>

#include "layout/pieces.h"
#include "layout/runs.h"
#include "model/model.h"
#include "tensor/hash.h"

namespace syncline::update {

using base::Result;
using base::Status;
using layout::Arrival;
using layout::Claim;

namespace {

constexpr std::size_t kNone = static_cast<std::size_t>(-1);

base::MutableByteSpan LoadPart(const layout::TensorSpec& spec, base::MutableByteSpan slot) {
  return slot.first(spec.bytes());
}

std::vector<base::MutableByteSpan> LoadParts(model::Model& model) {
  std::vector<base::MutableByteSpan> parts;
  for (const base::MutableByteSpan slot : model.parameters().live()) {
    parts.push_back(LoadPart(model.plan().parameters()[parts.size()], slot));
  }
  return parts;
}

// "…q_proj" of "…q_proj.weight_scale_inv".
std::string_view ModuleOf(std::string_view tensor) {
  return tensor.substr(0, std::min(tensor.rfind('.'), tensor.size()));
}

}  // namespace

Transaction::Transaction(model::Model& model, const layout::Forms& forms, std::uint64_t undo_memory)
    : model_(model),
      forms_(forms),
      undo_memory_(undo_memory),
      targets_(LoadParts(model)),
      intake_(model.plan(), targets_, &forms) {
  MakeGroups();
}

void Transaction::MakeGroups() {
  const quant::Units& units = model_.units();
  const auto live = model_.parameters().live();
  group_of_.assign(live.size(), kNone);
  for (std::size_t i = 0; i < live.size(); ++i) {
    const std::size_t unit = units.UnitOf(i);
    if (unit == quant::Units::npos) {
      group_of_[i] = groups_.size();
      groups_.push_back({.parameters = {i}});
    } else if (group_of_[i] == kNone) {
      for (const std::size_t parameter : units.units()[unit].parameters) {
        group_of_[parameter] = groups_.size();
      }
      groups_.push_back({.parameters = units.units()[unit].parameters, .unit = unit});
    }
  }
  for (Group& group : groups_) {
    for (const std::size_t parameter : group.parameters) group.bytes += live[parameter].size();
    all_bytes_ += group.bytes;
  }
}

// Each once.
std::vector<std::size_t> Transaction::TensorsOf(const Group& group) const {
  std::set<std::size_t> tensors;
  for (const std::size_t parameter : group.parameters) {
    const auto& own = intake_.TensorsOf(parameter);
    tensors.insert(own.begin(), own.end());
  }
  return {tensors.begin(), tensors.end()};
}

bool Transaction::may_write_in_place() const { return all_bytes_ > undo_memory_; }

Result<std::vector<Claim>> Transaction::Find(std::span<const Arrival> message, bool direct) const {
  return direct ? intake_.FindParameters(message) : intake_.Find(message);
}

// Memory in the second arena.
Status Transaction::Reserve(std::span<const std::size_t> parameters) {
  SYNCLINE_ASSIGN(staging_, model_.parameters().Staging());
  for (const std::size_t parameter : parameters) {
    SYNCLINE_TRY(model_.parameters().ReserveStaging(parameter));
  }
  return {};
}

Status Transaction::Stage(Group& group) {
  SYNCLINE_TRY(Reserve(group.parameters));
  staged_bytes_ += group.bytes;
  group.place = Place::kStaged;
  for (const std::size_t parameter : group.parameters) {
    targets_[parameter] = LoadPart(model_.plan().parameters()[parameter], staging_[parameter]);
  }
  return {};
}

// The slots of a group that holds the runtime layout, to the load layout.
void Transaction::Restore(const Group& group, base::ThreadPool& pool) {
  if (group.unit == kNone) return;
  const quant::Unit& unit = model_.units().units()[group.unit];
  if (!unit.scheme->Repacks()) return;
  const auto memory = group.place == Place::kStaged ? staging_ : model_.parameters().live();
  unit.scheme->Restore(unit.matrix, model_.units().SlotsOf(group.unit, memory), pool);
}

void Transaction::TakeInPlace(Group& group, base::ThreadPool& pool, bool restore) {
  group.place = Place::kInPlace;
  in_place_ = true;
  if (restore) Restore(group, pool);
}

// Decides where a group goes when the first of it comes.
Status Transaction::Touch(std::size_t index, base::ThreadPool& pool, bool restore) {
  Group& group = groups_[index];
  if (group.place != Place::kUntouched) return {};
  if (undo_memory_ - staged_bytes_ >= group.bytes) return Stage(group);
  TakeInPlace(group, pool, restore);
  return {};
}

Result<const base::Arena*> Transaction::window() const {
  if (may_write_in_place()) return &model_.parameters().live_arena();
  SYNCLINE_TRY(model_.parameters().Staging());
  return &model_.parameters().staging_arena();
}

Status Transaction::Open(base::ThreadPool& pool) {
  const bool in_place = may_write_in_place();
  std::vector<std::size_t> staged;
  for (Group& group : groups_) {
    if (model_.plan().IsDerived(group.parameters[0])) continue;
    if (in_place) {
      TakeInPlace(group, pool, /*restore=*/true);
      group.before = HashOf(group);
    } else {
      SYNCLINE_TRY(Stage(group));
      staged.insert(staged.end(), group.parameters.begin(), group.parameters.end());
    }
    group.open = true;
  }
  if (staged.empty()) return {};
  model_.parameters().CopyToStaging(staged, pool);
  for (const Group& group : groups_) {
    if (group.open) Restore(group, pool);
  }
  return {};
}

Status Transaction::Write(std::span<const Arrival> message, std::span<const Claim> claims,
                          base::ThreadPool& pool) {
  for (const std::size_t parameter : intake_.Targets(claims)) {
    SYNCLINE_TRY(Touch(group_of_[parameter], pool, /*restore=*/true));
  }
  return intake_.Write(message, claims, pool);
}

Status Transaction::Check(const checkpoint::Checkpoint& checkpoint,
                          layout::LoadOptions options) const {
  options.forms = &forms_;
  return layout::CheckNames(checkpoint, model_.plan(), options);
}

Result<layout::LoadReport> Transaction::Load(base::FileSystem& files,
                                             const checkpoint::Checkpoint& checkpoint,
                                             base::ThreadPool& pool,
                                             const layout::LoadOptions& options) {
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    if (model_.plan().IsDerived(groups_[i].parameters[0])) continue;
    SYNCLINE_TRY(Touch(i, pool, /*restore=*/false));
  }
  layout::LoadOptions with_forms = options;
  with_forms.forms = &forms_;
  SYNCLINE_ASSIGN(
      const layout::LoadReport report,
      layout::LoadCheckpoint(files, checkpoint, model_.plan(), targets_, pool, with_forms));
  intake_.NoteAll();
  return report;
}

// Of what it holds in the load layout.
std::string Transaction::HashOf(const Group& group) const {
  const auto hasher = tensor::MakeHasher(tensor::HashKind::kXxh3);
  for (const std::size_t parameter : group.parameters) hasher->Update(targets_[parameter]);
  return hasher->Hex();
}

bool Transaction::Came(const Group& group) const {
  return std::ranges::any_of(group.parameters, [&](std::size_t parameter) {
    return std::ranges::any_of(intake_.TensorsOf(parameter),
                               [&](std::size_t tensor) { return intake_.Came(tensor); });
  });
}

bool Transaction::IsComplete(const Group& group) const {
  return std::ranges::all_of(group.parameters, [&](std::size_t parameter) {
    return std::ranges::all_of(intake_.TensorsOf(parameter),
                               [&](std::size_t tensor) { return intake_.Came(tensor); });
  });
}

// What the modules of the group lack.
std::vector<std::string> Transaction::HalvesOf(const Group& group) const {
  if (group.unit == kNone || group.place == Place::kUntouched || group.open) return {};
  struct Module {
    std::vector<std::string_view> came;
    std::vector<std::string_view> missing;
  };
  std::map<std::string_view, Module> modules;
  for (const std::size_t parameter : group.parameters) {
    for (const std::size_t tensor : intake_.TensorsOf(parameter)) {
      const std::string_view name = model_.plan().tensors()[tensor].name;
      Module& module = modules[ModuleOf(name)];
      const std::string_view last = name.substr(std::min(ModuleOf(name).size() + 1, name.size()));
      (intake_.Came(tensor) ? module.came : module.missing).push_back(last);
    }
  }
  std::vector<std::string> halves;
  for (const auto& [name, module] : modules) {
    if (module.came.empty() || module.missing.empty()) continue;
    halves.push_back(fmt::format("{}: {} has come without {}", name,
                                 fmt::join(module.came, " and "),
                                 fmt::join(module.missing, " and ")));
  }
  return halves;
}

std::vector<std::string> Transaction::Halves() const {
  std::vector<std::string> halves;
  for (const Group& group : groups_) {
    std::ranges::move(HalvesOf(group), std::back_inserter(halves));
  }
  return halves;
}

// Copies what has not come from `source`, slots in the load layout.
void Transaction::FillFrom(const Group& group, std::span<const base::MutableByteSpan> source) {
  const layout::Plan& plan = model_.plan();
  for (std::size_t i = 0; i < group.parameters.size(); ++i) {
    const std::size_t parameter = group.parameters[i];
    const layout::TensorSpec& spec = plan.parameters()[parameter];
    for (const std::size_t tensor : intake_.TensorsOf(parameter)) {
      if (intake_.Came(tensor)) continue;
      for (const layout::Piece& piece : plan.PiecesOf(tensor)) {
        if (piece.parameter != parameter) continue;
        const layout::Place place = {spec.shape, piece.destination};
        layout::StreamRuns(layout::FindRuns(spec.dtype, place, place), source[i].data(),
                           targets_[parameter].data());
      }
    }
  }
}

void Transaction::Fill(const Group& group, base::ThreadPool& pool) {
  for (const std::size_t parameter : group.parameters) {
    model_.plan().ClearFillsOf(parameter, targets_[parameter]);
  }
  if (group.open || IsComplete(group)) return;
  const auto live = model_.parameters().live();
  if (group.unit == kNone) {
    const base::MutableByteSpan source = live[group.parameters[0]];
    return FillFrom(group, {&source, 1});
  }
  if (!model_.units().units()[group.unit].scheme->Repacks()) {
    return FillFrom(group, model_.units().SlotsOf(group.unit, live));
  }
  std::vector<std::vector<std::byte>> restored = model_.units().Restored(group.unit, live, pool);
  FillFrom(group, std::vector<base::MutableByteSpan>(restored.begin(), restored.end()));
}

void Transaction::Process(const Group& group, base::ThreadPool& pool) {
  if (group.unit == kNone) return;
  const quant::Unit& unit = model_.units().units()[group.unit];
  if (!unit.scheme->Repacks()) return;
  const auto memory = group.place == Place::kStaged ? staging_ : model_.parameters().live();
  unit.scheme->Process(unit.matrix, model_.units().SlotsOf(group.unit, memory), pool);
}

// The slots that will be live after Commit.
std::vector<base::MutableByteSpan> Transaction::SlotsNow() const {
  const auto live = model_.parameters().live();
  std::vector<base::MutableByteSpan> slots(live.begin(), live.end());
  for (const std::size_t parameter : ready_) slots[parameter] = staging_[parameter];
  return slots;
}

// Small beside what they are derived from, so they are always staged.
Status Transaction::Derive() {
  std::vector<std::size_t> derived;
  for (std::size_t i = 0; i < group_of_.size(); ++i) {
    if (model_.plan().IsDerived(i)) derived.push_back(i);
  }
  if (derived.empty()) return {};
  SYNCLINE_TRY(Reserve(derived));
  ready_.insert(ready_.end(), derived.begin(), derived.end());
  return model_.Derive(SlotsNow());
}

Result<Transaction::Ready> Transaction::Prepare(base::ThreadPool& pool) {
  Ready ready;
  ready_.clear();
  bool open = false;
  for (Group& group : groups_) {
    if (group.place == Place::kUntouched) continue;
    std::vector<std::string> halves = HalvesOf(group);
    if (!halves.empty()) {
      std::ranges::move(halves, std::back_inserter(ready.halves));
      continue;
    }
    open = open || group.open;
    ready.came = ready.came || Came(group);
    PrepareGroup(group, pool);
    if (group.open && !group.changed) continue;
    ready.touched = true;
    if (group.place == Place::kStaged) {
      ready_.insert(ready_.end(), group.parameters.begin(), group.parameters.end());
    }
  }
  if (!ready.touched && !open) return ready;
  SYNCLINE_TRY(Derive());
  ready.unchanged = !in_place_ && IsLive(pool);
  return ready;
}

void Transaction::PrepareGroup(Group& group, base::ThreadPool& pool) {
  if (group.place == Place::kStaged || group.open) Fill(group, pool);
  if (group.open && group.place == Place::kInPlace) group.changed = HashOf(group) != group.before;
  Process(group, pool);
  if (group.open && group.place == Place::kStaged) group.changed = DiffersFromLive(group);
  group.prepared = true;
}

bool Transaction::DiffersFromLive(const Group& group) const {
  const auto live = model_.parameters().live();
  return std::ranges::any_of(group.parameters, [&](std::size_t i) {
    return std::memcmp(live[i].data(), staging_[i].data(), live[i].size()) != 0;
  });
}

// Is what is ready live already? A step of training changes a few elements in nearly every page, so
// the first page of each parameter nearly always tells.
bool Transaction::IsLive(base::ThreadPool& pool) const {
  constexpr std::size_t kPage = 4 << 10;
  const auto live = model_.parameters().live();
  const auto same = [&](std::size_t i, std::size_t bytes) {
    return std::memcmp(live[i].data(), staging_[i].data(), bytes) == 0;
  };
  for (const std::size_t i : ready_) {
    if (!same(i, std::min(kPage, live[i].size()))) return false;
  }
  std::atomic<bool> differs = false;
  // The loop's body returns no error, so neither does the loop.
  static_cast<void>(pool.ParallelFor(ready_.size(), [&](std::size_t n) -> Status {
    const std::size_t i = ready_[n];
    if (!differs && !same(i, live[i].size())) differs = true;
    return {};
  }));
  return !differs;
}

// Back to untouched.
void Transaction::Leave(Group& group) {
  if (group.place == Place::kStaged) {
    staged_bytes_ -= group.bytes;
    // Where there is memory for all, the next update finds it warm.
    for (const std::size_t parameter : group.parameters) {
      if (may_write_in_place()) model_.parameters().ReleaseStaging(parameter);
    }
  }
  group.place = Place::kUntouched;
  group.prepared = false;
  group.open = false;
  group.changed = false;
  const auto live = model_.parameters().live();
  for (const std::size_t parameter : group.parameters) {
    targets_[parameter] = LoadPart(model_.plan().parameters()[parameter], live[parameter]);
    for (const std::size_t tensor : intake_.TensorsOf(parameter)) intake_.Forget(tensor);
  }
}

std::vector<std::size_t> Transaction::Commit(base::ThreadPool& pool) {
  model_.parameters().Commit(ready_, pool);
  std::vector<std::size_t> whole;
  for (const std::size_t parameter : ready_) {
    if (model_.plan().IsDerived(parameter)) whole.push_back(parameter);
  }
  ready_.clear();
  in_place_ = false;
  for (Group& group : groups_) {
    if (group.prepared) {
      std::erase_if(group.lost, [&](std::size_t tensor) { return intake_.Came(tensor); });
      if (group.open && (!group.gone || group.changed)) group.lost.clear();
      group.gone = group.gone && !group.lost.empty();
      if (group.changed || IsComplete(group)) {
        whole.insert(whole.end(), group.parameters.begin(), group.parameters.end());
      }
      Leave(group);
    }
    in_place_ = in_place_ || group.place == Place::kInPlace;
  }
  return whole;
}

void Transaction::Drop(base::ThreadPool& pool) {
  ready_.clear();
  for (Group& group : groups_) {
    if (group.place == Place::kUntouched) continue;
    if (group.place == Place::kInPlace) {
      const bool written =
          !group.open || (group.prepared ? group.changed : HashOf(group) != group.before);
      if (!group.prepared) Process(group, pool);
      if (written) group.lost = TensorsOf(group);
    }
    Leave(group);
  }
  in_place_ = false;
}

void Transaction::LoseAll() {
  for (Group& group : groups_) {
    group.lost = TensorsOf(group);
    group.gone = true;
  }
}

std::vector<std::string> Transaction::Lost() const {
  std::set<std::size_t> tensors;  // a tensor may lie in several groups
  for (const Group& group : groups_) tensors.insert(group.lost.begin(), group.lost.end());
  std::vector<std::string> names;
  names.reserve(tensors.size());
  for (const std::size_t tensor : tensors) names.push_back(model_.plan().tensors()[tensor].name);
  return names;
}

}  // namespace syncline::update
