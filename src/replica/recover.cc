// What is found, and what it means (marker and head "agree" if they have the same version and
// token):
//
//   a complete `incoming`           a swap had begun or was about to: it is carried out
//   a marker without token          another program wrote it: what is there is hashed, to be taken
//                                   over by whoever changes it; our journals mean nothing any more
//   marker and head agree           the replica is whole. After a restart of the machine its data may
//                                   not be: the journals that led to it are carried out again, and
//                                   one that had begun after it is taken back
//   no marker, or no agreement      an apply, an undo or a repair was interrupted (ours or another
//                                   program's): the journals that led to the head are carried out
//                                   again, then the one that had begun after it; then everything is
//                                   compared with the head
//   a marker of ours without head   the head was lost: what is there is hashed and taken over
//   neither marker nor head         nothing is held
//
// Carrying out a journal is idempotent, so a recovery that is interrupted is simply begun again. What
// a journal touched is hashed afterwards; whatever is not right is reported, never trusted.
#include "replica/recover.h"

#include <fmt/format.h>

#include <set>
#include <vector>

#include "base/log.h"
#include "replica/changes.h"
#include "replica/install.h"
#include "replica/seed.h"

namespace syncline::replica {
namespace {

using base::Code;
using base::FileSystem;
using base::Result;
using base::Status;
using checkpoint::Checkpoint;
using delta::Side;
using Line = std::vector<const StoredJournal*>;

Status RemoveLeftOvers(const ReplicaState& state) {
  for (const std::string_view folder : {"", "journal"}) {
    const std::string path = state.Path(folder);
    const auto names = state.files().List(path);
    if (!names) {
      if (names.error().code == Code::kNotFound) continue;
      return std::unexpected(names.error());
    }
    for (const std::string& name : *names) {
      if (name.find(".tmp") == std::string::npos) continue;
      SYNCLINE_TRY(state.files().RemoveAll(base::JoinPath(path, name)));
    }
  }
  return {};
}

class Recovery {
 public:
  Recovery(const ReplicaState& state, base::ThreadPool& pool, base::Progress& progress,
           const base::CancelToken* cancel)
      : state_(state), pool_(pool), progress_(progress), cancel_(cancel) {}

  Result<Held> Run() {
    SYNCLINE_TRY(RemoveLeftOvers(state_));
    Seeder seeder(state_);
    SYNCLINE_ASSIGN(const bool ready, seeder.IsReady());
    SYNCLINE_ASSIGN(const auto marker, state_.ReadMarker());
    const bool foreign = marker && marker->token.empty();
    if (ready && !foreign) {
      SYNCLINE_ASSIGN(held_.head, seeder.Swap());
      SYNCLINE_ASSIGN(journals_, Journals::Open(state_));
      SYNCLINE_TRY(journals_.RemoveOthers({}));
      SYNCLINE_TRY(CheckAll());
      return Finish();
    }
    SYNCLINE_TRY(state_.files().RemoveAll(state_.Path("incoming")));
    SYNCLINE_ASSIGN(journals_, Journals::Open(state_));
    SYNCLINE_ASSIGN(held_.head, state_.ReadHead());
    const bool agree = marker && held_.head && marker->version == held_.head->held.version &&
                       marker->token == held_.head->held.token;
    if (foreign) {
      SYNCLINE_TRY(journals_.RemoveOthers({}));
      SYNCLINE_TRY(Adopt(HeldVersion{.version = marker->version}));
      held_.adopted = held_.head.has_value();
    } else if (agree) {
      SYNCLINE_TRY(held_.head->boot_id == state_.boot_id() ? Trust() : AfterRestart());
    } else if (held_.head) {
      SYNCLINE_TRY(AfterInterruption());
    } else if (marker) {
      SYNCLINE_TRY(WithoutHead(*marker));
    } else {
      SYNCLINE_TRY(journals_.RemoveOthers({}));
    }
    return std::move(held_);
  }

