// 1. Tensors that a delta's reader takes one after the other, in any delta of the chain, belong to
//    one task; most tasks are a tensor, or a few small ones.
// 2. Tasks run in parallel, the largest first. Each goes through its tensors by name, block by block:
//    read the replica's bytes, let one delta after the other change them, check the result
//    (tensor_check.h), and put what changed into the journal. So each byte is read once, and
//    nothing larger than the frames of the tensors at hand is held. Reads of deltas wait for what
//    is still on its way.
// 3. A committed journal may be carried out by whoever finds it, so it is committed when every file
//    of the deltas has been proven, and not before.
#include "replica/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>

#include "base/pool.h"
#include "replica/chain_tasks.h"
#include "replica/hash_tensors.h"
#include "replica/tensor_check.h"
#include "store/delta_reader.h"

namespace syncline::replica {
namespace {

using base::Code;
using base::Fail;
using base::FileSystem;
using base::Result;
using base::Status;
using checkpoint::Checkpoint;
using checkpoint::CheckpointTensor;
using store::Version;

constexpr std::size_t kSegmentBytes = 1 << 20;
constexpr std::size_t kReadBytes = 4 * delta::kBlockBytes;

class Preparer {
 public:
  Preparer(FileSystem& files, const Checkpoint& checkpoint, const store::Arrival& arrival,
           std::span<const Version> chain, const Head& held, VerifyBy verify, std::string path)
      : files_(files),
        checkpoint_(checkpoint),
        arrival_(arrival),
        chain_(chain),
        held_(held),
        verify_(verify),
        path_(std::move(path)) {}

  Status Open(JournalHead& head) {
    SYNCLINE_TRY(CheckDigests(verify_, chain_));
    for (const Version& version : chain_) {
      SYNCLINE_ASSIGN(
          auto reader,
          store::DeltaReader::Open(arrival_.files(), version,
                                   {&files_, fmt::format("{}.frame-{}", path_, version.number)}));
      prepared_.bytes_read += reader->bytes();
      readers_.push_back(std::move(reader));
    }
    for (std::size_t i = 0; i < checkpoint_.files().size(); ++i) {
      SYNCLINE_ASSIGN(auto file, files_.Open(checkpoint_.FilePath(i), base::OpenMode::kRead));
      weights_.push_back(std::move(file));
    }
    tasks_ = ChainTasks(readers_);
    for (const ChainTensor& tensor : tasks_.tensors) {
      const CheckpointTensor* target = checkpoint_.Find(tensor.name);
      if (target == nullptr) {
        const ChainPart& part = tensor.parts.front();
        return Fail(Code::kInvalidArgument,
                    fmt::format("{} is not in the replica {}",
                                readers_[part.delta]->Where(part.tensor), checkpoint_.directory()));
      }
      targets_.push_back(target);
      total_bytes_ += target->bytes;
      const auto before = held_.hashes.find(tensor.name);
      const ChainPart& last = tensor.parts.back();
      head.tensors.push_back(
          {.name = tensor.name,
           .file = checkpoint_.files()[target->file].name,
           .offset = target->offset,
           .bytes = target->bytes,
           .before = before == held_.hashes.end() ? TensorHash() : before->second,
           .after = {chain_[last.delta].delta->checksum,
                     chain_[last.delta].tensors[last.tensor].hash}});
      prepared_.changed.push_back({.name = tensor.name});
    }
    SYNCLINE_ASSIGN(journal_, JournalWriter::Create(files_, path_, head));
    return {};
  }

  Result<Prepared> Run(const JournalHead& head, base::ThreadPool& pool, base::Progress& progress,
                       const base::CancelToken* cancel) {
    std::vector<std::uint64_t> sizes;
    sizes.reserve(tasks_.tasks.size());
    for (const std::vector<std::size_t>& task : tasks_.tasks) {
      sizes.push_back(std::accumulate(
          task.begin(), task.end(), std::uint64_t{0},
          [&](std::uint64_t sum, std::size_t tensor) { return sum + targets_[tensor]->bytes; }));
    }
    std::vector<std::size_t> order(tasks_.tasks.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::ranges::greater(),
                             [&](std::size_t i) { return sizes[i]; });
    progress.Begin("apply", total_bytes_);
    SYNCLINE_TRY(pool.ParallelFor(
        order.size(),
        [&](std::size_t i) -> Status {
          const std::vector<std::size_t>& task = tasks_.tasks[order[i]];
          Status status = PrepareTask(task, head, progress);
          if (status || status.error().code != Code::kCorrupt) return status;
          // A delta that is read over the old values does not fit damaged ones.
          SYNCLINE_ASSIGN(const bool damaged, NoteDamage(task, head));
          return damaged ? Status() : status;
        },
        cancel));
    for (const ChangedTensor& changed : prepared_.changed) {
      prepared_.elements_changed += changed.elements;
    }
    std::ranges::sort(prepared_.wrong);
    std::ranges::sort(prepared_.damaged);
    if (prepared_.wrong.empty()) {
      SYNCLINE_TRY(arrival_.Wait());
      SYNCLINE_ASSIGN(prepared_.journal_bytes, journal_->Commit());
    }
    return std::move(prepared_);
  }

 private:
  Status PrepareTask(const std::vector<std::size_t>& task, const JournalHead& head,
                     base::Progress& progress) {
    ChainPatches patches(readers_);
    for (const std::size_t tensor : task) {
      SYNCLINE_TRY(PrepareTensor(tensor, head.tensors[tensor], patches, progress));
    }
    return {};
  }

