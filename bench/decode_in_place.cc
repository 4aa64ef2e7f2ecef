#include "decode_in_place.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <memory>

#include "delta/compact_frame.h"
#include "delta/compact_table.h"
#include "delta/patch.h"
#include "delta/zstd_entropy.h"
#include "tensor/hash.h"

namespace syncline::bench {
namespace {

using base::ByteSpan;
using base::Code;
using base::Fail;
using base::MutableByteSpan;
using base::Result;
using base::Status;
using delta::kBlockBytes;

Result<const ImageTensor*> Find(std::span<const ImageTensor> image, std::string_view name) {
  const auto found = std::ranges::lower_bound(image, name, {}, &ImageTensor::name);
  if (found == image.end() || found->name != name) {
    return Fail(Code::kNotFound, fmt::format("tensor {} is not in the image", name));
  }
  return &*found;
}

// Of a tensor, unless nobody wants one.
class Check {
 public:
  explicit Check(bool wanted)
      : hasher_(wanted ? tensor::MakeHasher(tensor::HashKind::kXxh3) : nullptr) {}

  void Add(ByteSpan bytes) {
    if (hasher_ != nullptr) hasher_->Update(bytes);
  }
  Status End(std::string_view name, std::string_view expected) {
    if (hasher_ == nullptr) return {};
    const std::string found = hasher_->Hex();
    hasher_->Reset();
    if (found == expected) return {};
    return Fail(Code::kChecksumMismatch,
                fmt::format("tensor {}: hash {}, expected {}", name, found, expected));
  }

 private:
  std::unique_ptr<tensor::Hasher> hasher_;
};

// Decodes one cell. Frames are opened as their units come, as the replica's reader does.
class CellDecoder {
 public:
  CellDecoder(const delta::CompactCell& cell, unsigned frame_log, ByteSpan file,
              std::span<const delta::StepDecodeTables> tables, bool hash)
      : cell_(cell),
        frame_units_(std::uint64_t{1} << frame_log),
        file_(file),
        tables_(tables),
        kind_(delta::KindOf(cell.tensors.front().dtype)),
        check_(hash) {}

  Status Decode(std::span<const ImageTensor> image) {
    for (std::size_t i = 0; i < cell_.tensors.size(); ++i) {
      const delta::CompactTensor& row = cell_.tensors[i];
      SYNCLINE_ASSIGN(const ImageTensor* tensor, Find(image, row.name));
      if (tensor->dtype != row.dtype || tensor->bytes.size() != row.bytes) {
        return Fail(Code::kIncompatible, fmt::format("tensor {} is another one", row.name));
      }
      for (std::uint64_t at = 0; at < row.bytes; at += kBlockBytes) {
        const MutableByteSpan block =
            tensor->bytes.subspan(at, std::min<std::uint64_t>(kBlockBytes, row.bytes - at));
        SYNCLINE_TRY(DecodeBlock(i, block));
        check_.Add(block);
      }
      SYNCLINE_TRY(check_.End(row.name, row.hash));
      frame_end_ = i + 1 < cell_.tensors.size() ? at_ + cell_.tensors[i + 1].units() : at_;
    }
    return EndFrame();
  }

 private:
  Status DecodeBlock(std::size_t tensor, MutableByteSpan block) {
    const std::size_t unit_bytes = delta::UnitBytes(kind_);
    for (std::size_t at = 0; at < block.size();) {
      if (at_ == frame_end_) SYNCLINE_TRY(OpenFrame());
      const std::uint64_t units = std::min<std::uint64_t>(
          {delta::kStepBlockUnits, (block.size() - at) / unit_bytes, frame_end_ - at_});
      std::byte* const place = block.data() + at;
      if (open_) SYNCLINE_TRY(frame_.Next(tensor, place, units, place, changed_));
      at += units * unit_bytes;
      at_ += units;
    }
    return {};
  }

  Status OpenFrame() {
    SYNCLINE_TRY(EndFrame());
    const delta::CompactFrame& frame = cell_.frames[at_ / frame_units_];
    std::vector<delta::FrameDecoder::Part> parts;
    if (cell_.tensors.size() == 1) {
      frame_end_ = std::min(at_ + frame_units_, cell_.tensors.front().units());
      parts.push_back({frame_end_ - at_});
    } else {
      frame_end_ = cell_.tensors.front().units();
      for (const delta::CompactTensor& tensor : cell_.tensors) parts.push_back({tensor.units()});
    }
    if (frame.bytes == 0) return {};
    const ByteSpan bytes = file_.subspan(frame.offset, frame.bytes);
    SYNCLINE_TRY(delta::CheckCompactFrame(frame, bytes));
    open_ = true;
    return frame_.Open(bytes, kind_, parts, tables_[frame.model]);
  }

