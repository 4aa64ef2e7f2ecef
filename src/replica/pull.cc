// 1. Take the lock; see what the replica holds (nothing, if the marker is missing or the bytes did
//    not survive a restart).
// 2. Plan: walk from the target down its bases until the version that is held, a full version, or
//    version 0. Every version on the way is read and checked; what is missing is named. Nothing has
//    been changed up to here.
// 3. Seed, if the plan says so.
// 4. Apply the deltas, each a transaction of its own (apply.cc).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>

#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "replica/apply.h"
#include "replica/hash_tensors.h"
#include "replica/replica.h"
#include "replica/seed.h"
#include "replica/state.h"
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

// What leads to the target.
struct Plan {
  bool seed = false;
  std::string seed_path;
  std::uint64_t seed_version = 0;
  bool seed_in_store = false;
  std::vector<Version> deltas;  // in the order of their use
};

// "1–9, 12"
std::string RangesText(const std::vector<std::uint64_t>& numbers) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    parts.push_back(end - i == 1 ? fmt::format("{}", numbers[i])
                                 : fmt::format("{}–{}", numbers[i], numbers[end - 1]));
    i = end;
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

class Puller {
 public:
  Puller(FileSystem& files, const std::string& store, const std::string& into,
         const PullOptions& options)
      : files_(files),
        store_(store),
        state_(files, into),
        options_(options),
        progress_(options.progress != nullptr ? *options.progress : no_progress_),
        pool_(options.threads) {}

  Result<PullReport> Run() {
    const auto begin = std::chrono::steady_clock::now();
    SYNCLINE_ASSIGN(versions_, store::ListVersions(files_, store_));
    SYNCLINE_ASSIGN(const std::uint64_t target, ChooseTarget());
    SYNCLINE_TRY(PrepareDirectory());
    SYNCLINE_ASSIGN(const auto lock, state_.Lock(base::LockMode::kExclusive, options_.cancel));
    SYNCLINE_TRY(LookAtReplica());
    report_.from_version = held_;
    report_.version = target;
    if (held_ != target) {
      SYNCLINE_ASSIGN(const Plan plan, MakePlan(target));
      SYNCLINE_TRY(Carry(plan));
    }
    report_.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return std::move(report_);
  }

 private:
  Result<std::uint64_t> ChooseTarget() const {
    if (options_.version) {
      if (*options_.version == 0 || std::ranges::binary_search(versions_, *options_.version)) {
        return *options_.version;
      }
      return Fail(Code::kNotFound,
                  fmt::format("version {} is not in {}{}", *options_.version, store_,
                              versions_.empty() ? ", which holds no version"
                                                : ": it holds " + RangesText(versions_)));
    }
    if (!versions_.empty()) return versions_.back();
    if (!options_.seed.empty()) return 0;
    return Fail(Code::kNotFound, fmt::format("{} holds no version", store_));
  }

  Status PrepareDirectory() const {
    SYNCLINE_TRY(files_.MakeDirectories(state_.directory()));
    SYNCLINE_ASSIGN(const bool replica, state_.IsReplica());
    if (!replica) {
      SYNCLINE_ASSIGN(const std::vector<std::string> names, files_.List(state_.directory()));
      if (!names.empty()) {
        return Fail(Code::kAlreadyExists,
                    fmt::format("{} holds files and is no replica; choose an empty directory",
                                state_.directory()));
      }
    }
    return files_.MakeDirectories(state_.Path(""));
  }

  // Step 1: sets held_ and head_.
  Status LookAtReplica() {
    SYNCLINE_TRY(files_.RemoveAll(state_.Path("incoming")));
    SYNCLINE_TRY(files_.RemoveAll(state_.Path("changes.tmp")));
    SYNCLINE_ASSIGN(held_, state_.ReadMarker());
    if (!held_) return {};
    auto checkpoint = Checkpoint::Open(files_, state_.directory());
    if (!checkpoint) {
      const Code code = checkpoint.error().code;
      // If it merely cannot be read now, that is no proof of damage.
      if (code != Code::kCorrupt && code != Code::kNotFound) {
        return std::unexpected(std::move(checkpoint).error());
      }
      return Distrust(fmt::format("its files are damaged ({})", checkpoint.error().message));
    }
    SYNCLINE_ASSIGN(std::optional<Head> head, state_.ReadHead(*held_));
    if (!head) return Adopt(*checkpoint);
    if (head->boot_id != state_.BootId()) {
      SYNCLINE_ASSIGN(const auto wrong, FindWrongTensors(files_, *checkpoint, *head, pool_,
                                                         progress_, options_.cancel));
      if (!wrong.empty()) {
        return Distrust(fmt::format("{} tensors did not survive a restart of the machine: {}",
                                    wrong.size(), fmt::join(wrong, ", ")));
      }
      head->boot_id = state_.BootId();
      SYNCLINE_TRY(state_.WriteHead(*head));  // once a restart is enough
    }
    head_ = *std::move(head);
    return {};
  }

