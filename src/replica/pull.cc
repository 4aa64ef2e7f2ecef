// 1. Choose the target; take the lock; choose again, if it is the newest one that is wanted.
// 2. Recover (recover.h), and repair what is damaged.
// 3. Plan (plan.h), from manifests and indexes alone. Nothing has been changed up to here.
// 4. Bring: all deltas of the plan set out at once (store/arrival.h), and their headers are read as
//    they come. A plan that starts elsewhere than at what is held waits for them, and then brings
//    its start.
// 5. Carry: seed, if the plan says so; apply the deltas, as one transaction where their frames are
//    small (apply.cc), and if that fails one by one, so that those before a bad one are applied.
//    They are decoded while they arrive. The journals of the pull before serve undo until now;
//    before the first byte moves its data is synced (that runs beside step 5's reading), and they
//    go.
// A fold that turns out to be bad, in 4 or before 5 has moved anything, is left alone: it goes on
// at 3, from where the replica is, without it.
//
// Invariant: nothing of the replica changes before every file of the plan was there as a whole,
// with the size and SHA-256 of its manifest. So whatever goes wrong while something still arrives,
// and may come of wrong bytes, is judged when the end of the arrival is known: if that is an error,
// it is the pull's (or the fold's); otherwise the work is done once more, from proven bytes.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <set>

#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "replica/apply.h"
#include "replica/install.h"
#include "replica/journals.h"
#include "replica/overlapping_progress.h"
#include "replica/plan.h"
#include "replica/recover.h"
#include "replica/repair.h"
#include "replica/replica.h"
#include "replica/seed.h"
#include "replica/tensor_check.h"
#include "replica/undo.h"
#include "store/retention.h"
#include "store/version.h"

namespace syncline::replica {
namespace {

using base::Code;
using base::Fail;
using base::FileSystem;
using base::Result;
using base::Status;
using checkpoint::Checkpoint;
using store::Version;

constexpr std::uint64_t kMaxFoldedFrameBytes = 64 << 20;

// May reading something else than what was published lead to this?
bool MayComeOfWrongBytes(Code code) {
  return code != Code::kIo && code != Code::kNoSpace && code != Code::kCancelled;
}

// The last pull's journals and files, while the next one begins: gone once it may change something.
class LastPull {
 public:
  static Result<std::unique_ptr<LastPull>> Open(const ReplicaState& state) {
    auto last = std::make_unique<LastPull>(state);
    SYNCLINE_ASSIGN(last->journals_, Journals::Open(state));
    std::set<std::string> names;
    for (const StoredJournal& stored : last->journals_.all()) {
      names.merge(stored.journal.head().FileNames());
    }
    if (!names.empty()) {
      last->synced_ = std::async(std::launch::async, [&state, names]() -> Status {
        base::ThreadPool pool(1);
        return SyncFiles(state.files(), state.directory(), names, pool);
      });
    }
    return last;
  }
  explicit LastPull(const ReplicaState& state) : state_(state) {}

  // What the journals changed is on the device.
  Status Sync() { return synced_.valid() ? synced_.get() : Status(); }

  Status SyncRemoval() {
    const std::string folder = state_.Path("journal");
    SYNCLINE_ASSIGN(const bool there, base::Exists(state_.files(), folder));
    return there ? state_.files().SyncDirectory(folder) : Status();
  }

  // Durable once SyncRemoval was called, or the folder synced otherwise.
  Status Forget() {
    SYNCLINE_TRY(Sync());
    SYNCLINE_TRY(journals_.RemoveOthers({}));
    return state_.files().RemoveAll(state_.Path("previous"));
  }

 private:
  const ReplicaState& state_;
  Journals journals_;
  std::future<Status> synced_;
};

class Puller {
 public:
  Puller(FileSystem& files, const std::string& into, const PullOptions& options)
      : files_(files),
        state_(files, into, options.test_boot_id),
        options_(options),
        progress_(options.progress != nullptr ? *options.progress : no_progress_),
        pool_(options.threads) {}

