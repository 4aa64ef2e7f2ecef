#include "delta/compact_table.h"

#include <fmt/format.h>
#include <xxhash.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <set>

#include "delta/varint.h"

namespace syncline::delta {
namespace {

using base::ByteSpan;
using base::Code;
using base::Fail;
using base::Result;
using base::Status;

constexpr std::uint64_t kFormat = 1;
constexpr std::string_view kEndMagic = "SYNCEND1";
// Beside these a table is bounded by its content, of which each part takes some bytes. What is made
// of it has at most some ten times the size of the content, and 600 MiB of models and frames.
constexpr std::uint64_t kMaxTableBytes = std::uint64_t{1} << 28;
constexpr std::uint64_t kMaxFrames = std::uint64_t{1} << 24;
constexpr std::uint64_t kMaxNameBytes = 65536;
constexpr std::uint64_t kMaxRank = 64;
// Of content for a tensor: a name length, a dtype, a rank, a count and 32 bytes.
constexpr std::uint64_t kLeastTensorBytes = 36;
constexpr std::uint64_t kAny = std::numeric_limits<std::uint64_t>::max();
// Of zstd. The highest level gains a percent, and takes milliseconds where a table is not small.
constexpr std::size_t kSmallTableBytes = 4096;
constexpr int kSmallTableLevel = 19;
constexpr int kTableLevel = 6;

std::unexpected<base::Error> Corrupt(std::string_view what) {
  return Fail(Code::kCorrupt, fmt::format("the table of a delta file {}", what));
}

template <typename Visit>
void ForEachTensor(const CompactTable& table, const Visit& visit) {
  for (const CompactCell& cell : table.cells) {
    for (const CompactTensor& tensor : cell.tensors) visit(tensor);
  }
}
template <typename Visit>
Status TryEachTensor(CompactTable& table, const Visit& visit) {
  for (CompactCell& cell : table.cells) {
    for (CompactTensor& tensor : cell.tensors) SYNCLINE_TRY(visit(tensor));
  }
  return {};
}

void AppendBytes(ByteSpan bytes, std::vector<std::byte>& out) {
  out.insert(out.end(), bytes.begin(), bytes.end());
}

void AppendWord(std::uint64_t word, std::vector<std::byte>& out) {
  std::array<std::byte, 8> bytes;
  base::Store(bytes.data(), word);
  AppendBytes(bytes, out);
}

std::vector<std::byte> TableContent(const CompactTable& table) {
  std::vector<std::byte> out;
  AppendVarint(kFormat, out);
  AppendVarint(table.frame_log, out);
  AppendVarint(table.models.size(), out);
  for (const StepModel& model : table.models) AppendModel(model, out);
  AppendVarint(table.cells.size(), out);
  for (const CompactCell& cell : table.cells) AppendVarint(cell.tensors.size(), out);
  std::vector<tensor::Dtype> dtypes;
  ForEachTensor(table, [&](const CompactTensor& tensor) {
    AppendVarint(tensor.name.size(), out);
    if (std::ranges::find(dtypes, tensor.dtype) == dtypes.end()) dtypes.push_back(tensor.dtype);
  });
  ForEachTensor(table, [&](const CompactTensor& t) { AppendBytes(base::AsBytes(t.name), out); });
  AppendVarint(dtypes.size(), out);
  for (const tensor::Dtype dtype : dtypes) {
    AppendVarint(Name(dtype).size(), out);
    AppendBytes(base::AsBytes(Name(dtype)), out);
  }
  ForEachTensor(table, [&](const CompactTensor& tensor) {
    out.push_back(static_cast<std::byte>(std::ranges::find(dtypes, tensor.dtype) - dtypes.begin()));
  });
  ForEachTensor(table, [&](const CompactTensor& t) { AppendVarint(t.shape.size(), out); });
  ForEachTensor(table, [&](const CompactTensor& tensor) {
    for (const std::uint64_t size : tensor.shape) AppendVarint(size, out);
  });
  ForEachTensor(table, [&](const CompactTensor& t) { AppendVarint(t.changed_elements, out); });
  ForEachTensor(table, [&](const CompactTensor& tensor) {
    AppendBytes(base::AsBytes(base::FromHex(tensor.hash)), out);
  });
  ForEachTensor(table, [&](const CompactTensor& tensor) {
    AppendWord(tensor.digest.low, out);
    AppendWord(tensor.digest.high, out);
  });
  const auto each_frame = [&](const auto& visit) {
    for (const CompactCell& cell : table.cells) {
      for (const CompactFrame& frame : cell.frames) visit(frame);
    }
  };
  each_frame([&](const CompactFrame& frame) { AppendVarint(frame.bytes, out); });
  each_frame([&](const CompactFrame& frame) {
    if (frame.bytes > 0) AppendVarint(frame.model, out);
  });
  each_frame([&](const CompactFrame& frame) {
    if (frame.bytes == 0) return;
    AppendWord(frame.check, out);
  });
  return out;
}

// kLimitExceeded if something is to be written that readers do not take.
Status Limit(std::string_view what, std::uint64_t count, std::uint64_t most) {
  if (count <= most) return {};
  return Fail(Code::kLimitExceeded,
              fmt::format("a delta file would have {} {}, the limit is {}", count, what, most));
}

Status CheckLimits(const CompactTable& table) {
  SYNCLINE_TRY(Limit("models", table.models.size(), kMaxCompactModels));
  std::uint64_t frames = 0;
  for (const CompactCell& cell : table.cells) {
    frames += cell.frames.size();
    for (const CompactTensor& tensor : cell.tensors) {
      SYNCLINE_TRY(Limit("bytes in a tensor's name", tensor.name.size(), kMaxNameBytes));
      SYNCLINE_TRY(Limit("dimensions of a tensor", tensor.shape.size(), kMaxRank));
    }
  }
  return Limit("frames", frames, kMaxFrames);
}

// Takes a table's content apart. Counts are bounded by the bytes that are left before anything is made
// of that size.
class TableReader {
 public:
  explicit TableReader(ByteSpan content) : from_(content) {}

