// 1. Read: decode every frame into change records. The replica is not touched; a damaged frame ends
//    it here.
// 2. Withdraw the marker. From here on a process that dies before the new one stands leaves none,
//    and the next pull seeds again.
// 3. Patch: each tensor is patched in memory and hashed; only if that is the published hash it is
//    written. Small tensors are written at once, large ones when all tensors are known to be right.
// 4. Write the head, publish the marker.
// If anything goes wrong in 3 or 4, the tensors that were written go back to their old bytes by the
// same records, and the old marker is published.
//
// Invariants: while a marker stands, the files are exactly that version. No tensor is written
// before its hash was right.
#include "replica/apply.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <numeric>
#include <vector>

#include "base/pool.h"
#include "delta/patch.h"
#include "replica/change_log.h"
#include "replica/tensor_patcher.h"

namespace syncline::replica {
namespace {

using base::Code;
using base::Fail;
using base::FileSystem;
using base::Result;
using base::Status;
using checkpoint::Checkpoint;
using checkpoint::CheckpointTensor;
using store::DeltaTensor;
using store::Version;

constexpr std::uint64_t kLogMemoryBytes = 96 << 20;
constexpr std::uint64_t kLargeFrameBytes = 16 << 20;
constexpr std::size_t kSegmentBytes = 1 << 20;

class Applier {
 public:
  Applier(FileSystem& files, const ReplicaState& state, const Checkpoint& checkpoint,
          const Version& version)
      : files_(files),
        checkpoint_(checkpoint),
        version_(version),
        log_(files, state.Path("changes.tmp"), kLogMemoryBytes, version.tensors.size()) {}

  Status Open() {
    for (const std::string& name : version_.files) {
      SYNCLINE_ASSIGN(auto file,
                      files_.Open(base::JoinPath(version_.directory, name), base::OpenMode::kRead));
      SYNCLINE_ASSIGN(const base::FileInfo info, file->Stat());
      counts_.bytes_read += info.size;
      frames_.push_back(std::move(file));
    }
    for (std::size_t i = 0; i < checkpoint_.files().size(); ++i) {
      SYNCLINE_ASSIGN(auto file, files_.Open(checkpoint_.FilePath(i), base::OpenMode::kReadWrite));
      weights_.push_back(std::move(file));
    }
    for (std::size_t i = 0; i < version_.tensors.size(); ++i) {
      const DeltaTensor& delta = version_.tensors[i];
      const CheckpointTensor* target = checkpoint_.Find(delta.name);
      if (target == nullptr) {
        return Fail(Code::kInvalidArgument,
                    fmt::format("tensor {} of {} is not in the replica {}", delta.name,
                                version_.files[delta.file], checkpoint_.directory()));
      }
      targets_.push_back(target);
      patchers_.emplace_back(*weights_[target->file], *target, log_, i, buffers_);
      total_bytes_ += target->bytes;
    }
    order_.resize(targets_.size());
    std::iota(order_.begin(), order_.end(), 0);
    std::ranges::stable_sort(order_, std::ranges::greater(),
                             [&](std::size_t i) { return targets_[i]->bytes; });
    return {};
  }

  // Step 1.
  Status Read(base::ThreadPool& pool, base::Progress& progress, const base::CancelToken* cancel) {
    progress.Begin("read", total_bytes_);
    return ForEachTensor(pool, cancel, [&](std::size_t i) -> Status {
      SYNCLINE_TRY(ReadFrame(i));
      progress.Add(targets_[i]->bytes);
      return {};
    });
  }

  // Step 3. Cannot be cancelled: it is over sooner than it could be undone.
  Status Patch(base::ThreadPool& pool, base::Progress& progress) {
    progress.Begin("apply", total_bytes_);
    std::atomic<bool> wrong = false;
    SYNCLINE_TRY(ForEachTensor(pool, nullptr, [&](std::size_t i) -> Status {
      // After the first wrong hash the others are only checked, so that all wrong ones can be
      // named.
      SYNCLINE_ASSIGN(const bool right, patchers_[i].Check(version_.delta->checksum,
                                                           version_.tensors[i].hash, !wrong));
      progress.Add(targets_[i]->bytes);
      if (right) return {};
      wrong = true;
      const std::scoped_lock lock(mutex_);
      wrong_.push_back(version_.tensors[i].name);
      return {};
    }));
    if (!wrong_.empty()) {
      std::ranges::sort(wrong_);
      return Fail(Code::kChecksumMismatch, fmt::format("checksum mismatch for {} tensors: {}",
                                                       wrong_.size(), fmt::join(wrong_, ", ")));
    }
    return ExchangeSegments(false, pool);
  }

  Status Undo(base::ThreadPool& pool) {
    for (const TensorPatcher& patcher : patchers_) {
      if (patcher.lost()) return Fail(Code::kIo, "neither its new nor its old bytes were written");
    }
    return ExchangeSegments(true, pool);
  }

  const ApplyCounts& counts() {
    counts_.tensors_changed = version_.tensors.size();
    for (const TensorPatcher& patcher : patchers_) {
      counts_.elements_changed += patcher.elements_changed();
    }
    return counts_;
  }