  Result<PullReport> Run(const std::string& store) {
    const auto begin = std::chrono::steady_clock::now();
    store::SourceOptions source_options = options_.source;
    source_options.cancel = options_.cancel;
    SYNCLINE_ASSIGN(source_, store::Source::Open(files_, store, std::move(source_options)));
    SYNCLINE_TRY(source_->Refresh(options_.version));
    SYNCLINE_ASSIGN(report_.version, ChooseTarget());
    SYNCLINE_TRY(PrepareDirectory());
    SYNCLINE_ASSIGN(const auto lock, state_.Lock(base::LockMode::kExclusive, options_.cancel));
    // Another process may have pulled a newer one while this one waited.
    if (!options_.version) {
      SYNCLINE_ASSIGN(report_.version, ChooseTarget());
    }
    SYNCLINE_TRY(LookAtReplica());
    if (held_) report_.from_version = held_->held.version;
    SYNCLINE_TRY(Advance(report_.version));
    (void)files_.RemoveAll(state_.Path("fetch"));
    report_.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return std::move(report_);
  }

 private:
  Result<std::uint64_t> ChooseTarget() {
    if (!options_.version) return source_->Latest();
    if (*options_.version == 0) return 0;
    SYNCLINE_ASSIGN(const bool there, source_->Has(*options_.version));
    if (there || !source_->is_directory() || options_.source.wait_seconds.value_or(0) > 0) {
      return *options_.version;  // if it is missing, the plan waits for it
    }
    SYNCLINE_ASSIGN(const std::vector<std::uint64_t> versions, source_->ListVersions());
    return Fail(Code::kNotFound,
                fmt::format("version {} is not in {}{}", *options_.version, source_->url(),
                            versions.empty() ? "" : "; it holds " + RangesText(versions)));
  }

  Status PrepareDirectory() const {
    SYNCLINE_TRY(base::MakeDirectoriesDurably(files_, state_.directory(), true));
    // Another first pull may make the folder between two looks, so there is only one.
    SYNCLINE_ASSIGN(const std::vector<std::string> names, files_.List(state_.directory()));
    const std::string folder = state_.Path("");
    const std::string_view own = base::BaseName(folder);
    if (!names.empty() && std::ranges::find(names, own) == names.end()) {
      return Fail(Code::kAlreadyExists,
                  fmt::format("{} holds files and is no replica; choose an empty directory",
                              state_.directory()));
    }
    return base::MakeDirectoriesDurably(files_, state_.Path(""), true);
  }

  // Step 2: sets held_.
  Status LookAtReplica() {
    SYNCLINE_ASSIGN(Held held, Recover(state_, pool_, progress_, options_.cancel));
    report_.recovered = held.recovered;
    held_ = std::move(held.head);
    adopted_ = held.adopted;
    seed_ = options_.seed.empty() && held_ ? held_->seed : options_.seed;
    if (held_ && held.damage.weights()) SYNCLINE_TRY(Heal(std::move(held.damage)));
    return {};
  }

  // Heals what is held, or gives it up: then another checkpoint has to take its place.
  Status Heal(Damage damage) {
    SYNCLINE_TRY(Keep());
    const auto repaired = Repair(state_, *held_, std::move(damage), *source_, seed_, pool_,
                                 progress_, options_.cancel);
    if (repaired) {
      report_.tensors_repaired += repaired->tensors;
      report_.bytes_read += repaired->bytes_read;
      return {};
    }
    if (repaired.error().code == Code::kCancelled) return std::unexpected(repaired.error());
    base::Log(base::LogLevel::kWarning,
              fmt::format("{}: version {} is damaged and could not be healed: {}",
                          state_.directory(), held_->held.version, repaired.error().message));
    held_ = std::nullopt;
    return {};
  }