 private:
  // The journals that led here stay, for undo; one that begins here never changed a byte. One that
  // cannot be read may be the only record of what has not reached the device yet.
  Status Trust() {
    if (journals_.any_unreadable()) SYNCLINE_TRY(SyncAll());
    return journals_.RemoveOthers(journals_.LeadingTo(held_.head->held.token));
  }

  Status SyncAll() const {
    std::set<std::string> names;
    for (const auto& [name, hash] : held_.head->rests) {
      SYNCLINE_ASSIGN(const bool there,
                      base::Exists(state_.files(), base::JoinPath(state_.directory(), name)));
      if (there) names.insert(name);
    }
    return SyncFiles(state_.files(), state_.directory(), names, pool_);
  }

  Status AfterRestart() {
    const std::string& token = held_.head->held.token;
    const Line past = journals_.LeadingTo(token);
    const StoredJournal* begun = journals_.StartingAt(token);
    // Until the bytes are right nobody should believe the marker.
    if (!past.empty() || begun != nullptr) SYNCLINE_TRY(state_.WithdrawMarker());
    SYNCLINE_TRY(CarryOut(past, Side::kNew));
    if (begun != nullptr) {
      SYNCLINE_TRY(CarryOut({begun}, Side::kOld));
      SYNCLINE_TRY(
          SyncFiles(state_.files(), state_.directory(), begun->journal.head().FileNames(), pool_));
    }
    held_.recovered = true;
    SYNCLINE_TRY(CheckTouched());
    SYNCLINE_TRY(journals_.RemoveOthers(past));
    return Publish();
  }

  Status AfterInterruption() {
    held_.recovered = true;
    const HeldVersion from = held_.head->held;
    SYNCLINE_TRY(CarryOut(journals_.LeadingTo(from.token), Side::kNew));
    const StoredJournal* begun = journals_.StartingAt(from.token);
    // Another program may have begun something since, anywhere; so all is compared.
    if (begun == nullptr || damaged_journal_) {
      SYNCLINE_TRY(CheckAll());
      return Publish();
    }
    const JournalHead& journal = begun->journal.head();
    SYNCLINE_TRY(CarryOut({begun}, Side::kNew));
    if (!damaged_journal_) {
      held_.head->held = journal.to;
      held_.head->stamp.clear();
      for (const JournalTensor& tensor : journal.tensors) {
        held_.head->SetTensor(tensor.name, tensor.after, std::nullopt);
      }
    }
    SYNCLINE_TRY(CheckAll());
    if (damaged_journal_) return Publish();
    SYNCLINE_TRY(Publish());
    // How many elements changed is not known any more; how many there are is an upper bound.
    Change change{.from = from, .to = journal.to};
    for (const JournalTensor& tensor : journal.tensors) {
      change.tensors.push_back({tensor.name, tensor.bytes});
    }
    RecordChange(state_, change);
    return {};
  }

  Status WithoutHead(const Marker& marker) {
    const Line past = journals_.LeadingTo(marker.token);
    SYNCLINE_TRY(CarryOut(past, Side::kNew));
    HeldVersion held{.version = marker.version};
    if (!past.empty() && past.back()->journal.head().to.version == marker.version) {
      held = past.back()->journal.head().to;
    }
    SYNCLINE_TRY(Adopt(held));
    held_.recovered = true;
    return held_.head ? KeepAdopted(state_, *held_.head) : Status();
  }

  // What is there is what the marker says; its hashes are taken now. It is synced, because nobody
  // may have done so.
  Status Adopt(HeldVersion held) {
    held_.head = std::nullopt;
    const auto checkpoint = Checkpoint::Open(state_.files(), state_.directory());
    if (!checkpoint) {
      const Code code = checkpoint.error().code;
      if (code != Code::kCorrupt && code != Code::kNotFound) {
        return std::unexpected(checkpoint.error());
      }
      base::Log(base::LogLevel::kWarning,
                fmt::format("{}: version {} is not trusted: its files are damaged ({})",
                            state_.directory(), held.version, checkpoint.error().message));
      return state_.WithdrawMarker();
    }
    std::set<std::string> names;
    for (const auto& file : checkpoint->files()) names.insert(file.name);
    SYNCLINE_TRY(SyncFiles(state_.files(), state_.directory(), names, pool_));
    progress_.Begin("hash", checkpoint->total_bytes());
    SYNCLINE_ASSIGN(
        std::vector<TensorHash> hashes,
        HashTensors(state_.files(), *checkpoint, nullptr, nullptr, pool_, progress_, cancel_));
    if (held.token.empty()) held.token = DrawToken();
    Head head{.held = held, .boot_id = state_.boot_id()};
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      head.hashes.emplace(checkpoint->tensors()[i].name, std::move(hashes[i]));
    }
    SYNCLINE_ASSIGN(head.rests, HashRests(state_.files(), *checkpoint));
    held_.head = std::move(head);
    return {};
  }