  // Are bytes of the replica's tensors not those that it believes to hold?
  Result<bool> NoteDamage(const std::vector<std::size_t>& task, const JournalHead& head) {
    bool any = false;
    for (const std::size_t i : task) {
      const JournalTensor& tensor = head.tensors[i];
      if (tensor.before.hex.empty()) continue;
      SYNCLINE_ASSIGN(const std::string now, HashRange(*weights_[targets_[i]->file], tensor.offset,
                                                       tensor.bytes, tensor.before.kind));
      if (now == tensor.before.hex) continue;
      any = true;
      const std::scoped_lock lock(mutex_);
      if (std::ranges::find(prepared_.damaged, tensor.name) != prepared_.damaged.end()) continue;
      prepared_.wrong.push_back(tensor.name);
      prepared_.damaged.push_back(tensor.name);
    }
    return any;
  }

  Status PrepareTensor(std::size_t index, const JournalTensor& tensor, ChainPatches& patches,
                       base::Progress& progress) {
    const CheckpointTensor& target = *targets_[index];
    SYNCLINE_TRY(patches.Begin(tasks_, index, [&](std::size_t i) {
      return store::DeltaReader::Target{targets_[i]->bytes, targets_[i]->dtype};
    }));
    const std::uint64_t element_bytes = std::max<std::uint64_t>(Bits(target.dtype) / 8, 1);
    TensorCheck check = MakeCheck(index, tensor);
    const base::Pool<base::Buffer>::Lease image_buffer(images_);
    const base::Pool<std::vector<std::byte>>::Lease records(records_);
    records->clear();
    for (std::uint64_t at = 0; at < target.bytes; at += kReadBytes) {
      const base::MutableByteSpan image =
          image_buffer->Get(kReadBytes)
              .first(std::min<std::uint64_t>(kReadBytes, target.bytes - at));
      SYNCLINE_TRY(base::ReadExactly(*weights_[target.file], image, target.offset + at));
      check.Old(image, at);
      for (std::size_t done = 0; done < image.size(); done += delta::kBlockBytes) {
        const auto part =
            image.subspan(done, std::min<std::size_t>(delta::kBlockBytes, image.size() - done));
        SYNCLINE_ASSIGN(delta::BlockPatch * block, patches.Next(part));
        const std::size_t start = records->size();
        prepared_.changed[index].elements += block->Apply(part, at + done, element_bytes, *records);
        check.New(part, at + done, base::ByteSpan(*records).subspan(start));
      }
      if (records->size() >= kSegmentBytes) {
        SYNCLINE_TRY(journal_->Append(static_cast<std::uint32_t>(index), *records));
        records->clear();
      }
      progress.Add(image.size());
    }
    SYNCLINE_TRY(patches.Finish());
    SYNCLINE_TRY(journal_->Append(static_cast<std::uint32_t>(index), *records));
    const std::optional<std::string> mismatch = check.Mismatch();
    return mismatch ? NoteWrong(tensor, *mismatch, *weights_[target.file]) : Status();
  }

  TensorCheck MakeCheck(std::size_t index, const JournalTensor& tensor) const {
    const ChainPart& last = tasks_.tensors[index].parts.back();
    const auto before = held_.digests.find(tensor.name);
    return {verify_,
            {.hash = tensor.after,
             .digest = chain_[last.delta].tensors[last.tensor].digest,
             .digest_before =
                 before == held_.digests.end() ? std::nullopt : std::optional(before->second)},
            targets_[index]->dtype};
  }

  // Whose fault is it? The delta's, if the replica's bytes are those that it believes to hold.
  Status NoteWrong(const JournalTensor& tensor, const std::string& mismatch, base::File& file) {
    bool damaged = false;
    if (!tensor.before.hex.empty()) {
      SYNCLINE_ASSIGN(const std::string now,
                      HashRange(file, tensor.offset, tensor.bytes, tensor.before.kind));
      damaged = now != tensor.before.hex;
    }
    const std::scoped_lock lock(mutex_);
    prepared_.wrong.push_back(fmt::format("{} ({})", tensor.name, mismatch));
    if (damaged) prepared_.damaged.push_back(tensor.name);
    return {};
  }

  FileSystem& files_;
  const Checkpoint& checkpoint_;
  const store::Arrival& arrival_;
  std::span<const Version> chain_;
  const Head& held_;
  VerifyBy verify_;
  std::string path_;
  std::unique_ptr<JournalWriter> journal_;
  base::Pool<base::Buffer> images_;
  base::Pool<std::vector<std::byte>> records_;
  std::vector<std::unique_ptr<store::DeltaReader>> readers_;  // of the chain
  ChainTasks tasks_;
  std::vector<std::unique_ptr<base::File>> weights_;  // files of the replica
  std::vector<const CheckpointTensor*> targets_;      // of tasks_.tensors
  std::uint64_t total_bytes_ = 0;
  std::mutex mutex_;
  Prepared prepared_;  // `wrong` and `damaged` are guarded by mutex_
};

}  // namespace

Result<Prepared> Prepare(FileSystem& files, const Checkpoint& checkpoint,
                         const store::Arrival& arrival, std::span<const Version> chain,
                         const Head& held, VerifyBy verify, JournalHead head,
                         const std::string& path, base::ThreadPool& pool, base::Progress& progress,
                         const base::CancelToken* cancel) {
  Preparer preparer(files, checkpoint, arrival, chain, held, verify, path);
  SYNCLINE_TRY(preparer.Open(head));
  return preparer.Run(head, pool, progress, cancel);
}

}  // namespace syncline::replica
