#include "store/compact_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <list>
#include <map>
#include <mutex>
#include <utility>

#include "delta/compact_frame.h"
#include "delta/compact_table.h"
#include "tensor/unit_mask.h"

namespace syncline::store {
namespace {

using base::ByteSpan;
using base::Code;
using base::Fail;
using base::FileSystem;
using base::Result;
using base::Status;
using delta::BlockPatch;
using delta::CompactCell;
using delta::CompactFrame;
using delta::StepDecodeTables;
using delta::UnitKind;

// Tables of the models that were used last: they are large, and made of few bytes.
class TableCache {
 public:
  std::shared_ptr<const StepDecodeTables> Get(const delta::CompactTable& table,
                                              std::uint64_t model) {
    const Key key = {&table, model};
    const std::scoped_lock lock(mutex_);
    const auto found = std::ranges::find(kept_, key, &Entry::first);
    if (found != kept_.end()) {
      kept_.splice(kept_.begin(), kept_, found);
      return kept_.front().second;
    }
    kept_.emplace_front(key, std::make_shared<const StepDecodeTables>(table.models[model]));
    if (kept_.size() > kKept) kept_.pop_back();
    return kept_.front().second;
  }

 private:
  static constexpr std::size_t kKept = 8;
  using Key = std::pair<const delta::CompactTable*, std::uint64_t>;
  using Entry = std::pair<Key, std::shared_ptr<const StepDecodeTables>>;

  std::mutex mutex_;
  std::list<Entry> kept_;  // the last one used first
};

// The patch of one cell: opens its frames as their units come.
class CellPatch final : public delta::TensorPatch {
 public:
  CellPatch(base::File& file, const delta::CompactTable& table, const CompactCell& cell,
            TableCache& cache, base::Pool<base::Buffer>& buffers)
      : file_(file),
        table_(table),
        cell_(cell),
        cache_(cache),
        kind_(delta::KindOf(cell.tensors.front().dtype)),
        unit_bytes_(delta::UnitBytes(kind_)),
        buffer_(buffers),
        new_units_(delta::kBlockBytes) {}

  Status Next(ByteSpan old_block, BlockPatch& block) override {
    block.Clear();
    for (std::size_t at = 0; at < old_block.size();) {
      if (at_unit_ == frame_end_) SYNCLINE_TRY(OpenFrame());
      const std::uint64_t units = std::min<std::uint64_t>(
          {delta::kStepBlockUnits, (old_block.size() - at) / unit_bytes_, frame_end_ - at_unit_});
      if (!empty_) {
        const std::byte* old_units = old_block.data() + at;
        SYNCLINE_TRY(frame_.Next(tensor_, old_units, units, new_units_.data(), changed_));
        AddChanges(old_units, at, block);
      }
      at += units * unit_bytes_;
      at_unit_ += units;
    }
    return {};
  }

  Status Finish() override {
    ++tensor_;
    if (tensor_ == cell_.tensors.size()) return EndFrame();
    frame_end_ = at_unit_ + cell_.tensors[tensor_].units();
    return {};
  }

  BlockPatch MakeBlock() const override {
    return {BlockPatch::Kind::kXor, std::min<std::size_t>(unit_bytes_, 2)};
  }

 private:
  Status EndFrame() { return empty_ ? Status() : frame_.Finish(); }

  Status OpenFrame() {
    if (at_unit_ > 0) SYNCLINE_TRY(EndFrame());
    const std::uint64_t frame_units = std::uint64_t{1} << table_.frame_log;
    const CompactFrame& frame = cell_.frames[at_unit_ / frame_units];
    std::vector<delta::FrameDecoder::Part> parts;
    if (cell_.tensors.size() == 1) {
      frame_end_ = std::min(at_unit_ + frame_units, cell_.tensors.front().units());
      parts.push_back({frame_end_ - at_unit_});
    } else {
      frame_end_ = cell_.tensors.front().units();
      for (const delta::CompactTensor& tensor : cell_.tensors) parts.push_back({tensor.units()});
    }
    empty_ = frame.bytes == 0;
    if (empty_) return {};
    const base::MutableByteSpan memory = buffer_->Get(delta::kBytesBefore + frame.bytes);
    const base::MutableByteSpan bytes = memory.subspan(delta::kBytesBefore);
    SYNCLINE_TRY(base::ReadExactly(file_, bytes, frame.offset));
    SYNCLINE_TRY(delta::CheckCompactFrame(frame, bytes));
    tables_ = cache_.Get(table_, frame.model);
    return frame_.Open(bytes, kind_, parts, *tables_);
  }

