#include "store/delta_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "store/compact_reader.h"

namespace syncline::store {
namespace {

using base::FileSystem;
using base::Result;
using base::Status;

constexpr std::uint64_t kLargeFrameBytes = 32 << 20;
constexpr std::size_t kPieceBytes = 1 << 20;

// A frame in memory or, where it is large, in a mapped file of ours, which nobody can cut short.
class Frame {
 public:
  Frame(base::Pool<base::Buffer>& buffers) : buffer_(buffers) {}

  Status Read(base::File& from, const DeltaTensor& delta, const DeltaReader::Aside& aside,
              std::size_t number) {
    if (delta.bytes <= kLargeFrameBytes || aside.files == nullptr) {
      const base::MutableByteSpan bytes = buffer_->Get(delta.bytes);
      SYNCLINE_TRY(base::ReadExactly(from, bytes, delta.offset));
      bytes_ = bytes;
      return {};
    }
    const std::string path = fmt::format("{}-{}.tmp", aside.path, number);
    SYNCLINE_ASSIGN(const auto file, aside.files->Open(path, base::OpenMode::kCreate));
    SYNCLINE_TRY(aside.files->Remove(path));
    SYNCLINE_TRY(file->Allocate(delta.bytes));
    const base::MutableByteSpan piece = buffer_->Get(kPieceBytes);
    for (std::uint64_t at = 0; at < delta.bytes; at += piece.size()) {
      const auto part = piece.first(std::min<std::uint64_t>(piece.size(), delta.bytes - at));
      SYNCLINE_TRY(base::ReadExactly(from, part, delta.offset + at));
      SYNCLINE_TRY(file->WriteAt(part, at));
    }
    SYNCLINE_ASSIGN(mapping_, file->Map(false));
    bytes_ = mapping_.bytes();
    return {};
  }
  base::ByteSpan bytes() const { return bytes_; }

 private:
  base::Pool<base::Buffer>::Lease buffer_;
  base::Mapping mapping_;
  base::ByteSpan bytes_;
};

// A patch and the frame that it reads.
class FramePatch final : public delta::TensorPatch {
 public:
  explicit FramePatch(base::Pool<base::Buffer>& buffers) : frame_(buffers) {}

  Status Open(base::File& from, const Version& version, std::size_t tensor,
              const DeltaReader::Aside& aside, const DeltaReader::Target& target) {
    SYNCLINE_TRY(frame_.Read(from, version.tensors[tensor], aside, tensor));
    SYNCLINE_ASSIGN(patch_, delta::OpenPatch(version.delta->encoding, frame_.bytes(), target.bytes,
                                             target.dtype));
    return {};
  }
  Status Next(base::ByteSpan old_block, delta::BlockPatch& block) override {
    return patch_->Next(old_block, block);
  }
  Status Finish() override { return patch_->Finish(); }
  delta::BlockPatch MakeBlock() const override { return patch_->MakeBlock(); }

 private:
  Frame frame_;
  std::unique_ptr<delta::TensorPatch> patch_;
};

// xor and overwrite: each tensor is a run.
class FrameReader final : public DeltaReader {
 public:
  FrameReader(const Version& version, Aside aside) : DeltaReader(version, std::move(aside)) {}

  Status Open(FileSystem& files) {
    for (const std::string& name : version_.files) {
      SYNCLINE_ASSIGN(auto file,
                      files.Open(base::JoinPath(version_.directory, name), base::OpenMode::kRead));
      SYNCLINE_ASSIGN(const base::FileInfo info, file->Stat());
      bytes_ += info.size;
      files_.push_back(std::move(file));
    }
    for (std::size_t i = 0; i < version_.tensors.size(); ++i) runs_.push_back({i});
    return {};
  }

  Result<std::unique_ptr<delta::TensorPatch>> OpenRun(std::size_t run,
                                                      std::span<const Target> targets) override {
    auto patch = std::make_unique<FramePatch>(buffers_);
    Status opened =
        patch->Open(*files_[version_.tensors[run].file], version_, run, aside_, targets.front());
    if (!opened) return Annotate(std::move(opened).error(), Where(run));
    return patch;
  }

  Result<std::uint64_t> CheckRun(std::size_t run) override {
    const DeltaTensor& delta = version_.tensors[run];
    const auto check = [&]() -> Status {
      Frame frame(buffers_);
      SYNCLINE_TRY(frame.Read(*files_[delta.file], delta, aside_, run));
      SYNCLINE_TRY(delta::CheckFrame(version_.delta->encoding, frame.bytes()));
      return {};
    };
    if (Status status = check(); !status) return Annotate(std::move(status).error(), Where(run));
    return delta.bytes;
  }

 private:
  base::Pool<base::Buffer> buffers_;
};

}  // namespace

Result<std::unique_ptr<DeltaReader>> DeltaReader::Open(FileSystem& files, const Version& version,
                                                       Aside aside) {
  if (version.delta->encoding == delta::Encoding::kCompact)
    return OpenCompactReader(files, version);
  auto reader = std::make_unique<FrameReader>(version, std::move(aside));
  SYNCLINE_TRY(reader->Open(files));
  return reader;
}

std::string DeltaReader::Where(std::size_t tensor) const {
  const DeltaTensor& delta = version_.tensors[tensor];
  return fmt::format("{}: tensor {}",
                     base::JoinPath(version_.directory, version_.files[delta.file]), delta.name);
}

}  // namespace syncline::store
