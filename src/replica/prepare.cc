// For each tensor of the delta, in parallel, the largest first, block by block: read the replica's
// bytes, decode what the frame does to them, hash the result, and put what changed into the
// journal. So each byte is read once, and nothing larger than a frame is held.
#include "replica/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <numeric>

#include "base/pool.h"
#include "delta/patch.h"
#include "replica/hash_tensors.h"

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

constexpr std::uint64_t kLargeFrameBytes = 32 << 20;
constexpr std::size_t kSegmentBytes = 1 << 20;
constexpr std::size_t kReadBytes = 4 * delta::kBlockBytes;

// A frame in memory or, where it is large, in a mapped file of ours, which nobody can cut short.
class Frame {
 public:
  static Result<Frame> Read(FileSystem& files, base::File& from, const DeltaTensor& delta,
                            base::Buffer& buffer, const std::string& aside) {
    Frame frame;
    if (delta.bytes <= kLargeFrameBytes) {
      const base::MutableByteSpan bytes = buffer.Get(delta.bytes);
      SYNCLINE_TRY(base::ReadExactly(from, bytes, delta.offset));
      frame.bytes_ = bytes;
      return frame;
    }
    SYNCLINE_ASSIGN(const auto file, files.Open(aside, base::OpenMode::kCreate));
    SYNCLINE_TRY(files.Remove(aside));
    SYNCLINE_TRY(file->Allocate(delta.bytes));
    const base::MutableByteSpan piece = buffer.Get(kSegmentBytes);
    for (std::uint64_t at = 0; at < delta.bytes; at += piece.size()) {
      const auto part = piece.first(std::min<std::uint64_t>(piece.size(), delta.bytes - at));
      SYNCLINE_TRY(base::ReadExactly(from, part, delta.offset + at));
      SYNCLINE_TRY(file->WriteAt(part, at));
    }
    SYNCLINE_ASSIGN(frame.mapping_, file->Map(false));
    frame.bytes_ = frame.mapping_.bytes();
    return frame;
  }
  base::ByteSpan bytes() const { return bytes_; }

 private:
  base::Mapping mapping_;
  base::ByteSpan bytes_;
};

class Preparer {
 public:
  Preparer(FileSystem& files, const Checkpoint& checkpoint, const Version& version,
           std::string path)
      : files_(files), checkpoint_(checkpoint), version_(version), path_(std::move(path)) {}

  Status Open(const std::map<std::string, TensorHash, std::less<>>& hashes, JournalHead& head) {
    for (const std::string& name : version_.files) {
      SYNCLINE_ASSIGN(auto file,
                      files_.Open(base::JoinPath(version_.directory, name), base::OpenMode::kRead));
      SYNCLINE_ASSIGN(const base::FileInfo info, file->Stat());
      prepared_.bytes_read += info.size;
      frames_.push_back(std::move(file));
    }
    for (std::size_t i = 0; i < checkpoint_.files().size(); ++i) {
      SYNCLINE_ASSIGN(auto file, files_.Open(checkpoint_.FilePath(i), base::OpenMode::kRead));
      weights_.push_back(std::move(file));
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
      const auto before = hashes.find(delta.name);
      head.tensors.push_back({.name = delta.name,
                              .file = checkpoint_.files()[target->file].name,
                              .offset = target->offset,
                              .bytes = target->bytes,
                              .before = before == hashes.end() ? TensorHash() : before->second,
                              .after = {version_.delta->checksum, delta.hash}});
      prepared_.changed.push_back({.name = delta.name});
    }
    SYNCLINE_ASSIGN(journal_, JournalWriter::Create(files_, path_, head));
    return {};
  }

  Result<Prepared> Run(const JournalHead& head, base::ThreadPool& pool, base::Progress& progress,
                       const base::CancelToken* cancel) {
    std::vector<std::size_t> order(targets_.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::ranges::greater(),
                             [&](std::size_t i) { return targets_[i]->bytes; });
    progress.Begin("apply", total_bytes_);
    SYNCLINE_TRY(pool.ParallelFor(
        order.size(),
        [&](std::size_t i) -> Status {
          Status status = PrepareTensor(order[i], head.tensors[order[i]], progress);
          if (status) return status;
          const DeltaTensor& delta = version_.tensors[order[i]];
          return Annotate(
              std::move(status).error(),
              fmt::format("{}: tensor {}",
                          base::JoinPath(version_.directory, version_.files[delta.file]),
                          delta.name));
        },
        cancel));
    for (const ChangedTensor& changed : prepared_.changed) {
      prepared_.elements_changed += changed.elements;
    }
    std::ranges::sort(prepared_.wrong);
    std::ranges::sort(prepared_.damaged);
    if (prepared_.wrong.empty()) {
      SYNCLINE_ASSIGN(prepared_.journal_bytes, journal_->Commit());
    }
    return std::move(prepared_);
  }