  Status Advance(std::uint64_t target) {
    if (held_ && target < held_->held.version && target != 0) return GoBack(target);
    // Target 0 is a reset: what is held does not lead there, unless it is version 0.
    const HeldVersion* from = held_ && held_->held.version <= target ? &held_->held : nullptr;
    SYNCLINE_ASSIGN(const Plan plan, MakePlan(*source_, target, from, seed_, folds_));
    if (plan.kind == Plan::Start::kHeld && plan.deltas.empty()) {
      SYNCLINE_ASSIGN(const bool same, IsUnchanged(target));
      if (same) return Keep();
      held_ = std::nullopt;
      return Advance(target);
    }
    for (const store::Described& delta : plan.deltas) {
      const Status digests = CheckDigests(options_.verify, {&delta, 1});
      if (!digests) return GoOnWithout(&delta, digests.error(), target);
    }
    const auto lease = TakeLease(plan);
    arrival_.reset();  // of a plan that was given up; it has the same place
    const store::Described* reading = nullptr;
    auto brought = Bring(plan, reading);
    if (!brought) return GoOnWithout(BadDelta(plan.deltas, reading), brought.error(), target);
    std::vector<Version>& deltas = *brought;
    SYNCLINE_ASSIGN(last_, LastPull::Open(state_));
    if (plan.kind != Plan::Start::kHeld) SYNCLINE_TRY(Reseed(plan));
    std::span<Version> chain = deltas;
    std::span<const store::Described> described = plan.deltas;
    while (!chain.empty()) {
      std::size_t count = FoldCount(chain);
      auto applied = Apply(chain.first(count), described.first(count));
      // Which one is it? Those before it can be applied, unless not all has come.
      if (!applied && count > 1 && applied.error().code != Code::kCancelled && arrival_->Wait()) {
        count = 1;
        applied = Apply(chain.first(count), described.first(count));
      }
      if (!applied && touched_) return std::unexpected(std::move(applied).error());
      if (!applied) {
        const store::Described* one = count == 1 ? &described.front() : nullptr;
        return GoOnWithout(BadDelta(plan.deltas, one), applied.error(), target);
      }
      // What was held is damaged beyond healing, so another start is needed; once.
      if (!*applied) return Advance(target);
      SYNCLINE_TRY(LimitJournals());
      chain = chain.subspan(count);
      described = described.subspan(count);
    }
    return {};
  }

  // Which delta of the plan is to blame for an error: the one whose files did not arrive as they
  // must, else `reading`. Null: none that is known.
  const store::Described* BadDelta(std::span<const store::Described> deltas,
                                   const store::Described* reading) const {
    if (arrival_ == nullptr || !arrival_->ended() || arrival_->Wait()) return reading;
    const auto failed = arrival_->failed_version();
    if (!failed) return nullptr;
    const auto found = std::ranges::find(deltas, *failed, &store::Described::number);
    return found == deltas.end() ? nullptr : &*found;
  }

  // May an error say that a delta is not what it must be?
  static bool IsOfBadFiles(Code code) {
    switch (code) {
      case Code::kInvalidArgument:
      case Code::kNotFound:
      case Code::kCorrupt:
      case Code::kChecksumMismatch:
      case Code::kIncompatible:
      case Code::kOutOfOrder:
      case Code::kLimitExceeded:
        return true;
      default:
        return false;
    }
  }

  // `bad` (may be null) is to blame for an error, and nothing has moved since. If it is a fold,
  // there may be another way to the target.
  Status GoOnWithout(const store::Described* bad, const base::Error& error, std::uint64_t target) {
    if (bad == nullptr || !bad->is_fold() || !IsOfBadFiles(error.code)) {
      return std::unexpected(error);
    }
    const std::string fold = bad->folder;
    base::Log(base::LogLevel::kWarning,
              fmt::format("{} of {} is of no use, and another way is looked for: {}", fold,
                          source_->url(), error.message));
    folds_.without.insert(fold);
    Status other = Advance(target);
    if (other || other.error().code == Code::kCancelled) return other;
    return Fail(error.code,
                fmt::format("{}; without {}: {}", error.message, fold, other.error().message));
  }

  // What attempt() does with what arrives, by the invariant above.
  template <typename Attempt>
  auto WhileArriving(const Attempt& attempt) -> decltype(attempt()) {
    const bool proven = arrival_->ended();
    if (proven) SYNCLINE_TRY(arrival_->Wait());
    auto result = attempt();
    if (result || proven || touched_) return result;
    // A read that fails because the fetch has failed is not the first to know.
    if (!arrival_->ended() && !MayComeOfWrongBytes(result.error().code)) return result;
    SYNCLINE_TRY(arrival_->Wait());
    if (!MayComeOfWrongBytes(result.error().code)) return result;
    return attempt();
  }