 private:
  // In parallel, largest first. Errors name the tensor and the file that its frame is in.
  template <typename Body>
  Status ForEachTensor(base::ThreadPool& pool, const base::CancelToken* cancel, const Body& body) {
    return pool.ParallelFor(
        order_.size(),
        [&](std::size_t i) -> Status {
          Status status = body(order_[i]);
          if (status) return status;
          const DeltaTensor& delta = version_.tensors[order_[i]];
          return Annotate(
              std::move(status).error(),
              fmt::format("{}: tensor {}",
                          base::JoinPath(version_.directory, version_.files[delta.file]),
                          delta.name));
        },
        cancel);
  }

  // All segments that are new, or all that are not, in parallel.
  Status ExchangeSegments(bool if_new, base::ThreadPool& pool) {
    std::vector<std::pair<std::size_t, std::size_t>> segments;
    for (const std::size_t i : order_) {
      for (std::size_t k = 0; k < patchers_[i].segment_count(); ++k) {
        if (patchers_[i].is_new(k) == if_new) segments.emplace_back(i, k);
      }
    }
    return pool.ParallelFor(segments.size(), [&](std::size_t i) {
      return patchers_[segments[i].first].Exchange(segments[i].second);
    });
  }

  Status ReadFrame(std::size_t index) {
    const DeltaTensor& delta = version_.tensors[index];
    const CheckpointTensor& target = *targets_[index];
    // Frames that take much memory are handled one at a time.
    std::unique_lock<std::mutex> alone;
    if (delta.bytes > kLargeFrameBytes) alone = std::unique_lock(large_frame_);
    const base::Pool<base::Buffer>::Lease buffer(buffers_);
    const base::MutableByteSpan frame = buffer->Get(delta.bytes);
    SYNCLINE_TRY(base::ReadExactly(*frames_[delta.file], frame, delta.offset));
    SYNCLINE_ASSIGN(const auto patch,
                    delta::OpenPatch(version_.delta->encoding, frame, target.bytes, target.dtype));
    delta::BlockPatch block = patch->MakeBlock();
    const base::Pool<std::vector<std::byte>>::Lease lease(records_);
    std::vector<std::byte>& records = *lease;
    records.clear();
    for (std::uint64_t at = 0; at < target.bytes; at += delta::kBlockBytes) {
      const std::size_t size = std::min<std::uint64_t>(delta::kBlockBytes, target.bytes - at);
      SYNCLINE_TRY(patch->Next(size, block));
      block.AppendRecord(at, size, records);
      if (records.size() >= kSegmentBytes) {
        SYNCLINE_TRY(log_.Append(index, records));
        records.clear();
      }
    }
    SYNCLINE_TRY(patch->Finish());
    return log_.Append(index, records);
  }

  FileSystem& files_;
  const Checkpoint& checkpoint_;
  const Version& version_;
  ChangeLog log_;
  base::Pool<base::Buffer> buffers_;
  base::Pool<std::vector<std::byte>> records_;
  std::vector<std::unique_ptr<base::File>> frames_;   // files of the version
  std::vector<std::unique_ptr<base::File>> weights_;  // files of the replica
  std::vector<const CheckpointTensor*> targets_;      // of each delta tensor
  std::deque<TensorPatcher> patchers_;                // of each delta tensor
  std::vector<std::size_t> order_;                    // of the delta tensors, largest first
  std::uint64_t total_bytes_ = 0;
  ApplyCounts counts_;
  std::mutex large_frame_;
  std::mutex mutex_;
  std::vector<std::string> wrong_;  // guarded by mutex_
};

// Step 3 or 4 went wrong: back to the old bytes and the old marker.
std::unexpected<base::Error> PutBack(Applier& applier, const ReplicaState& state,
                                     std::uint64_t old_version, base::Error error,
                                     base::ThreadPool& pool) {
  const Status back = applier.Undo(pool);
  const Status marker = back ? state.PublishMarker(old_version) : back;
  if (marker) {
    return Fail(error.code, fmt::format("{} (the replica was put back to version {})",
                                        error.message, old_version));
  }
  return Fail(Code::kIo,
              fmt::format("{}; putting version {} back failed too ({}): the replica must be seeded "
                          "again, which the next pull does",
                          error.message, old_version, marker.error().message));
}

}  // namespace

Result<ApplyCounts> ApplyVersion(FileSystem& files, const ReplicaState& state,
                                 const Checkpoint& checkpoint, const Version& version, Head& head,
                                 base::ThreadPool& pool, base::Progress& progress,
                                 const base::CancelToken* cancel) {
  const auto annotate = [&](base::Error error) {
    return Annotate(std::move(error), fmt::format("version {}", version.number));
  };
  Applier applier(files, state, checkpoint, version);
  if (Status status = applier.Open(); !status) return annotate(std::move(status).error());
  if (Status status = applier.Read(pool, progress, cancel); !status) {
    return annotate(std::move(status).error());
  }
  Head next = head;
  next.version = version.number;
  next.boot_id = state.BootId();
  for (const DeltaTensor& delta : version.tensors) {
    next.hashes.insert_or_assign(delta.name, TensorHash{version.delta->checksum, delta.hash});
  }
  SYNCLINE_TRY(state.WithdrawMarker());
  const auto commit = [&]() -> Status {
    SYNCLINE_TRY(applier.Patch(pool, progress));
    SYNCLINE_TRY(state.WriteHead(next));
    return state.PublishMarker(version.number);
  };
  if (Status status = commit(); !status) {
    return annotate(PutBack(applier, state, head.version, std::move(status).error(), pool).error());
  }
  head = std::move(next);
  return applier.counts();
}

}  // namespace syncline::replica
