// How the writing ranks of one trainer find each other: by files in `.syncline/writers/` of the
// store. Rank 0 leads; the others follow. All waiting is bounded by a time and can be cancelled.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "base/file.h"
#include "store/rank_files.h"

namespace syncline::store {

struct RankOptions {
  std::uint64_t rank = 0;
  std::uint64_t world = 1;
  double timeout_seconds = 600;  // of rank 0, for what the others have to do in one step; they wait
                                 // twice as long for rank 0, which waits for others itself
  // For file systems that show the files of one host to another only on request: called after
  // something was written for other ranks, and before looking for something of theirs. May be null.
  std::function<base::Status()> flush;
  std::function<base::Status()> refresh;
};

// One thread at a time.
class RankGroup {
 public:
  // Rank 0 draws its token and announces it; the store's publisher lock is its caller's. Another
  // rank takes its own lock: kLocked if another process has the rank.
  static base::Result<RankGroup> Open(base::FileSystem& files, const std::string& own_directory,
                                      RankOptions options, bool durable);

  bool leads() const { return options_.rank == 0; }
  const RankOptions& options() const { return options_; }

  // --- of rank 0
  // Begins a call of Publish.
  void BeginCall() { ++announcement_.call; }
  // A new attempt; fills token, world, call and attempt.
  base::Status Announce(Announcement announcement);
  // Parts of ranks 1 … world - 1 for the announced attempt, in order, each with its files there and
  // of the size that it says. kTimeout names the ranks that are missing. A part that says "failed"
  // is the error.
  base::Result<std::vector<RankPart>> Collect(const std::string& staging,
                                              const base::CancelToken* cancel);
  // Tells the others that the call failed.
  void AnnounceFailure(const base::Error& error);
  base::Status AnnounceEnd();

  // --- of the others
  // The next attempt in which this rank has to take part. kOutOfOrder if a call went by without it.
  base::Result<Announcement> AwaitAttempt(const base::CancelToken* cancel);
  // Writes the part of this rank for that attempt.
  base::Status Contribute(const Announcement& announcement, RankPart part);
  void ContributeFailure(const Announcement& announcement, const base::Error& error);
  // What has become of the attempt, as far as the leader says: nothing yet, an error, or an attempt
  // (or leader) after it.
  enum class Progress { kWaiting, kSuperseded };
  base::Result<Progress> Look(const Announcement& announcement);
  // The call is over, whatever its end.
  void EndCall(const Announcement& announcement);

  // Calls `step` with growing pauses until it returns true. kTimeout with `what` when it takes
  // longer than the options say.
  base::Status Wait(const std::function<base::Result<bool>()>& step,
                    const std::function<std::string()>& what, const base::CancelToken* cancel);

 private:
  RankGroup() = default;

  std::string Path(std::string_view name) const;
  base::Status Write(std::string_view name, std::string_view text);
  base::Result<std::optional<Announcement>> ReadAnnouncement();
  // Nothing: it is not there yet, or of another attempt.
  base::Result<std::optional<RankPart>> ReadPart(std::uint64_t rank);
  base::Result<bool> FilesAreThere(const RankPart& part, const std::string& staging,
                                   std::string& lacking);

  base::FileSystem* files_ = nullptr;
  std::string directory_;
  RankOptions options_;
  bool durable_ = true;
  std::unique_ptr<base::FileLock> lock_;
  Announcement announcement_;   // of rank 0: its own, the last
  std::string token_;           // of the others: the leader that they follow
  std::string answered_token_;  // of the last attempt that this rank contributed to
  std::uint64_t answered_ = 0;
  std::uint64_t call_ = 0;  // the last call of that leader that ended for this rank
};

std::string RankPartName(std::uint64_t rank);
// Of the files that a rank writes into a version: "model-r00001-".
std::string RankFilePrefix(std::uint64_t rank);

}  // namespace syncline::store