  // How many of the next deltas are applied as one: as long as their frames, of which each thread
  // holds those of the tensors that it works on, stay small.
  static std::size_t FoldCount(std::span<const Version> chain) {
    std::uint64_t held = 0;
    std::size_t count = 0;
    for (const Version& version : chain) {
      held += version.LargestFrameBytes();
      if (count > 0 && held > kMaxFoldedFrameBytes) break;
      ++count;
    }
    return count;
  }

  // So that retention leaves what this pull reads. Null where there is no place for it.
  std::unique_ptr<store::Lease> TakeLease(const Plan& plan) {
    const std::uint64_t from =
        plan.kind != Plan::Start::kHeld ? plan.start_version() : plan.deltas.front().number;
    const std::uint64_t to = plan.deltas.empty() ? from : plan.deltas.back().number;
    return store::TakeLease(source_->objects(), from, to, files_);
  }

  // What another program left is ours from now on.
  Status Keep() {
    if (!adopted_) return {};
    adopted_ = false;
    return KeepAdopted(state_, *held_);
  }

  // A replica that follows from far behind does not keep more of the way than its own size, but
  // always the last step.
  Status LimitJournals() {
    if (journal_bytes_ <= replica_bytes_) return {};
    SYNCLINE_ASSIGN(Journals journals, Journals::Open(state_));
    auto line = journals.LeadingTo(held_->held.token);
    const auto sum = [&] {
      std::uint64_t bytes = 0;
      for (const StoredJournal* stored : line) bytes += stored->journal.bytes();
      return bytes;
    };
    if (line.size() < 2) return {};
    SYNCLINE_ASSIGN(const auto last, LastPull::Open(state_));
    SYNCLINE_TRY(last->Sync());
    while (line.size() > 1 && sum() > replica_bytes_) line.erase(line.begin());
    journal_bytes_ = sum();
    return journals.RemoveOthers(line);
  }

  // Has nobody written over the full version that is held, in the store? Where a manifest vouches
  // for its bytes that is damage; where nothing does, it is another version now.
  Result<bool> IsUnchanged(std::uint64_t target) {
    if (held_->stamp.empty()) return true;
    SYNCLINE_ASSIGN(const store::Described version, source_->Describe(target));
    SYNCLINE_ASSIGN(const std::string stamp, source_->Stamp(version));
    if (stamp == held_->stamp) return true;
    if (!version.manifest) return false;
    SYNCLINE_TRY(store::CheckFiles(files_, version.directory, version.manifest->manifest,
                                   store::Part::kVersion, true, pool_, options_.cancel));
    held_->stamp = stamp;
    SYNCLINE_TRY(state_.WriteHead(*held_));
    return true;
  }

  Status GoBack(std::uint64_t target) {
    SYNCLINE_ASSIGN(const Journals journals, Journals::Open(state_));
    const auto line = journals.LeadingTo(held_->held.token);
    const auto first = std::ranges::find_if(line, [&](const StoredJournal* stored) {
      return stored->journal.head().from.version == target;
    });
    if (first == line.end()) {
      const std::string how = line.empty()
                                  ? "the last pull cannot be taken back"
                                  : fmt::format("the last pull can be taken back to version {}",
                                                line.front()->journal.head().from.version);
      return Fail(Code::kOutOfOrder,
                  fmt::format("{} is at version {}; going back to {} is not possible: {}; pull "
                              "version 0 first, which sets it back to the seed",
                              state_.directory(), held_->held.version, target, how));
    }
    SYNCLINE_ASSIGN(const bool same, IsHeld(*source_, (*first)->journal.head().from, nullptr));
    if (!same) {
      return Fail(Code::kOutOfOrder,
                  fmt::format("version {} of {} is another one than {} held before", target,
                              source_->url(), state_.directory()));
    }
    for (auto stored = line.end(); stored-- != first;) {
      report_.undone.push_back((*stored)->journal.head().to.version);
    }
    return TakeBack(state_, {first, line.end()}, *held_, pool_, progress_);
  }