  Status EndFrame() { return std::exchange(open_, false) ? frame_.Finish() : Status(); }

  const delta::CompactCell& cell_;
  std::uint64_t frame_units_;
  ByteSpan file_;
  std::span<const delta::StepDecodeTables> tables_;
  delta::UnitKind kind_;
  Check check_;
  delta::FrameDecoder frame_;
  delta::UnitMask changed_;
  bool open_ = false;            // a frame that holds changes
  std::uint64_t at_ = 0;         // in the cell, of the next unit
  std::uint64_t frame_end_ = 0;  // of the frame, or of the tensor in a frame of several
};

Status DecodeCompact(const store::Version& version, std::span<const FrameFile> files,
                     std::span<const ImageTensor> image, bool hash, base::ThreadPool& pool) {
  struct Work {
    std::size_t file;
    const delta::CompactCell* cell;
    std::uint64_t bytes;
  };
  std::vector<Work> work;
  std::vector<std::vector<delta::StepDecodeTables>> tables;
  for (std::size_t i = 0; i < version.tables.size(); ++i) {
    const delta::CompactTable& table = version.tables[i];
    tables.emplace_back(table.models.begin(), table.models.end());
    for (const delta::CompactCell& cell : table.cells) {
      std::uint64_t bytes = 0;
      for (const delta::CompactTensor& tensor : cell.tensors) bytes += tensor.bytes;
      work.push_back({i, &cell, bytes});
    }
  }
  std::ranges::stable_sort(work, std::ranges::greater(), &Work::bytes);
  return pool.ParallelFor(work.size(), [&](std::size_t i) -> Status {
    const auto& [file, cell, bytes] = work[i];
    CellDecoder decoder(*cell, version.tables[file].frame_log, files[file].bytes(), tables[file],
                        hash);
    return decoder.Decode(image);
  });
}

Status DecodeFrame(const store::Version& version, const store::DeltaTensor& row,
                   const FrameFile& file, const ImageTensor& tensor, bool hash) {
  SYNCLINE_ASSIGN(const auto patch, delta::OpenPatch(version.delta->encoding,
                                                     file.bytes().subspan(row.offset, row.bytes),
                                                     tensor.bytes.size(), tensor.dtype));
  delta::BlockPatch patched = patch->MakeBlock();
  Check check(hash);
  for (std::uint64_t at = 0; at < tensor.bytes.size(); at += kBlockBytes) {
    const MutableByteSpan block =
        tensor.bytes.subspan(at, std::min<std::uint64_t>(kBlockBytes, tensor.bytes.size() - at));
    SYNCLINE_TRY(patch->Next(block, patched));
    patched.Put(block);
    check.Add(block);
  }
  SYNCLINE_TRY(patch->Finish());
  return check.End(row.name, row.hash);
}

Status DecodeFrames(const store::Version& version, std::span<const FrameFile> files,
                    std::span<const ImageTensor> image, bool hash, base::ThreadPool& pool) {
  std::vector<std::pair<const store::DeltaTensor*, const ImageTensor*>> work;
  for (const store::DeltaTensor& row : version.tensors) {
    SYNCLINE_ASSIGN(const ImageTensor* tensor, Find(image, row.name));
    work.emplace_back(&row, tensor);
  }
  std::ranges::stable_sort(work, std::ranges::greater(),
                           [](const auto& item) { return item.second->bytes.size(); });
  return pool.ParallelFor(work.size(), [&](std::size_t i) -> Status {
    const auto& [row, tensor] = work[i];
    return DecodeFrame(version, *row, files[row->file], *tensor, hash);
  });
}

}  // namespace

FrameFile::FrameFile(std::uint64_t size) : memory_(delta::kBytesBefore + size) {}

MutableByteSpan FrameFile::bytes() { return MutableByteSpan(memory_).subspan(delta::kBytesBefore); }
ByteSpan FrameFile::bytes() const { return ByteSpan(memory_).subspan(delta::kBytesBefore); }

Status DecodeInPlace(const store::Version& version, std::span<const FrameFile> files,
                     std::span<const ImageTensor> image, bool hash, base::ThreadPool& pool) {
  return version.delta->encoding == delta::Encoding::kCompact
             ? DecodeCompact(version, files, image, hash, pool)
             : DecodeFrames(version, files, image, hash, pool);
}

}  // namespace syncline::bench
