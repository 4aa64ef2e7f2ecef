// One step back:
// 1. Withdraw the marker, durably.
// 2. Write the old values from the journal, hash what was touched, sync it.
// 3. Write the head of the version before and publish its marker, both durably.
// 4. Remove the journal.
// A process that dies between 1 and 3 leaves no marker and the journal, and the next recovery
// carries the journal out again: the replica is at the version that was to be undone.
#include "replica/undo.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <set>

#include "replica/changes.h"
#include "replica/hash_tensors.h"
#include "replica/install.h"
#include "replica/recover.h"
#include "replica/replica.h"
#include "replica/seed.h"

namespace syncline::replica {
namespace {

using base::Code;
using base::Fail;
using base::FileSystem;
using base::Result;
using base::Status;
using delta::Side;

Head HeadBefore(const ReplicaState& state, const JournalHead& journal, const Head& head) {
  Head before = head;
  before.held = journal.from;
  before.boot_id = state.boot_id();
  before.stamp.clear();
  for (const JournalTensor& tensor : journal.tensors) {
    before.SetTensor(tensor.name, tensor.before, std::nullopt);
  }
  return before;
}

Status StepBack(const ReplicaState& state, const StoredJournal& stored, Head& head,
                base::ThreadPool& pool, base::Progress& progress) {
  const JournalHead& journal = stored.journal.head();
  FileSystem& files = state.files();
  Head before = HeadBefore(state, journal, head);
  const std::set<std::string> tensors = journal.TensorNames();
  Change change{.from = journal.to, .to = journal.from};
  for (const JournalTensor& tensor : journal.tensors) {
    change.tensors.push_back({tensor.name, tensor.bytes});
  }
  SYNCLINE_TRY(state.WithdrawMarker());
  SYNCLINE_TRY(
      Install(files, state.directory(), stored.journal, Side::kOld, Check::kNone, pool, progress));
  if (!tensors.empty()) {
    SYNCLINE_ASSIGN(const Damage damage,
                    FindDamage(state, before, &tensors, pool, progress, nullptr));
    if (damage.weights()) {
      SYNCLINE_TRY(Install(files, state.directory(), stored.journal, Side::kNew, Check::kNone, pool,
                           progress));
      SYNCLINE_TRY(state.PublishMarker(head.held));
      return Fail(
          Code::kChecksumMismatch,
          fmt::format("{}: version {} would not come back: checksum mismatch for {}",
                      state.directory(), journal.from.version, fmt::join(damage.tensors, ", ")));
    }
  }
  SYNCLINE_TRY(SyncFiles(files, state.directory(), journal.FileNames(), pool));
  SYNCLINE_TRY(state.WriteHead(before));
  SYNCLINE_TRY(state.PublishMarker(before.held, /*durable=*/true));
  head = std::move(before);
  RecordChange(state, change);
  SYNCLINE_TRY(files.Remove(stored.path));
  return files.SyncDirectory(base::ParentOf(stored.path));
}

}  // namespace

Status TakeBack(const ReplicaState& state, const std::vector<const StoredJournal*>& line,
                Head& head, base::ThreadPool& pool, base::Progress& progress) {
  for (std::size_t i = line.size(); i-- > 0;) {
    SYNCLINE_TRY(StepBack(state, *line[i], head, pool, progress));
  }
  return {};
}

Result<UndoReport> Undo(FileSystem& files, const std::string& into, const UndoOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  const ReplicaState state(files, into, options.test_boot_id);
  SYNCLINE_ASSIGN(const bool replica, state.IsReplica());
  if (!replica) return Fail(Code::kNotFound, fmt::format("{} is no replica", into));
  base::Progress no_progress;
  base::Progress& progress = options.progress != nullptr ? *options.progress : no_progress;
  base::ThreadPool pool(options.threads);
  SYNCLINE_ASSIGN(const auto lock, state.Lock(base::LockMode::kExclusive, options.cancel));
  SYNCLINE_ASSIGN(Held held, Recover(state, pool, progress, options.cancel));
  if (!held.head) {
    return Fail(Code::kNotFound, fmt::format("{} holds no version: pull one", into));
  }
  if (held.damage.weights()) {
    return Fail(Code::kCorrupt, fmt::format("{}: version {} is damaged: verify --repair heals it",
                                            into, held.head->held.version));
  }
  Head& head = *held.head;
  UndoReport report{.from_version = head.held.version};
  Seeder seeder(state);
  SYNCLINE_ASSIGN(const auto previous, seeder.Previous());
  SYNCLINE_ASSIGN(Journals journals, Journals::Open(state));
  if (previous) {
    SYNCLINE_ASSIGN(const bool ready, seeder.PrepareReturn());
    if (ready) {
      SYNCLINE_ASSIGN(head, seeder.Swap());
      SYNCLINE_TRY(journals.RemoveOthers({}));
      SYNCLINE_TRY(files.RemoveAll(state.Path("previous")));
    }
  } else {
    const auto line = journals.LeadingTo(head.held.token);
    if (line.empty()) {
      return Fail(Code::kNotFound,
                  fmt::format("{}: nothing to undo: no pull has changed version {} since it came "
                              "or was last undone",
                              into, head.held.version));
    }
    SYNCLINE_TRY(TakeBack(state, line, head, pool, progress));
  }
  report.version = head.held.version;
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return report;
}

}  // namespace syncline::replica
