// 1. Prepare (prepare.h): decode every frame against the replica's bytes, check what would come
//    out (tensor_check.h), and write all that would change into a journal. A damaged frame, a wrong
//    hash or digest, or a delta that did not arrive as it was published, ends it here with nothing
//    moved.
// 2. The journal and its name are synced, and with it the removal of the last pull's journals.
// 3. The marker is withdrawn, durably. From here on a process that dies, or a machine, leaves the
//    journal and no marker, and the next pull carries the journal out.
// 4. The new values are written from the journal (install.h), each block as it was hashed in 1. The
//    data is not synced.
// 5. The head is written, durably, and the marker published.
// If anything goes wrong in 3 to 5, the old values are written from the journal, hashed and synced,
// the old head and marker stand again, and the journal goes.
//
// Invariants: while a marker stands, the files are exactly that version. A byte of the replica is
// only written while a synced journal holds its old and its new value.
#include "replica/apply.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>

#include "base/log.h"
#include "replica/changes.h"
#include "replica/hash_tensors.h"
#include "replica/install.h"
#include "replica/journals.h"
#include "replica/prepare.h"

namespace syncline::replica {
namespace {

using base::Code;
using base::Fail;
using base::Result;
using base::Status;
using delta::Side;

Status PutBack(const ReplicaState& state, const std::string& path, const Head& head,
               base::ThreadPool& pool) {
  base::Progress progress;
  SYNCLINE_ASSIGN(const Journal journal, Journal::Open(state.files(), path));
  SYNCLINE_TRY(
      Install(state.files(), state.directory(), journal, Side::kOld, Check::kNone, pool, progress));
  const std::set<std::string> tensors = journal.head().TensorNames();
  SYNCLINE_ASSIGN(const Damage damage, FindDamage(state, head, &tensors, pool, progress, nullptr));
  if (damage.weights()) return Fail(Code::kChecksumMismatch, "the old bytes did not come back");
  SYNCLINE_TRY(SyncFiles(state.files(), state.directory(), journal.head().FileNames(), pool));
  SYNCLINE_TRY(state.WriteHead(head));
  SYNCLINE_TRY(state.PublishMarker(head.held));
  return state.files().Remove(path);
}

std::unexpected<base::Error> AfterFailure(const ReplicaState& state, const std::string& path,
                                          const Head& head, base::Error error,
                                          base::ThreadPool& pool) {
  const Status back = PutBack(state, path, head, pool);
  if (back) {
    return Fail(error.code, fmt::format("{} (the replica was put back to version {})",
                                        error.message, head.held.version));
  }
  return Fail(error.code,
              fmt::format("{}; putting version {} back failed too ({}): the next pull completes "
                          "what was begun",
                          error.message, head.held.version, back.error().message));
}

}  // namespace

Result<ApplyCounts> ApplyChain(const ReplicaState& state, const checkpoint::Checkpoint& checkpoint,
                               const store::Arrival& arrival, std::span<const store::Version> chain,
                               HeldVersion to, Head& head, VerifyBy verify,
                               const std::function<Status()>& before_writing,
                               base::ThreadPool& pool, base::Progress& progress,
                               const base::CancelToken* cancel) {
  to.version = chain.back().number;
  const auto annotate = [&](base::Error error) {
    return Annotate(std::move(error),
                    chain.size() == 1
                        ? fmt::format("version {}", to.version)
                        : fmt::format("versions {} to {}", chain.front().number, to.version));
  };
  base::FileSystem& files = state.files();
  to.token = DrawToken();
  SYNCLINE_ASSIGN(const std::string path, Journals::NewPath(state, to));
  const JournalHead journal_head{.boot_id = state.boot_id(), .from = head.held, .to = to};
  auto prepared = Prepare(files, checkpoint, arrival, chain, head, verify, journal_head, path, pool,
                          progress, cancel);
  if (!prepared || !prepared->wrong.empty()) (void)files.RemoveAll(path);
  if (!prepared) return annotate(std::move(prepared).error());
  ApplyCounts counts{.tensors_changed = prepared->changed.size(),
                     .elements_changed = prepared->elements_changed,
                     .bytes_read = prepared->bytes_read,
                     .journal_bytes = prepared->journal_bytes,
                     .damaged = std::move(prepared->damaged)};
  if (!counts.damaged.empty()) return counts;
  if (!prepared->wrong.empty()) {
    return annotate({Code::kChecksumMismatch,
                     fmt::format("checksum mismatch for {} tensors: {}", prepared->wrong.size(),
                                 fmt::join(prepared->wrong, ", "))});
  }

  Head next = head;
  next.held = to;
  next.boot_id = state.boot_id();
  next.stamp.clear();
  for (const store::Version& version : chain) {
    for (const store::DeltaTensor& delta : version.tensors) {
      next.SetTensor(delta.name, {version.delta->checksum, delta.hash}, delta.digest);
    }
  }
  const auto ready = [&]() -> Status {
    SYNCLINE_TRY(before_writing());
    return files.SyncDirectory(base::ParentOf(path));
  };
  if (Status status = ready(); !status) {
    (void)files.Remove(path);
    return annotate(std::move(status).error());
  }
  const auto commit = [&]() -> Status {
    SYNCLINE_TRY(state.WithdrawMarker());
    SYNCLINE_ASSIGN(const Journal journal, Journal::Open(files, path));
    SYNCLINE_TRY(
        Install(files, state.directory(), journal, Side::kNew, Check::kNewBlocks, pool, progress));
    SYNCLINE_TRY(state.WriteHead(next));
    return state.PublishMarker(to);
  };
  if (Status status = commit(); !status) {
    return annotate(AfterFailure(state, path, head, std::move(status).error(), pool).error());
  }
  RecordChange(state, Change{.from = head.held, .to = to, .tensors = prepared->changed});
  head = std::move(next);
  return counts;
}

}  // namespace syncline::replica