  Result<CompactTable> Read(std::uint64_t table_offset) {
    SYNCLINE_TRY(ReadHead());
    SYNCLINE_TRY(ReadTensors());
    SYNCLINE_TRY(ReadFrames(table_offset));
    if (!from_.left().empty()) return Corrupt("is longer than what it says");
    return std::move(table_);
  }

 private:
  // A number of things of which each takes at least a byte.
  Result<std::uint64_t> Count() { return from_.Varint(from_.left().size()); }

  Status ReadHead() {
    SYNCLINE_ASSIGN(const std::uint64_t format, from_.Varint(kAny));
    if (format != kFormat) {
      return Fail(
          Code::kIncompatible,
          fmt::format("format {} of the compact encoding is not known, only {}", format, kFormat));
    }
    SYNCLINE_ASSIGN(const std::uint64_t frame_log, from_.Varint(kAny));
    if (frame_log < 12 || frame_log > 24)
      return Corrupt("has frames of a size that is not allowed");
    table_.frame_log = static_cast<unsigned>(frame_log);
    SYNCLINE_ASSIGN(const std::uint64_t models, from_.Varint(kAny));
    if (models > kMaxCompactModels) {
      return Corrupt(fmt::format("has {} models, the limit is {}", models, kMaxCompactModels));
    }
    for (std::uint64_t i = 0; i < models; ++i) {
      SYNCLINE_ASSIGN(StepModel model, ReadModel(from_));
      table_.models.push_back(model);
    }
    SYNCLINE_ASSIGN(const std::uint64_t cells, from_.Varint(kAny));
    const std::uint64_t room = from_.left().size() / kLeastTensorBytes;
    if (cells > room) return Corrupt(fmt::format("has {} cells and room for {}", cells, room));
    table_.cells.resize(cells);
    std::uint64_t tensors = 0;
    for (CompactCell& cell : table_.cells) {
      SYNCLINE_ASSIGN(const std::uint64_t count, from_.Varint(room));
      if (count == 0) return Corrupt("has a cell without a tensor");
      tensors += count;
      if (tensors > room) {
        return Corrupt(fmt::format("has {} tensors or more and room for {}", tensors, room));
      }
      cell.tensors.resize(count);
    }
    return {};
  }

