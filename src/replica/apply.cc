// 1. Stage: read each frame, read the tensor it belongs to, patch it block by block in memory, hash
// the result, and log what changes (old and new
//    values). The replica is only read.
// 2. Verify: every hash must be the published one, else nothing happened.
// 3. Withdraw the marker. From here on a process that dies before the new one leaves none, and the
// next pull seeds again.
// 4. Commit: write the logged changes into the files, then the head, then the new marker. On a
// failure write the old values back and publish the old
//    marker.
//
// Invariant: while a marker stands, the files are exactly that version.
#include "replica/apply.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "delta/patch.h"
#include "replica/change_log.h"

namespace syncline::replica {
namespace {

using base::Code;
using base::Fail;
using base::FileSystem;
using base::MutableByteSpan;
using base::Result;
using base::Status;
using checkpoint::Checkpoint;
using checkpoint::CheckpointTensor;
using delta::Direction;
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
        log_(files, state.Path("changes.tmp"), kLogMemoryBytes) {}

  Status Open() {
    for (const std::string& name : version_.files) {
      SYNCLINE_ASSIGN(auto file,
                      files_.Open(base::JoinPath(version_.directory, name), base::OpenMode::kRead));
      SYNCLINE_ASSIGN(const base::FileInfo info, file->Stat());
      counts_.bytes_read += info.size;
      frames_.push_back(std::move(file));
    }
    for (const DeltaTensor& delta : version_.tensors) {
      const CheckpointTensor* target = checkpoint_.Find(delta.name);
      if (target == nullptr) {
        return Fail(Code::kInvalidArgument,
                    fmt::format("tensor {} of {} is not in the replica {}", delta.name,
                                version_.files[delta.file], checkpoint_.directory()));
      }
      targets_.push_back(target);
      total_bytes_ += target->bytes;
    }
    for (std::size_t i = 0; i < checkpoint_.files().size(); ++i) {
      SYNCLINE_ASSIGN(auto file, files_.Open(checkpoint_.FilePath(i), base::OpenMode::kReadWrite));
      weights_.push_back(std::move(file));
    }
    return {};
  }

