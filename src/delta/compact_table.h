// The table at the end of a file of the compact encoding (docs/format.md, "File"): which tensors
// changed, in which cells they are, and where the frames are.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "delta/step_code.h"
#include "delta/unit_kind.h"
#include "tensor/digest.h"
#include "tensor/dtype.h"

namespace syncline::delta {

inline constexpr std::string_view kCompactPreamble = "SYNCDLT1";
inline constexpr std::size_t kCompactPreambleBytes = kCompactPreamble.size();
inline constexpr std::size_t kCompactTrailerBytes = 32;
inline constexpr unsigned kFrameLog = 21;  // of the units of a frame, as we write them

struct CompactTensor {
  std::string name;
  tensor::Dtype dtype = tensor::Dtype::kU8;
  std::vector<std::uint64_t> shape;
  std::uint64_t changed_elements = 0;
  std::string hash;         // xxh3-128 of the new bytes, 32 lower-case hex digits
  tensor::Digest digest;    // of the new bytes
  std::uint64_t bytes = 0;  // by dtype and shape

  std::uint64_t units() const { return bytes / UnitBytes(KindOf(dtype)); }
};

struct CompactFrame {
  std::uint64_t bytes = 0;   // 0: nothing changed
  std::uint64_t offset = 0;  // in the file; set by ReadCompactTable
  std::uint64_t model = 0;
  std::uint64_t check = 0;  // XXH3-64
};

// One tensor and its frames, or several tensors in one frame.
struct CompactCell {
  std::vector<CompactTensor> tensors;
  std::vector<CompactFrame> frames;
};

// How many frames a cell has: where it has one tensor, by its units; else one.
std::uint64_t FramesOf(std::span<const CompactTensor> tensors, unsigned frame_log);

struct CompactTable {
  unsigned frame_log = kFrameLog;
  std::vector<StepModel> models;
  std::vector<CompactCell> cells;
};

// The table as it stands in a file, and the trailer. `offset`: where the table will stand.
base::Result<std::vector<std::byte>> MakeCompactEnd(const CompactTable& table,
                                                    std::uint64_t offset);

// Where the table is, from the last kCompactTrailerBytes of a file of that size. kCorrupt where it is
// no trailer, or one of another size.
struct CompactTableRange {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;          // of the table in the file
  std::uint64_t content_bytes = 0;  // decompressed
};
base::Result<CompactTableRange> ReadCompactTrailer(base::ByteSpan trailer,
                                                   std::uint64_t file_bytes);

// `bytes`: the table and the trailer, to the file's end. Everything that can be checked without the
// frames is: names, sizes, sums, models, that the frames fill the file up to the table. kCorrupt
// otherwise; kIncompatible for a format number that we do not know.
base::Result<CompactTable> ReadCompactTable(base::ByteSpan bytes, const CompactTableRange& range);

// kCorrupt if these are not the bytes of that frame.
base::Status CheckCompactFrame(const CompactFrame& frame, base::ByteSpan bytes);
std::uint64_t CompactFrameCheck(base::ByteSpan bytes);

}  // namespace syncline::delta