  // Puts the units of changed_ into `block`, in which they begin at byte `at`.
  void AddChanges(const std::byte* old_units, std::size_t at, BlockPatch& block) {
    const auto add = [&]<typename Unit>(Unit) {
      tensor::ForEachSet(changed_.data(), changed_.size(), [&](std::size_t unit) {
        const std::size_t byte = unit * sizeof(Unit);
        const auto difference = static_cast<Unit>(base::Load<Unit>(old_units + byte) ^
                                                  base::Load<Unit>(new_units_.data() + byte));
        if constexpr (sizeof(Unit) < 4) {
          if (difference != 0) block.Add((at + byte) / sizeof(Unit), difference);
        } else {
          const auto low = static_cast<std::uint16_t>(difference);
          const auto high = static_cast<std::uint16_t>(difference >> 16);
          if (low != 0) block.Add((at + byte) / 2, low);
          if (high != 0) block.Add((at + byte) / 2 + 1, high);
        }
      });
    };
    switch (unit_bytes_) {
      case 1:
        return add(std::uint8_t{});
      case 2:
        return add(std::uint16_t{});
      default:
        return add(std::uint32_t{});
    }
  }

  base::File& file_;
  const delta::CompactTable& table_;
  const CompactCell& cell_;
  TableCache& cache_;
  UnitKind kind_;
  std::size_t unit_bytes_;
  base::Pool<base::Buffer>::Lease buffer_;
  std::vector<std::byte> new_units_;  // of one block of units
  delta::UnitMask changed_;
  std::shared_ptr<const StepDecodeTables> tables_;
  delta::FrameDecoder frame_;
  bool empty_ = true;            // nothing changed in the frame
  std::size_t tensor_ = 0;       // in the cell
  std::uint64_t at_unit_ = 0;    // in the cell, of the next unit
  std::uint64_t frame_end_ = 0;  // of the frame, or of the tensor in a frame of several
};

class CompactReader final : public DeltaReader {
 public:
  explicit CompactReader(const Version& version) : DeltaReader(version, {}) {}

  Status Open(FileSystem& files) {
    for (std::size_t i = 0; i < version_.files.size(); ++i) {
      SYNCLINE_ASSIGN(auto file, files.Open(base::JoinPath(version_.directory, version_.files[i]),
                                            base::OpenMode::kRead));
      SYNCLINE_ASSIGN(const base::FileInfo info, file->Stat());
      bytes_ += info.size;
      files_.push_back(std::move(file));
      for (const CompactCell& cell : version_.tables[i].cells) {
        std::vector<std::size_t> run;
        for (const delta::CompactTensor& tensor : cell.tensors) {
          const auto found =
              std::ranges::lower_bound(version_.tensors, tensor.name, {}, &DeltaTensor::name);
          run.push_back(static_cast<std::size_t>(found - version_.tensors.begin()));
        }
        runs_.push_back(std::move(run));
        cells_.emplace_back(i, &cell);
      }
    }
    return {};
  }

  Result<std::unique_ptr<delta::TensorPatch>> OpenRun(std::size_t run,
                                                      std::span<const Target> targets) override {
    const auto& [file, cell] = cells_[run];
    for (std::size_t i = 0; i < cell->tensors.size(); ++i) {
      const delta::CompactTensor& tensor = cell->tensors[i];
      if (tensor.bytes == targets[i].bytes && tensor.dtype == targets[i].dtype) continue;
      return Fail(Code::kCorrupt,
                  fmt::format("{}: it is {} of {} bytes, the one to be changed is {} of {}",
                              Where(runs_[run][i]), Name(tensor.dtype), tensor.bytes,
                              Name(targets[i].dtype), targets[i].bytes));
    }
    return std::make_unique<CellPatch>(*files_[file], version_.tables[file], *cell, cache_,
                                       buffers_);
  }

  Result<std::uint64_t> CheckRun(std::size_t run) override {
    const auto& [file, cell] = cells_[run];
    const base::Pool<base::Buffer>::Lease buffer(buffers_);
    std::uint64_t total = 0;
    for (const CompactFrame& frame : cell->frames) {
      const auto check = [&]() -> Status {
        const base::MutableByteSpan bytes = buffer->Get(frame.bytes);
        SYNCLINE_TRY(base::ReadExactly(*files_[file], bytes, frame.offset));
        return frame.bytes == 0 ? Status() : delta::CheckCompactFrame(frame, bytes);
      };
      Status status = check();
      if (!status) return Annotate(std::move(status).error(), Where(runs_[run].front()));
      total += frame.bytes;
    }
    return total;
  }

 private:
  TableCache cache_;
  base::Pool<base::Buffer> buffers_;
  std::vector<std::pair<std::size_t, const CompactCell*>> cells_;  // of each run, with its file
};

}  // namespace

Result<std::unique_ptr<DeltaReader>> OpenCompactReader(FileSystem& files, const Version& version) {
  auto reader = std::make_unique<CompactReader>(version);
  SYNCLINE_TRY(reader->Open(files));
  return reader;
}

}  // namespace syncline::store