  // Steps 1 and 2.
  Status Stage(base::ThreadPool& pool, base::Progress& progress, const base::CancelToken* cancel) {
    std::vector<std::size_t> order(targets_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::stable_sort(order, std::ranges::greater(),
                             [&](std::size_t i) { return targets_[i]->bytes; });
    progress.Begin("check", total_bytes_);
    SYNCLINE_TRY(pool.ParallelFor(
        order.size(),
        [&](std::size_t i) -> Status {
          const std::size_t tensor = order[i];
          Status status = StageTensor(tensor, progress);
          if (status) return status;
          return Annotate(std::move(status).error(),
                          fmt::format("{}: tensor {}",
                                      base::JoinPath(version_.directory,
                                                     version_.files[version_.tensors[tensor].file]),
                                      version_.tensors[tensor].name));
        },
        cancel));
    if (wrong_.empty()) return {};
    std::ranges::sort(wrong_);
    return Fail(Code::kChecksumMismatch, fmt::format("checksum mismatch for {} tensors: {}",
                                                     wrong_.size(), fmt::join(wrong_, ", ")));
  }

  // Step 4. Whole segments in parallel; a segment lies in one tensor.
  Status Write(Direction direction, base::ThreadPool& pool) {
    return pool.ParallelFor(log_.segment_count(), [&](std::size_t i) -> Status {
      const CheckpointTensor& target = *targets_[log_.tensor(i)];
      std::vector<std::byte> from_file;
      SYNCLINE_ASSIGN(base::ByteSpan records, log_.Read(i, from_file));
      std::vector<std::byte> block(delta::kBlockBytes);
      while (!records.empty()) {
        SYNCLINE_ASSIGN(const auto record, delta::BlockRecord::Read(records));
        records = records.subspan(record.record_bytes());
        const std::uint64_t offset = target.offset + record.offset() + record.first_byte();
        const std::size_t size = record.end_byte() - record.first_byte();
        base::File& file = *weights_[target.file];
        const MutableByteSpan bytes = std::span(block).first(size);
        SYNCLINE_TRY(base::ReadExactly(file, bytes, offset));
        record.Apply(direction, bytes);
        SYNCLINE_TRY(file.WriteAt(bytes, offset));
      }
      return {};
    });
  }

  const ApplyCounts& counts() {
    counts_.tensors_changed = version_.tensors.size();
    counts_.elements_changed = elements_changed_;
    return counts_;
  }

 private:
  Status StageTensor(std::size_t index, base::Progress& progress) {
    const DeltaTensor& delta = version_.tensors[index];
    const CheckpointTensor& target = *targets_[index];
    base::File& file = *weights_[target.file];
    // Frames that take much memory are handled one at a time.
    std::unique_lock<std::mutex> alone;
    if (delta.bytes > kLargeFrameBytes) alone = std::unique_lock(large_frame_);
    std::vector<std::byte> frame(delta.bytes);
    SYNCLINE_TRY(base::ReadExactly(*frames_[delta.file], frame, delta.offset));
    SYNCLINE_ASSIGN(const auto patch,
                    delta::OpenPatch(version_.delta->encoding, frame, target.bytes));
    const auto hasher = tensor::MakeHasher(version_.delta->checksum);
    delta::BlockChanges changes(UnitBytes(target.dtype));
    std::vector<std::byte> buffer(delta::kBlockBytes);
    std::vector<std::byte> records;
    std::uint64_t elements = 0;
    for (std::uint64_t at = 0; at < target.bytes; at += delta::kBlockBytes) {
      const MutableByteSpan block =
          std::span(buffer).first(std::min<std::uint64_t>(delta::kBlockBytes, target.bytes - at));
      SYNCLINE_TRY(base::ReadExactly(file, block, target.offset + at));
      changes.Clear();
      SYNCLINE_TRY(patch->ApplyNext(block, changes));
      hasher->Update(block);
      elements += changes.CountElements(UnitsPerElement(target.dtype));
      changes.AppendRecord(at, block, records);
      if (records.size() >= kSegmentBytes) {
        SYNCLINE_TRY(log_.Append(index, std::exchange(records, {})));
      }
    }
    SYNCLINE_TRY(patch->Finish());
    SYNCLINE_TRY(log_.Append(index, std::move(records)));
    elements_changed_ += elements;
    progress.Add(target.bytes);
    if (hasher->Hex() == delta.hash) return {};
    const std::scoped_lock lock(mutex_);
    wrong_.push_back(delta.name);
    return {};
  }

  FileSystem& files_;
  const Checkpoint& checkpoint_;
  const Version& version_;
  ChangeLog log_;
  std::vector<std::unique_ptr<base::File>> frames_;   // files of the version
  std::vector<std::unique_ptr<base::File>> weights_;  // files of the replica
  std::vector<const CheckpointTensor*> targets_;      // of each delta tensor
  std::uint64_t total_bytes_ = 0;
  ApplyCounts counts_;
  std::atomic<std::uint64_t> elements_changed_ = 0;
  std::mutex large_frame_;
  std::mutex mutex_;
  std::vector<std::string> wrong_;  // guarded by mutex_
};

// Step 4 went wrong: back to the old bytes and the old marker.
std::unexpected<base::Error> PutBack(Applier& applier, const ReplicaState& state,
                                     std::uint64_t old_version, base::Error error,
                                     base::ThreadPool& pool) {
  const Status back = applier.Write(Direction::kBack, pool);
  const Status marker = back ? state.PublishMarker(old_version) : back;
  if (marker) {
    return Annotate(std::move(error),
                    fmt::format("the replica was put back to version {}", old_version));
  }
  return Fail(Code::kIo,
              fmt::format("{}; putting version {} back failed too ({}): the replica must "
                          "be seeded again, which the next pull does",
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
  if (Status status = applier.Stage(pool, progress, cancel); !status) {
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
    SYNCLINE_TRY(applier.Write(Direction::kForward, pool));
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