  // One after the other, in the order of the line for kNew.
  Status CarryOut(const Line& line, Side side) {
    for (const StoredJournal* stored : line) {
      const Status status = Install(state_.files(), state_.directory(), stored->journal, side,
                                    Check::kNone, pool_, progress_);
      touched_.merge(stored->journal.head().TensorNames());
      if (status) continue;
      // A journal, or a file, that is damaged: what came of it is found out by the hashes.
      if (status.error().code != Code::kCorrupt && status.error().code != Code::kNotFound) {
        return status;
      }
      damaged_journal_ = true;
      base::Log(base::LogLevel::kWarning, status.error().message);
    }
    return {};
  }

  Status CheckTouched() {
    if (touched_.empty()) return {};
    SYNCLINE_ASSIGN(held_.damage,
                    FindDamage(state_, *held_.head, &touched_, pool_, progress_, cancel_));
    return {};
  }

  Status CheckAll() {
    held_.recovered = true;
    SYNCLINE_ASSIGN(held_.damage,
                    FindDamage(state_, *held_.head, nullptr, pool_, progress_, cancel_));
    return {};
  }

  // The marker stands exactly if the weights are right.
  Status Publish() {
    held_.head->boot_id = state_.boot_id();
    if (held_.damage.weights()) {
      SYNCLINE_TRY(state_.WithdrawMarker());
      return state_.WriteHead(*held_.head);
    }
    SYNCLINE_TRY(state_.WriteHead(*held_.head));
    return state_.PublishMarker(held_.head->held);
  }

  Result<Held> Finish() {
    SYNCLINE_TRY(Publish());
    return std::move(held_);
  }

  const ReplicaState& state_;
  base::ThreadPool& pool_;
  base::Progress& progress_;
  const base::CancelToken* cancel_;
  Journals journals_;
  std::set<std::string> touched_;
  bool damaged_journal_ = false;
  Held held_;
};

}  // namespace

Result<Held> Recover(const ReplicaState& state, base::ThreadPool& pool, base::Progress& progress,
                     const base::CancelToken* cancel) {
  return Recovery(state, pool, progress, cancel).Run();
}

Status KeepAdopted(const ReplicaState& state, const Head& head) {
  SYNCLINE_TRY(state.WriteHead(head));
  return state.PublishMarker(head.held);
}

Status Unshare(const ReplicaState& state, const Checkpoint& checkpoint) {
  FileSystem& files = state.files();
  for (std::size_t i = 0; i < checkpoint.files().size(); ++i) {
    const std::string path = checkpoint.FilePath(i);
    SYNCLINE_ASSIGN(const bool shared, files.IsShared(path));
    if (!shared) continue;
    const std::string aside = path + ".unshare.tmp";
    SYNCLINE_ASSIGN(const auto from, files.Open(path, base::OpenMode::kRead));
    SYNCLINE_ASSIGN(const auto to, files.Open(aside, base::OpenMode::kCreate));
    SYNCLINE_TRY(to->Allocate(checkpoint.files()[i].bytes));
    SYNCLINE_TRY(base::CopyRange(*from, 0, *to, 0, checkpoint.files()[i].bytes));
    SYNCLINE_TRY(to->Sync());
    SYNCLINE_TRY(files.Rename(aside, path));
  }
  return {};
}

}  // namespace syncline::replica