  // What was read for applying must be what the plan was made from.
  Status CheckDelta(const Version& version, const store::Described& described) const {
    const auto changed = [&](const std::string& what) {
      return Fail(Code::kCorrupt, fmt::format("version {} of {} changed while it was read: {}",
                                              version.number, source_->url(), what));
    };
    if (!version.delta) return changed("it was a delta");
    if (version.delta->base_version != described.delta->base_version) return changed("its base");
    if (!described.manifest || described.manifest->manifest.tensors_in_files) return {};
    const std::vector<store::ManifestTensor>& expected = described.manifest->manifest.tensors;
    if (version.tensors.size() != expected.size()) {
      return changed(
          fmt::format("{} tensors, the manifest says {}", version.tensors.size(), expected.size()));
    }
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (version.tensors[i].name != expected[i].name) return changed(expected[i].name);
      if (version.delta->checksum != tensor::HashKind::kXxh3) continue;
      if (version.tensors[i].hash != expected[i].hash) return changed(expected[i].name);
    }
    return {};
  }

  Result<Version> ReadDelta(const store::Described& described) const {
    SYNCLINE_ASSIGN(Version version, store::ReadVersionIn(arrival_->files(), arrival_->path(),
                                                          described.folder, described.number));
    SYNCLINE_TRY(CheckDelta(version, described));
    return version;
  }

  // Step 4. After an error `reading` is the delta whose headers were read; null: none.
  Result<std::vector<Version>> Bring(const Plan& plan, const store::Described*& reading) {
    const std::string spool = state_.Path("fetch");
    touched_ = false;
    shown_ = std::make_unique<OverlappingProgress>(progress_);
    SYNCLINE_ASSIGN(arrival_, source_->StartBringing(plan.deltas, spool, pool_, shown_->first()));
    if (source_->is_directory()) shown_->EndFirst();
    if (plan.kind != Plan::Start::kHeld) SYNCLINE_TRY(arrival_->Wait());
    std::vector<Version> deltas;
    for (const store::Described& described : plan.deltas) {
      reading = &described;
      SYNCLINE_ASSIGN(Version version, WhileArriving([&] { return ReadDelta(described); }));
      SYNCLINE_TRY(CheckDigests(options_.verify, {&version, 1}));
      deltas.push_back(std::move(version));
    }
    reading = nullptr;
    if (plan.kind == Plan::Start::kHeld) return deltas;
    // The start is read now, so that a bad one is known before anything changes.
    start_directory_ = plan.seed;
    if (plan.kind != Plan::Start::kSeed) {
      SYNCLINE_ASSIGN(start_directory_,
                      source_->Bring(plan.start, plan.start_part(), spool, pool_, progress_));
    }
    auto seed = Checkpoint::Open(files_, start_directory_);
    if (!seed) {
      return Annotate(std::move(seed).error(), fmt::format("version {}", plan.start_version()));
    }
    return deltas;
  }

  // Step 5.
  Status Reseed(const Plan& plan) {
    const bool in_store = plan.kind != Plan::Start::kSeed;
    SeedOptions options{.to = {.version = plan.start_version()},
                        .source = source_->url(),
                        .seed = seed_,
                        .consume = in_store && !source_->is_directory()};
    const store::Manifest* expected = nullptr;
    if (in_store) {
      options.to.identity = plan.start.identity;
      SYNCLINE_ASSIGN(options.stamp, source_->Stamp(plan.start));
      if (plan.start.manifest) {
        options.to.run = plan.start.manifest->manifest.run;
        expected = &plan.start.manifest->manifest;
      }
    }
    Seeder seeder(state_);
    SYNCLINE_ASSIGN(const std::uint64_t bytes,
                    seeder.Bring(start_directory_, options, expected, plan.start_part(), pool_,
                                 progress_, options_.cancel));
    SYNCLINE_TRY(Keep());
    SYNCLINE_TRY(last_->Forget());
    SYNCLINE_TRY(last_->SyncRemoval());
    SYNCLINE_ASSIGN(held_, seeder.Swap());
    report_.bytes_read += bytes;
    report_.seeded = true;
    if (in_store) report_.seeded_from = plan.start.number;
    last_.reset();
    return {};
  }