  // The marker stands but means nothing.
  Status Distrust(std::string_view why) {
    base::Log(base::LogLevel::kWarning,
              fmt::format("{}: version {} is not trusted: {}; seeding again", state_.directory(),
                          *held_, why));
    held_ = std::nullopt;
    return state_.WithdrawMarker();
  }

  // Another program made or moved this replica: what it holds is what its marker says, so its
  // hashes are taken now.
  Status Adopt(const Checkpoint& checkpoint) {
    progress_.Begin("hash", checkpoint.total_bytes());
    SYNCLINE_ASSIGN(
        std::vector<TensorHash> hashes,
        HashTensors(files_, checkpoint, nullptr, nullptr, pool_, progress_, options_.cancel));
    head_ = {.version = *held_, .boot_id = state_.BootId()};
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      head_.hashes.emplace(checkpoint.tensors()[i].name, std::move(hashes[i]));
    }
    return {};
  }

  // Step 2.
  Result<Plan> MakePlan(std::uint64_t target) const {
    if (held_ && target < *held_ && target != 0) {
      return Fail(
          Code::kOutOfOrder,
          fmt::format("{} is at version {}; going back to {} is not possible: pull version 0 "
                      "first, which sets it back to the seed",
                      state_.directory(), *held_, target));
    }
    Plan plan;
    std::uint64_t at = target;
    while (true) {
      if (held_ && at == *held_) break;
      const bool in_store = std::ranges::binary_search(versions_, at);
      if (at == 0 && !in_store) {
        if (options_.seed.empty()) {
          return Fail(
              Code::kNotFound,
              fmt::format("version 0 is not in {}: say which checkpoint it is (the seed)", store_));
        }
        plan.seed = true;
        plan.seed_path = options_.seed;
        break;
      }
      if (!in_store) return Missing(at);
      SYNCLINE_ASSIGN(Version version, store::ReadVersion(files_, store_, at));
      if (!version.delta) {
        plan.seed = true;
        plan.seed_path = version.directory;
        plan.seed_version = at;
        plan.seed_in_store = true;
        break;
      }
      at = version.delta->base_version;
      if (held_ && at < *held_ && version.number > *held_) {
        return Fail(Code::kOutOfOrder,
                    fmt::format("out-of-order delta: local at {}, delta {} builds on {}", *held_,
                                version.number, at));
      }
      plan.deltas.push_back(std::move(version));
    }
    std::ranges::reverse(plan.deltas);
    if (plan.seed) {
      // The seed is read now, so that a bad one is known before anything changes.
      auto seed = Checkpoint::Open(files_, plan.seed_path);
      if (!seed) {
        return Annotate(std::move(seed).error(), fmt::format("version {}", plan.seed_version));
      }
    }
    return plan;
  }

  // Version `at` is needed and not there; so are all others down to the nearest one to start from.
  std::unexpected<base::Error> Missing(std::uint64_t at) const {
    std::vector<std::uint64_t> missing = {at};
    while (missing.back() > 1 && missing.back() - 1 != held_ &&
           !std::ranges::binary_search(versions_, missing.back() - 1)) {
      missing.push_back(missing.back() - 1);
    }
    std::ranges::reverse(missing);
    return Fail(Code::kNotFound, fmt::format("the chain is broken: {} lacks versions {}", store_,
                                             RangesText(missing)));
  }

  // Steps 3 and 4.
  Status Carry(const Plan& plan) {
    if (plan.seed) {
      SYNCLINE_ASSIGN(report_.bytes_read, Seed(files_, state_, plan.seed_path, plan.seed_version,
                                               pool_, progress_, options_.cancel));
      report_.seeded = true;
      if (plan.seed_in_store) report_.seeded_from = plan.seed_version;
      SYNCLINE_ASSIGN(std::optional<Head> head, state_.ReadHead(plan.seed_version));
      if (!head) return Fail(Code::kIo, "the head file could not be read back");
      head_ = *std::move(head);
    }
    if (plan.deltas.empty()) return {};
    SYNCLINE_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(files_, state_.directory()));
    for (const Version& version : plan.deltas) {
      SYNCLINE_ASSIGN(const ApplyCounts counts,
                      ApplyVersion(files_, state_, checkpoint, version, head_, pool_, progress_,
                                   options_.cancel));
      report_.applied.push_back(version.number);
      report_.tensors_changed += counts.tensors_changed;
      report_.elements_changed += counts.elements_changed;
      report_.bytes_read += counts.bytes_read;
    }
    return {};
  }

  FileSystem& files_;
  const std::string& store_;
  ReplicaState state_;
  const PullOptions& options_;
  base::Progress no_progress_;
  base::Progress& progress_;
  base::ThreadPool pool_;
  std::vector<std::uint64_t> versions_;  // of the store
  std::optional<std::uint64_t> held_;    // version of the replica
  Head head_;                            // of held_
  PullReport report_;
};

}  // namespace

Result<PullReport> Pull(FileSystem& files, const std::string& store, const std::string& into,
                        const PullOptions& options) {
  Puller puller(files, store, into, options);
  return puller.Run();
}

}  // namespace syncline::replica