 private:
  Status PrepareTensor(std::size_t index, const JournalTensor& tensor, base::Progress& progress) {
    const DeltaTensor& delta = version_.tensors[index];
    const CheckpointTensor& target = *targets_[index];
    const base::Pool<base::Buffer>::Lease frame_buffer(buffers_);
    SYNCLINE_ASSIGN(const Frame frame,
                    Frame::Read(files_, *frames_[delta.file], delta, *frame_buffer,
                                fmt::format("{}.frame-{}.tmp", path_, index)));
    SYNCLINE_ASSIGN(const auto patch, delta::OpenPatch(version_.delta->encoding, frame.bytes(),
                                                       target.bytes, target.dtype));
    delta::BlockPatch block = patch->MakeBlock();
    const std::uint64_t element_bytes = std::max<std::uint64_t>(Bits(target.dtype) / 8, 1);
    const auto hasher = tensor::MakeHasher(tensor.after.kind);
    const base::Pool<base::Buffer>::Lease image_buffer(images_);
    const base::Pool<std::vector<std::byte>>::Lease records(records_);
    records->clear();
    for (std::uint64_t at = 0; at < target.bytes; at += kReadBytes) {
      const base::MutableByteSpan image =
          image_buffer->Get(kReadBytes)
              .first(std::min<std::uint64_t>(kReadBytes, target.bytes - at));
      SYNCLINE_TRY(base::ReadExactly(*weights_[target.file], image, target.offset + at));
      for (std::size_t done = 0; done < image.size(); done += delta::kBlockBytes) {
        const auto part =
            image.subspan(done, std::min<std::size_t>(delta::kBlockBytes, image.size() - done));
        SYNCLINE_TRY(patch->Next(part.size(), block));
        prepared_.changed[index].elements += block.Apply(part, at + done, element_bytes, *records);
        hasher->Update(part);
      }
      if (records->size() >= kSegmentBytes) {
        SYNCLINE_TRY(journal_->Append(static_cast<std::uint32_t>(index), *records));
        records->clear();
      }
      progress.Add(image.size());
    }
    SYNCLINE_TRY(patch->Finish());
    SYNCLINE_TRY(journal_->Append(static_cast<std::uint32_t>(index), *records));
    return hasher->Hex() == delta.hash ? Status() : NoteWrong(tensor, *weights_[target.file]);
  }

  // Whose fault is it? The delta's, if the replica's bytes are those that it believes to hold.
  Status NoteWrong(const JournalTensor& tensor, base::File& file) {
    bool damaged = false;
    if (!tensor.before.hex.empty()) {
      SYNCLINE_ASSIGN(const std::string now,
                      HashRange(file, tensor.offset, tensor.bytes, tensor.before.kind));
      damaged = now != tensor.before.hex;
    }
    const std::scoped_lock lock(mutex_);
    prepared_.wrong.push_back(tensor.name);
    if (damaged) prepared_.damaged.push_back(tensor.name);
    return {};
  }

  FileSystem& files_;
  const Checkpoint& checkpoint_;
  const Version& version_;
  std::string path_;
  std::unique_ptr<JournalWriter> journal_;
  base::Pool<base::Buffer> buffers_;  // for frames
  base::Pool<base::Buffer> images_;
  base::Pool<std::vector<std::byte>> records_;
  std::vector<std::unique_ptr<base::File>> frames_;   // files of the version
  std::vector<std::unique_ptr<base::File>> weights_;  // files of the replica
  std::vector<const CheckpointTensor*> targets_;      // of each delta tensor
  std::uint64_t total_bytes_ = 0;
  std::mutex mutex_;
  Prepared prepared_;  // `wrong` and `damaged` are guarded by mutex_
};

}  // namespace

Result<Prepared> Prepare(FileSystem& files, const Checkpoint& checkpoint, const Version& version,
                         const std::map<std::string, TensorHash, std::less<>>& hashes,
                         JournalHead head, const std::string& path, base::ThreadPool& pool,
                         base::Progress& progress, const base::CancelToken* cancel) {
  Preparer preparer(files, checkpoint, version, path);
  SYNCLINE_TRY(preparer.Open(hashes, head));
  return preparer.Run(head, pool, progress, cancel);
}

}  // namespace syncline::replica
