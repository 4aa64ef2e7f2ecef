// What one rank does to the weights of its runners, the same on all ranks.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "base/error.h"
#include "base/file.h"
#include "base/thread_pool.h"
#include "checker/checker.h"
#include "layout/forms.h"
#include "layout/pieces.h"
#include "payload/payload.h"
#include "tensor/digest.h"
#include "update/runner.h"
#include "update/seeding.h"
#include "update/selector.h"
#include "update/transaction.h"
#include "update/weights_backup.h"
#include "update/window.h"

namespace syncline::update {

inline constexpr char kWeightsReleased[] =
    "the memory of the weights is released: call /resume_memory_occupation (tags: weights) first";

struct PullRequest {
  std::string source;   // store
  std::string replica;  // local checkpoint directory
  std::uint64_t version = 0;
};

struct PullOutcome {
  base::Status status;
  std::optional<std::uint64_t> held;  // that the replica is at now
};

// What lies ready to be committed on one rank.
struct Staged {
  std::uint64_t tensors = 0;  // of checkpoints; of messages those that some runner takes
  std::uint64_t skipped = 0;  // that rules leave out
  std::uint64_t bytes = 0;    // that came; of a checkpoint what this rank holds of it
  bool loaded = false;        // anything will become live
  bool unchanged = false;     // and it is what is live already
  bool in_place = false;      // something was written over live weights
  // What the replica that it was read from holds: version and identity; empty for any other
  // directory. Ranks that read different versions must not be mixed.
  std::string held;
  // Modules that wait for the rest (Transaction::Halves), of all runners.
  std::vector<std::string> pending;
};

struct RankDigests {
  // Of what this rank owns of each tensor, in the order of RankWeights::TensorNames.
  std::vector<tensor::Digest> tensors;
  std::string derived;  // xxh3-128 over the digests of the derived parameters; empty: it has none
};

// Of one runner, in the order of the runners.
struct RankCheck {
  std::string role;
  std::string message;                // of a comparison: CompareReport::Message
  std::uint64_t compared = 0;         // entries
  checker::ChecksumReport checksums;  // of checksums
  std::uint64_t scrambled = 0;  // parameters that a reset overwrote and no update has written since
};

// One update, one pull, one check and one reading of digests at a time. Unless said otherwise the
// model may compute meanwhile. "Computing thread": called by it, between two steps.
class RankWeights {
 public:
  struct Options {
    std::string launch_path;  // version 0 of pulls
    std::uint32_t rank = 0;
    std::uint64_t undo_memory = ~std::uint64_t{0};  // of each runner
    // Directory of a file that keeps the weights while their memory is released; empty: they are
    // lost.
    std::string backup_directory;
    std::optional<transport::TransferEngineOptions> p2p;  // of Offer
  };
  // All must outlive it. The first runner is the target.
  RankWeights(base::FileSystem& files, const std::vector<Runner>& runners, Options options,
              const base::CancelToken& cancel);
  ~RankWeights();

  // May an update write in place? Then no forward may run from the first message to Commit or Drop.
  bool may_write_in_place() const;

  // A bound for what one message can bring that makes sense.
  std::uint64_t most_message_bytes() const;

  // Reads and checks a whole checkpoint (configuration, every name, shape and dtype; nothing
  // missing, nothing unknown) for all runners and makes it ready. What was made ready before is
  // dropped. A replica's lock is held shared while it is read; it must be whole and stay at its
  // version.
  base::Result<Staged> Stage(const std::string& path);

  // Takes the tensors of a message for the runners that are selected. Each must be one's whose plan
  // knows it. A message that fails has written nothing, unless the fault is in its values.
  base::Result<Staged> Receive(Selector selector, payload::Format format, bool direct,
                               base::ByteSpan message);
  // The same for tensors that came another way.
  base::Result<Staged> Receive(Selector selector, const payload::Batch& batch);

  // Offers the target's parameters to trainers that write straight into them: starts the transfer
  // engine, once. kInvalidArgument without Options::p2p.
  base::Result<WindowInfo> Offer();
  // Takes all of the target for them, as it is, until Prepare or Drop (Transaction::Open). Nothing
  // may have come before. kUnavailable: the transfer engine is gone.
  base::Status Open();

  // The target's live parameters to another engine (Seeding::Send): they do not change meanwhile.
  base::Result<std::string> SendLive(const std::string& group);
  // From another engine, before the model is used.
  base::Result<std::string> ReceiveLive(const std::string& group);
  Seeding& seeding() { return seeding_; }
  // xxh3-128 of how the target's parameters lie in memory, by which engines tell that they are
  // alike.
  std::string Layout() const;

