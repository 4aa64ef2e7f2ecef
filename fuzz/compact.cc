// Files of the compact encoding: delta::ReadCompactTrailer, ReadCompactTable and FrameDecoder.
//
// The input is a byte of mode, a byte that the old values are made of, and by mode
//   0  a whole file, whose check of the table is put right before it is read;
//   1  u16 size of a table's content, the content, the frames: what is compressed is not mutated;
//   2  a kind of units, a number of tensors, u16 units of each, a model, a frame, and no table.
// Checks of frames are left out: damage is to get through to the decoder.
//
// - What is refused is corrupt, or of a format that is not known.
// - A frame over the tensors that its table names gives the same units, or is refused, with the
//   widest vectors of the machine and with the narrowest.
// - Units that change have their bits set, no other byte is written, and the new units may lie
//   where the old ones are.
// - A table takes memory in the measure of its content.
#include <hwy/targets.h>
#include <xxhash.h>
#include <zstd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "delta/compact_frame.h"
#include "delta/compact_table.h"
#include "support.h"

namespace syncline::fuzz {
namespace {

using base::ByteSpan;
using base::Code;
using base::Result;
using base::Status;
using delta::CompactTable;
using delta::StepModel;
using delta::UnitKind;
using Image = std::vector<std::byte>;
using Images = std::vector<Image>;

constexpr std::size_t kMaxTensors = std::size_t{1} << 20;  // bytes of all
constexpr std::size_t kMaxContent = std::size_t{1} << 20;  // of a table

void MustBeKnown(const base::Error& error) {
  Must(error.code == Code::kCorrupt || error.code == Code::kIncompatible,
       "what is refused is corrupt, or of a format that is not known");
}

// One frame over a part of each of some tensors.
struct Frame {
  ByteSpan bytes;
  UnitKind kind = UnitKind::kPlain8;
  const StepModel* model = nullptr;
  std::vector<std::uint64_t> units;
};

// Old units: many that occur in weights, and some of all.
Images OldImages(const Frame& frame, std::uint8_t seed) {
  Images images;
  std::uint32_t state = 0x9E3779B9U * (seed + 1U);
  for (const std::uint64_t units : frame.units) {
    Image& image = images.emplace_back(units * UnitBytes(frame.kind));
    for (std::byte& byte : image) {
      state = state * 1664525 + 1013904223;
      byte = static_cast<std::byte>(state >> (seed % 2 == 0 ? 24 : 28));
    }
  }
  return images;
}

// Reads all of a frame over `images`. `aside`: new units go into memory of their own first.
Status Decode(const Frame& frame, Images& images, bool aside) {
  const auto tables = std::make_unique<delta::StepDecodeTables>(*frame.model);
  Image memory(delta::kBytesBefore + frame.bytes.size());
  std::ranges::copy(frame.bytes, memory.begin() + delta::kBytesBefore);
  std::vector<delta::FrameDecoder::Part> parts;
  for (const std::uint64_t units : frame.units) parts.push_back({units});
  delta::FrameDecoder decoder;
  SYNCLINE_TRY(
      decoder.Open(ByteSpan(memory).subspan(delta::kBytesBefore), frame.kind, parts, *tables));
  const std::size_t unit_bytes = UnitBytes(frame.kind);
  for (std::size_t i = 0; i < images.size(); ++i) {
    for (std::uint64_t at = 0; at < frame.units[i]; at += delta::kStepBlockUnits) {
      const std::uint64_t count = std::min(delta::kStepBlockUnits, frame.units[i] - at);
      // In memory of exactly that size, so that sanitizers see what goes beyond.
      const auto begin = images[i].begin() + static_cast<std::ptrdiff_t>(at * unit_bytes);
      const Image before(begin, begin + static_cast<std::ptrdiff_t>(count * unit_bytes));
      Image after = before;
      delta::UnitMask changed;
      SYNCLINE_TRY(
          decoder.Next(i, aside ? before.data() : after.data(), count, after.data(), changed));
      for (std::size_t unit = 0; unit < delta::kStepBlockUnits; ++unit) {
        const bool set = (changed[unit / 64] >> (unit % 64) & 1) != 0;
        Must(!set || unit < count, "only units that there are have a bit");
        if (set || unit >= count) continue;
        Must(std::equal(after.data() + unit * unit_bytes, after.data() + (unit + 1) * unit_bytes,
                        before.data() + unit * unit_bytes),
             "units whose bits are not set stay");
      }
      std::ranges::copy(after, begin);
    }
  }
  return decoder.Finish();
}

// With all targets, so that the widest is taken, and then with the narrowest alone.
void CheckFrame(const Frame& frame, std::uint8_t seed) {
  static const std::vector<std::int64_t> targets = hwy::SupportedAndGeneratedTargets();
  const Images old = OldImages(frame, seed);
  Images wide = old;
  hwy::SetSupportedTargetsForTest(0);
  const Status first = Decode(frame, wide, true);
  if (!first) MustBeKnown(first.error());
  Images narrow = old;
  hwy::SetSupportedTargetsForTest(*std::ranges::max_element(targets));
  const Status second = Decode(frame, narrow, false);
  hwy::SetSupportedTargetsForTest(0);
  Must(first.has_value() == second.has_value(), "every machine accepts the same");
  if (!first) {
    Must(first.error().code == second.error().code, "every machine refuses for the same reason");
    return;
  }
  Must(wide == narrow, "every machine reads the same");
}

std::uint64_t TensorBytes(const CompactTable& table) {
  std::uint64_t total = 0;
  for (const delta::CompactCell& cell : table.cells) {
    for (const delta::CompactTensor& tensor : cell.tensors) {
      total += std::min<std::uint64_t>(tensor.bytes, kMaxTensors + 1);
    }
  }
  return total;
}

void CheckCells(const CompactTable& table, ByteSpan file, std::uint8_t seed) {
  if (TensorBytes(table) > kMaxTensors) return;
  for (const delta::CompactCell& cell : table.cells) {
    const UnitKind kind = delta::KindOf(cell.tensors.front().dtype);
    std::uint64_t first_unit = 0;
    for (const delta::CompactFrame& at : cell.frames) {
      Frame frame = {.kind = kind};
      for (const delta::CompactTensor& tensor : cell.tensors) {
        frame.units.push_back(
            std::min(tensor.units() - first_unit, std::uint64_t{1} << table.frame_log));
      }
      first_unit += frame.units.front();
      if (at.bytes == 0) continue;
      frame.bytes = file.subspan(at.offset, at.bytes);
      frame.model = &table.models[at.model];
      CheckFrame(frame, seed);
    }
  }
}

void PutCheckRight(Image& file, const delta::CompactTableRange& range) {
  const std::uint64_t check = XXH3_64bits(file.data() + range.offset, range.bytes + 16);
  base::Store(file.data() + range.offset + range.bytes + 16, check);
}

void CheckFile(Image file, std::uint8_t seed) {
  const std::size_t trailer = std::min(file.size(), delta::kCompactTrailerBytes);
  const auto range = delta::ReadCompactTrailer(ByteSpan(file).last(trailer), file.size());
  if (!range) return MustBeKnown(range.error());
  if (range->content_bytes > kMaxContent) return;
  PutCheckRight(file, *range);
  const MemoryWatch watch;
  const Result<CompactTable> table =
      delta::ReadCompactTable(ByteSpan(file).subspan(range->offset), *range);
  // A model takes 16 KiB, and four bytes of content.
  const std::size_t models = std::min(delta::kMaxCompactModels, range->content_bytes / 4 + 1);
  Must(watch.peak() <=
           (std::size_t{1} << 20) + 64 * range->content_bytes + 3 * models * sizeof(StepModel),
       "memory is bounded by the content");
  if (!table) return MustBeKnown(table.error());
  CheckCells(*table, file, seed);
}

// A file with this table and these frames.
Image MakeFile(ByteSpan content, ByteSpan frames) {
  Image file(delta::kCompactPreambleBytes);
  std::ranges::copy(base::AsBytes(delta::kCompactPreamble), file.begin());
  file.insert(file.end(), frames.begin(), frames.end());
  const std::size_t offset = file.size();
  file.resize(offset + ZSTD_compressBound(content.size()));
  const std::size_t size =
      ZSTD_compress(file.data() + offset, file.size() - offset, content.data(), content.size(), 1);
  file.resize(offset + size + delta::kCompactTrailerBytes);
  std::byte* const trailer = file.data() + offset + size;
  base::Store(trailer, std::uint64_t{offset});
  base::Store(trailer + 8, static_cast<std::uint32_t>(size));
  base::Store(trailer + 12, static_cast<std::uint32_t>(content.size()));
  std::ranges::copy(base::AsBytes(std::string_view("SYNCEND1")), trailer + 24);
  return file;
}

void CheckLooseFrame(ByteSpan input, std::uint8_t seed) {
  delta::ByteReader from(input);
  const auto kind = from.Varint(7);
  const auto tensors = from.Varint(8);
  if (!kind || !tensors || *tensors == 0) return;
  Frame frame = {.kind = static_cast<UnitKind>(*kind)};
  for (std::uint64_t i = 0; i < *tensors; ++i) {
    const auto units = from.Bytes(2);
    if (!units) return;
    frame.units.push_back(1 + base::Load<std::uint16_t>(units->data()) % 20'000U);
  }
  const Result<StepModel> model = delta::ReadModel(from);
  if (!model) return MustBeKnown(model.error());
  const Status fits = delta::StepDecodeTables::Check(*model, frame.kind);
  if (!fits) return MustBeKnown(fits.error());
  frame.model = &*model;
  frame.bytes = from.left();
  CheckFrame(frame, seed);
}

}  // namespace
}  // namespace syncline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace syncline;
  if (size < 4) return 0;
  const std::uint8_t seed = data[1];
  const base::ByteSpan rest = fuzz::Bytes(data + 2, size - 2);
  switch (data[0] % 3) {
    case 0:
      fuzz::CheckFile({rest.begin(), rest.end()}, seed);
      break;
    case 1: {
      const std::size_t content =
          std::min<std::size_t>(base::Load<std::uint16_t>(rest.data()), rest.size() - 2);
      fuzz::CheckFile(fuzz::MakeFile(rest.subspan(2, content), rest.subspan(2 + content)), seed);
      break;
    }
    default:
      fuzz::CheckLooseFrame(rest, seed);
  }
  return 0;
}