  // False: what is held was damaged, and had to be given up.
  Result<bool> Apply(std::span<Version> chain, std::span<const store::Described> described) {
    const store::Described& last = described.back();
    const HeldVersion to{.run = last.manifest ? last.manifest->manifest.run : held_->held.run,
                         .identity = last.identity};
    held_->source = source_->url();
    held_->seed = seed_;
    touched_ = false;
    std::optional<Checkpoint> checkpoint;
    const auto before_writing = [&]() -> Status {
      touched_ = true;
      SYNCLINE_TRY(Unshare(state_, *checkpoint));
      SYNCLINE_TRY(Keep());
      if (last_ == nullptr) return {};
      SYNCLINE_TRY(last_->Forget());
      last_.reset();
      return {};
    };
    for (int attempt = 0; true; ++attempt) {
      SYNCLINE_ASSIGN(checkpoint, Checkpoint::Open(files_, state_.directory()));
      bool again = false;
      const auto apply = [&]() -> Result<ApplyCounts> {
        // What stands where in the files is known from wrong bytes, too.
        for (std::size_t i = 0; again && i < chain.size(); ++i) {
          SYNCLINE_ASSIGN(chain[i], ReadDelta(described[i]));
        }
        again = true;
        return ApplyChain(state_, *checkpoint, *arrival_, chain, to, *held_, options_.verify,
                          before_writing, pool_, shown_->second(), options_.cancel);
      };
      SYNCLINE_ASSIGN(ApplyCounts counts, WhileArriving(apply));
      if (counts.damaged.empty()) {
        for (const Version& version : chain) report_.applied.push_back(version.number);
        report_.tensors_changed += counts.tensors_changed;
        report_.elements_changed += counts.elements_changed;
        report_.bytes_read += counts.bytes_read;
        journal_bytes_ += counts.journal_bytes;
        replica_bytes_ = checkpoint->total_bytes();
        return true;
      }
      const std::string names = fmt::format("{}", fmt::join(counts.damaged, ", "));
      base::Log(base::LogLevel::kWarning,
                fmt::format("{}: {} of version {} is damaged", state_.directory(), names,
                            held_->held.version));
      if (attempt > 0) {
        return Fail(Code::kChecksumMismatch,
                    fmt::format("{}: {} is damaged again: is the disk failing?", state_.directory(),
                                names));
      }
      SYNCLINE_TRY(arrival_->Wait());
      SYNCLINE_TRY(Heal({.tensors = std::move(counts.damaged)}));
      if (!held_) return false;
    }
  }

  FileSystem& files_;
  ReplicaState state_;
  const PullOptions& options_;
  base::Progress no_progress_;
  base::Progress& progress_;
  base::ThreadPool pool_;
  std::unique_ptr<store::Source> source_;
  std::optional<Head> held_;        // what the replica holds, whole
  bool adopted_ = false;            // and it is another program's, so far
  std::string seed_;                // checkpoint that is version 0: as it was given, now or earlier
  FoldUse folds_;                   // bad ones are added
  std::string start_directory_;     // of the plan's start
  std::unique_ptr<LastPull> last_;  // until this pull changes something
  std::uint64_t journal_bytes_ = 0;  // of this pull's journals
  std::uint64_t replica_bytes_ = 0;
  PullReport report_;
  bool touched_ = false;                        // the replica, by the last apply
  std::unique_ptr<OverlappingProgress> shown_;  // of what arrives, and of applying it
  std::unique_ptr<store::Arrival> arrival_;     // of the plan's deltas; uses all of the above
};

}  // namespace

Result<PullReport> Pull(FileSystem& files, const std::string& store, const std::string& into,
                        const PullOptions& options) {
  Puller puller(files, into, options);
  return puller.Run(store);
}

}  // namespace syncline::replica