  // Makes what came ready. `whole`: halves are kOutOfOrder, else they wait; and a draft of
  // `selector` that got nothing although something came is kNotFound.
  base::Result<Staged> Prepare(Selector selector, bool whole);

  // Computing thread. What is ready is live afterwards. Names the tensors that are lost (see
  // Transaction::Lost), of all runners.
  std::vector<std::string> Commit();
  // Computing thread. Derives anew from the live weights: they may have been written by others.
  base::Status DeriveLive();
  // Forgets what came.
  std::vector<std::string> Drop();

  // Gives the memory of all runners' weights back to the system. Only between updates, and no
  // forward may run until Resume. Without a backup every tensor is lost from then on; with one a
  // failure to write it changes nothing. Resume takes the memory again, with the backup's bytes;
  // kNoSpace: it stays released. Either does nothing where it is done already. Both name what is
  // lost, as Commit.
  base::Result<std::vector<std::string>> Release();
  base::Result<std::vector<std::string>> Resume();

  // Computing thread.
  base::Result<std::vector<layout::OwnedPart>> ExportOwned(std::size_t tensor) const;

  // The checkpoint tensors of all runners, the target's first; a draft's begin with its role.
  std::vector<std::string> TensorNames() const;

  // Digests of all runners' weights that are live when BeginReading is called (between two steps);
  // computed on any thread, while the model goes on. kOutOfOrder if the weights change before it is
  // done: the change does not wait.
  std::shared_ptr<base::CancelToken> BeginReading() const;
  base::Result<RankDigests> Digests(const base::CancelToken& begun) const;

  // The checker of each selected runner. Compare and Checksums as Digests.
  base::Status Snapshot(Selector selector);
  base::Result<std::vector<RankCheck>> Compare(Selector selector,
                                               const checker::CheckOptions& options,
                                               const base::CancelToken& begun);
  base::Result<std::vector<RankCheck>> Checksums(Selector selector,
                                                 const checker::CheckOptions& options,
                                                 const base::CancelToken& begun);
  // What these options leave out of a reset, a comparison and checksums alike; names of all runners
  // that are selected.
  std::vector<std::string> SkippedNames(Selector selector,
                                        const checker::CheckOptions& options) const;
  // Computing thread.
  base::Status Reset(Selector selector, const checker::CheckOptions& options);
  // Computing thread. The snapshot's bytes of what a reset overwrote and no update has written since;
  // returns the names of those parameters.
  base::Result<std::vector<std::string>> PutBack(Selector selector);

  PullOutcome Pull(const PullRequest& request) const;

 private:
  struct OwnRunner;
  class Writing;

  base::Status AddDigests(const OwnRunner& runner, const base::CancelToken& begun,
                          std::vector<tensor::Digest>& tensors, std::string& derived) const;
  base::Status CompareConfiguration(const std::string& path) const;
  base::Result<Staged> StageIn(const std::string& path);
  base::Result<Staged> ReceiveIn(Selector selector, bool direct, const payload::Batch& batch);
  base::Result<Staged> PrepareIn(Selector selector, bool whole);
  base::Status OpenIn();
  void DropAll();
  std::vector<std::string> Lost() const;
  bool WritesInPlace() const;
  base::Status Readable() const;
  base::Status Changed(const base::CancelToken& begun) const;
  std::vector<OwnRunner*> Selected(Selector selector) const;
  template <typename Read>
  base::Result<std::vector<RankCheck>> ReadSelected(Selector selector,
                                                    const base::CancelToken& begun,
                                                    const Read& read);
  model::Model& target() const;
  void EndReading();

  base::FileSystem& files_;
  std::vector<std::unique_ptr<OwnRunner>> runners_;
  const Options options_;
  const base::CancelToken& cancel_;
  base::ThreadPool staging_pool_;
  base::ThreadPool commit_pool_;
  mutable base::ThreadPool reading_pool_;
  std::unique_ptr<Window> window_;  // null before Offer
  Seeding seeding_;
  std::uint64_t resets_ = 0;
  std::atomic<bool> in_place_ = false;     // some live slots are in the load layout
  std::atomic<bool> released_ = false;     // the live slots have no memory
  std::unique_ptr<WeightsBackup> backup_;  // while released_; null: without one
  mutable std::shared_mutex live_;         // held shared while live weights are read
  mutable std::mutex reading_mutex_;
  std::shared_ptr<base::CancelToken> reading_;  // of the live weights: cancelled when they go
};

}  // namespace syncline::update