  Status ReadTensors() {
    std::vector<std::uint64_t> lengths;
    SYNCLINE_TRY(TryEachTensor(table_, [&](CompactTensor&) -> Status {
      SYNCLINE_ASSIGN(const std::uint64_t length, from_.Varint(kMaxNameBytes));
      lengths.push_back(length);
      return {};
    }));
    std::size_t number = 0;
    SYNCLINE_TRY(TryEachTensor(table_, [&](CompactTensor& tensor) -> Status {
      SYNCLINE_ASSIGN(const ByteSpan name, from_.Bytes(lengths[number++]));
      tensor.name = base::AsText(name);
      return {};
    }));
    SYNCLINE_TRY(ReadDtypes());
    std::uint64_t dimensions = 0;
    SYNCLINE_TRY(TryEachTensor(table_, [&](CompactTensor& tensor) -> Status {
      SYNCLINE_ASSIGN(const std::uint64_t rank, from_.Varint(kMaxRank));
      dimensions += rank;
      if (dimensions > from_.left().size()) return Corrupt("has no room for its shapes");
      tensor.shape.resize(rank);
      return {};
    }));
    SYNCLINE_TRY(TryEachTensor(table_, [&](CompactTensor& tensor) -> Status {
      for (std::uint64_t& size : tensor.shape) {
        SYNCLINE_ASSIGN(size, from_.Varint(kAny));
      }
      SYNCLINE_ASSIGN(tensor.bytes, tensor::ByteCount(tensor.dtype, tensor.shape));
      return {};
    }));
    SYNCLINE_TRY(TryEachTensor(table_, [&](CompactTensor& tensor) -> Status {
      SYNCLINE_ASSIGN(tensor.changed_elements, from_.Varint(tensor.units()));
      if (tensor.changed_elements == 0) return Corrupt("names tensors without a change");
      return {};
    }));
    SYNCLINE_TRY(TryEachTensor(table_, [&](CompactTensor& tensor) -> Status {
      SYNCLINE_ASSIGN(const ByteSpan bytes, from_.Bytes(16));
      tensor.hash =
          base::ToHex({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
      return {};
    }));
    SYNCLINE_TRY(TryEachTensor(table_, [&](CompactTensor& tensor) -> Status {
      SYNCLINE_ASSIGN(const ByteSpan bytes, from_.Bytes(16));
      tensor.digest = {base::Load<std::uint64_t>(bytes.data()),
                       base::Load<std::uint64_t>(&bytes[8])};
      return {};
    }));
    return CheckCells();
  }

  Status ReadDtypes() {
    SYNCLINE_ASSIGN(const std::uint64_t count, Count());
    std::vector<tensor::Dtype> dtypes;
    for (std::uint64_t i = 0; i < count; ++i) {
      SYNCLINE_ASSIGN(const std::uint64_t length, from_.Varint(kMaxNameBytes));
      SYNCLINE_ASSIGN(const ByteSpan name, from_.Bytes(length));
      const auto dtype = tensor::FindDtype(base::AsText(name));
      if (!dtype) return Corrupt("has a dtype that is not known");
      dtypes.push_back(*dtype);
    }
    return TryEachTensor(table_, [&](CompactTensor& tensor) -> Status {
      SYNCLINE_ASSIGN(const ByteSpan byte, from_.Bytes(1));
      const auto index = static_cast<std::size_t>(byte.front());
      if (index >= dtypes.size()) return Corrupt("has a dtype that it does not name");
      tensor.dtype = dtypes[index];
      return {};
    });
  }

  Status CheckCells() const {
    std::set<std::string_view> names;
    for (const CompactCell& cell : table_.cells) {
      std::uint64_t units = 0;
      for (std::size_t i = 0; i < cell.tensors.size(); ++i) {
        const CompactTensor& tensor = cell.tensors[i];
        if (!names.insert(tensor.name).second) {
          return Corrupt(fmt::format("names the tensor {} twice", tensor.name));
        }
        if (i > 0 && tensor.name < cell.tensors[i - 1].name) {
          return Corrupt("has names in a cell that do not ascend");
        }
        if (KindOf(tensor.dtype) != KindOf(cell.tensors.front().dtype)) {
          return Corrupt("has a cell of units of several kinds");
        }
        units += std::min(tensor.units(), std::uint64_t{1} << 32);
      }
      if (cell.tensors.size() > 1 && units > std::uint64_t{1} << table_.frame_log) {
        return Corrupt("has a cell of several tensors that do not fit a frame");
      }
    }
    return {};
  }

  Status ReadFrames(std::uint64_t table_offset) {
    std::uint64_t offset = kCompactPreambleBytes;
    std::uint64_t left = kMaxFrames;
    for (CompactCell& cell : table_.cells) {
      const std::uint64_t frames = FramesOf(cell.tensors, table_.frame_log);
      if (frames > from_.left().size()) return Corrupt("has no room for its frames");
      if (frames > left) return Corrupt(fmt::format("has more than {} frames", kMaxFrames));
      left -= frames;
      cell.frames.resize(frames);
      for (CompactFrame& frame : cell.frames) {
        SYNCLINE_ASSIGN(frame.bytes, from_.Varint(table_offset));
        frame.offset = offset;
        offset += frame.bytes;
        if (offset > table_offset) return Corrupt("has frames that reach into it");
      }
    }
    if (offset != table_offset) return Corrupt("does not name all bytes of the file");
    SYNCLINE_TRY(ReadModels());
    for (CompactCell& cell : table_.cells) {
      for (CompactFrame& frame : cell.frames) {
        if (frame.bytes == 0) continue;
        SYNCLINE_ASSIGN(const ByteSpan check, from_.Bytes(8));
        frame.check = base::Load<std::uint64_t>(check.data());
      }
    }
    return {};
  }

  Status ReadModels() {
    for (CompactCell& cell : table_.cells) {
      const UnitKind kind = KindOf(cell.tensors.front().dtype);
      bool any = false;
      for (CompactFrame& frame : cell.frames) {
        if (frame.bytes == 0) continue;
        any = true;
        SYNCLINE_ASSIGN(frame.model, from_.Varint(kAny));
        if (frame.model >= table_.models.size()) return Corrupt("has a frame without a model");
        if (last_checked_ == std::pair(frame.model, kind)) continue;
        SYNCLINE_TRY(StepDecodeTables::Check(table_.models[frame.model], kind));
        last_checked_ = {frame.model, kind};
      }
      if (!any) return Corrupt("has a cell without a change");
    }
    return {};
  }

  ByteReader from_;
  CompactTable table_;
  std::pair<std::uint64_t, UnitKind> last_checked_ = {kAny, UnitKind::kPlain8};
};

}  // namespace

std::uint64_t FramesOf(std::span<const CompactTensor> tensors, unsigned frame_log) {
  if (tensors.size() > 1) return 1;
  const std::uint64_t units = tensors.front().units();
  return (units >> frame_log) + ((units & ((std::uint64_t{1} << frame_log) - 1)) != 0 ? 1 : 0);
}

std::uint64_t CompactFrameCheck(ByteSpan bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

Status CheckCompactFrame(const CompactFrame& frame, ByteSpan bytes) {
  if (bytes.size() == frame.bytes && CompactFrameCheck(bytes) == frame.check) return {};
  return Fail(Code::kCorrupt,
              fmt::format("the frame at {} is damaged: its check is {:016x}, expected {:016x}",
                          frame.offset, CompactFrameCheck(bytes), frame.check));
}

Result<std::vector<std::byte>> MakeCompactEnd(const CompactTable& table, std::uint64_t offset) {
  SYNCLINE_TRY(CheckLimits(table));
  const std::vector<std::byte> content = TableContent(table);
  SYNCLINE_TRY(Limit("bytes of a table", content.size(), kMaxTableBytes));
  std::vector<std::byte> out(ZSTD_compressBound(content.size()));
  const std::size_t size =
      ZSTD_compress(out.data(), out.size(), content.data(), content.size(),
                    content.size() < kSmallTableBytes ? kSmallTableLevel : kTableLevel);
  if (ZSTD_isError(size)) {
    return Fail(Code::kInternal, fmt::format("zstd: {}", ZSTD_getErrorName(size)));
  }
  out.resize(size + kCompactTrailerBytes);
  std::byte* const trailer = out.data() + size;
  base::Store(trailer, offset);
  base::Store(trailer + 8, static_cast<std::uint32_t>(size));
  base::Store(trailer + 12, static_cast<std::uint32_t>(content.size()));
  base::Store(trailer + 16, std::uint64_t{XXH3_64bits(out.data(), size + 16)});
  std::ranges::copy(base::AsBytes(kEndMagic), trailer + 24);
  return out;
}

Result<CompactTableRange> ReadCompactTrailer(ByteSpan trailer, std::uint64_t file_bytes) {
  if (trailer.size() != kCompactTrailerBytes || base::AsText(trailer.subspan(24)) != kEndMagic) {
    return Fail(Code::kCorrupt, "no delta file, or cut short: its end mark is missing");
  }
  const CompactTableRange range = {.offset = base::Load<std::uint64_t>(trailer.data()),
                                   .bytes = base::Load<std::uint32_t>(&trailer[8]),
                                   .content_bytes = base::Load<std::uint32_t>(&trailer[12])};
  if (range.offset < kCompactPreambleBytes || range.offset > file_bytes ||
      range.bytes + kCompactTrailerBytes != file_bytes - range.offset) {
    return Fail(Code::kCorrupt,
                fmt::format("a delta file of {} bytes says that its table of {} stands at {}",
                            file_bytes, range.bytes, range.offset));
  }
  if (range.content_bytes > kMaxTableBytes) {
    return Corrupt(fmt::format("says that it holds {} bytes, the limit is {}", range.content_bytes,
                               kMaxTableBytes));
  }
  return range;
}

Result<CompactTable> ReadCompactTable(ByteSpan bytes, const CompactTableRange& range) {
  if (bytes.size() != range.bytes + kCompactTrailerBytes ||
      XXH3_64bits(bytes.data(), range.bytes + 16) !=
          base::Load<std::uint64_t>(&bytes[range.bytes + 16])) {
    return Corrupt("is damaged: its check is wrong");
  }
  // zstd takes at least a byte for 128 KiB, so nobody asks for much more than he has sent.
  if (range.content_bytes / (std::uint64_t{128} * 1024) > range.bytes)
    return Corrupt("says more than it can hold");
  if (ZSTD_findFrameCompressedSize(bytes.data(), range.bytes) != range.bytes) {
    return Corrupt("is no single zstd frame");
  }
  std::vector<std::byte> content(range.content_bytes);
  const std::size_t size =
      ZSTD_decompress(content.data(), content.size(), bytes.data(), range.bytes);
  if (ZSTD_isError(size) || size != content.size()) return Corrupt("does not decompress");
  return TableReader(content).Read(range.offset);
}

}  // namespace syncline::delta
