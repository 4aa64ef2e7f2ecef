// Damaged files of the compact encoding: what is read is right, or refused.
#include "delta/compact_table.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <xxhash.h>
#include <zstd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result_matchers.h"
#include "delta/compact_frame.h"
#include "tensor/hash.h"

namespace syncline::delta {
namespace {

using base::ByteSpan;
using base::Code;
using base::Result;
using base::Status;
using Bytes = std::vector<std::byte>;
using Images = std::map<std::string, Bytes>;
using tensor::Dtype;

constexpr unsigned kSmallFrameLog = 12;
constexpr std::size_t kFrameUnits = std::size_t{1} << kSmallFrameLog;

std::string HashOf(ByteSpan bytes) {
  const auto hasher = tensor::MakeHasher(tensor::HashKind::kXxh3);
  hasher->Update(bytes);
  return hasher->Hex();
}

// A file of three cells: two tensors with classes, one of them dense; a row of three frames of
// which the second is empty; and numbers of four bytes.
class SmallFile {
 public:
  SmallFile() {
    table_.frame_log = kSmallFrameLog;
    bytes_.assign(base::AsBytes(kCompactPreamble).begin(), base::AsBytes(kCompactPreamble).end());
    Add("a", Dtype::kBF16, 700, {3, 5, 600}, 16);
    Add("b", Dtype::kBF16, 40, {}, 16);
    for (std::size_t i = 0; i < 40; ++i) after_["b"][2 * i] = static_cast<std::byte>(7 * i);
    AddCell({"a", "b"}, 16, {1});
    Add("c", Dtype::kU8, 2 * kFrameUnits + 9, {0, 77, 2 * kFrameUnits + 8}, 1);
    AddCell({"c"}, 1, {});
    Add("d", Dtype::kF32, 30, {4, 29}, 1);
    AddCell({"d"}, 1, {});
    const Bytes end = MakeCompactEnd(table_, bytes_.size()).value();
    bytes_.insert(bytes_.end(), end.begin(), end.end());
  }

  const Bytes& bytes() const { return bytes_; }
  const Images& before() const { return before_; }
  const Images& after() const { return after_; }

 private:
  // A tensor whose units at these places change.
  void Add(const std::string& name, Dtype dtype, std::size_t units,
           const std::vector<std::size_t>& places, unsigned step) {
    const std::size_t width = UnitBytes(KindOf(dtype));
    Bytes& old = before_[name] = Bytes(units * width);
    for (std::size_t i = 0; i < old.size(); ++i) old[i] = static_cast<std::byte>(i * i % 61);
    after_[name] = old;
    for (const std::size_t place : places) {
      std::byte& byte = after_[name][place * width];
      byte = static_cast<std::byte>(static_cast<unsigned>(byte) + step);
    }
    dtypes_[name] = dtype;
  }

  void AddCell(const std::vector<std::string>& names, unsigned classes,
               const std::vector<std::size_t>& dense) {
    CompactCell cell;
    for (const std::string& name : names) {
      const Bytes& image = after_[name];
      const std::size_t width = UnitBytes(KindOf(dtypes_[name]));
      cell.tensors.push_back({.name = name,
                              .dtype = dtypes_[name],
                              .shape = {image.size() / width},
                              .changed_elements = 1,
                              .hash = HashOf(image),
                              .digest = tensor::DigestOf(image, width),
                              .bytes = image.size()});
    }
    const std::uint64_t frames = FramesOf(cell.tensors, kSmallFrameLog);
    for (std::uint64_t k = 0; k < frames; ++k) AddFrame(cell, k * kFrameUnits, classes, dense);
    table_.cells.push_back(std::move(cell));
  }

  void AddFrame(CompactCell& cell, std::uint64_t first_unit, unsigned classes,
                const std::vector<std::size_t>& dense) {
    const UnitKind kind = KindOf(cell.tensors.front().dtype);
    const ClassRule rule = {kind, classes, 0};
    std::vector<PieceChanges> pieces;
    std::vector<DensePart> planes;
    bool changed = false;
    for (std::size_t i = 0; i < cell.tensors.size(); ++i) {
      const std::string& name = cell.tensors[i].name;
      const std::size_t begin = first_unit * UnitBytes(kind);
      const std::size_t size =
          std::min(before_[name].size() - begin, kFrameUnits * UnitBytes(kind));
      const ByteSpan new_bytes = ByteSpan(after_[name]).subspan(begin, size);
      std::vector<Change> scratch;
      PieceScanner scanner(rule, scratch);
      ChangedLines lines(before_[name].size());
      changed |= scanner.Scan(ByteSpan(before_[name]).subspan(begin, size), new_bytes, begin, 1,
                              lines, nullptr) > 0;
      if (std::ranges::find(dense, i) != dense.end()) {
        planes.push_back({i, EncodePlanes(new_bytes, UnitBytes(kind)).value()});
      } else {
        pieces.push_back(scanner.Take());
      }
    }
    if (!changed) {
      cell.frames.push_back({});
      return;
    }
    const std::vector<Change> changes = JoinFrame(std::move(pieces));
    auto counts = std::make_unique<StepCounts>();
    CountFrame(changes, kind, classes, *counts);
    table_.models.push_back(StepModel::Of(*counts, classes, 0));
    const auto tables = std::make_unique<StepEncodeTables>(table_.models.back());
    base::Buffer memory;
    const Bytes frame = EncodeFrame(changes, kind, true, planes, classes, *tables, memory);
    cell.frames.push_back({.bytes = frame.size(),
                           .model = table_.models.size() - 1,
                           .check = CompactFrameCheck(frame)});
    bytes_.insert(bytes_.end(), frame.begin(), frame.end());
  }

  CompactTable table_;
  std::map<std::string, Dtype> dtypes_;
  Images before_;
  Images after_;
  Bytes bytes_;
};

Result<CompactTable> ReadTable(ByteSpan file) {
  if (file.size() < kCompactPreambleBytes + kCompactTrailerBytes ||
      base::AsText(file.first(kCompactPreambleBytes)) != kCompactPreamble) {
    return base::Fail(Code::kCorrupt, "no preamble");
  }
  SYNCLINE_ASSIGN(const CompactTableRange range,
                  ReadCompactTrailer(file.last(kCompactTrailerBytes), file.size()));
  return ReadCompactTable(file.subspan(range.offset), range);
}

Status ReadFrame(ByteSpan frame, UnitKind kind, const StepModel& model,
                 const std::vector<base::MutableByteSpan>& tensors) {
  const auto tables = std::make_unique<StepDecodeTables>(model);
  Bytes memory(kBytesBefore);
  memory.insert(memory.end(), frame.begin(), frame.end());
  std::vector<FrameDecoder::Part> parts;
  for (const base::MutableByteSpan tensor : tensors) {
    parts.push_back({tensor.size() / UnitBytes(kind)});
  }
  FrameDecoder decoder;
  SYNCLINE_TRY(decoder.Open(ByteSpan(memory).subspan(kBytesBefore), kind, parts, *tables));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    for (std::size_t at = 0; at < tensors[i].size(); at += kStepBlockUnits * UnitBytes(kind)) {
      const std::size_t units =
          std::min(kStepBlockUnits, (tensors[i].size() - at) / UnitBytes(kind));
      UnitMask changed;
      SYNCLINE_TRY(decoder.Next(i, &tensors[i][at], units, &tensors[i][at], changed));
    }
  }
  return decoder.Finish();
}

// Reads a whole file over images, as a replica does: the hashes of the new tensors too. Without
// `frame_checks` a damaged frame gets as far as the decoder.
Status Read(ByteSpan file, Images& images, bool frame_checks) {
  SYNCLINE_ASSIGN(const CompactTable table, ReadTable(file));
  for (const CompactCell& cell : table.cells) {
    const UnitKind kind = KindOf(cell.tensors.front().dtype);
    for (std::size_t k = 0; k < cell.frames.size(); ++k) {
      const CompactFrame& frame = cell.frames[k];
      if (frame.bytes == 0) continue;
      const ByteSpan bytes = file.subspan(frame.offset, frame.bytes);
      if (frame_checks) SYNCLINE_TRY(CheckCompactFrame(frame, bytes));
      std::vector<base::MutableByteSpan> parts;
      for (const CompactTensor& tensor : cell.tensors) {
        Bytes& image = images.at(tensor.name);
        const std::size_t begin = k * kFrameUnits * UnitBytes(kind);
        parts.push_back(base::MutableByteSpan(image).subspan(
            begin, std::min(image.size() - begin, kFrameUnits * UnitBytes(kind))));
      }
      SYNCLINE_TRY(ReadFrame(bytes, kind, table.models[frame.model], parts));
    }
    for (const CompactTensor& tensor : cell.tensors) {
      if (HashOf(images.at(tensor.name)) != tensor.hash) {
        return base::Fail(Code::kChecksumMismatch, tensor.name);
      }
    }
  }
  return {};
}

TEST(CompactFile, IsReadAsItWasWritten) {
  const SmallFile file;
  const CompactTable table = ReadTable(file.bytes()).value();
  ASSERT_EQ(table.cells.size(), 3U);
  ASSERT_EQ(table.cells[1].frames.size(), 3U);
  EXPECT_EQ(table.cells[1].frames[1].bytes, 0U);
  Images images = file.before();
  ASSERT_OK(Read(file.bytes(), images, true));
  EXPECT_TRUE(images == file.after());
}

TEST(CompactFile, EveryByteIsGuarded) {
  const SmallFile file;
  Images images = file.before();
  for (std::size_t at = 0; at < file.bytes().size(); ++at) {
    for (const std::byte flip : {std::byte{1}, std::byte{0x80}, std::byte{0xFF}}) {
      Bytes damaged = file.bytes();
      damaged[at] ^= flip;
      images = file.before();
      EXPECT_FALSE(Read(damaged, images, true).has_value()) << at;
    }
  }
}

// Frames that pass their check, because somebody put it right: the decoder refuses them, or gives
// units by which the hash of the tensor is wrong.
TEST(CompactFile, NoDamagedFrameIsTakenForRight) {
  const SmallFile file;
  const CompactTable table = ReadTable(file.bytes()).value();
  const CompactFrame& last = table.cells.back().frames.back();
  std::size_t refused = 0;
  for (std::size_t bit = 8 * kCompactPreambleBytes; bit < 8 * (last.offset + last.bytes); ++bit) {
    Bytes damaged = file.bytes();
    damaged[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    Images images = file.before();
    const Status status = Read(damaged, images, false);
    if (status) {
      EXPECT_TRUE(images == file.after()) << bit;
    } else {
      ++refused;
      EXPECT_TRUE(status.error().code == Code::kCorrupt ||
                  status.error().code == Code::kChecksumMismatch)
          << bit << status.error().message;
    }
  }
  EXPECT_GT(refused, 8 * (last.offset + last.bytes - kCompactPreambleBytes) / 2);
}

TEST(CompactFile, CutsAreRefused) {
  const SmallFile file;
  for (std::size_t size = 0; size < file.bytes().size(); ++size) {
    EXPECT_FALSE(ReadTable(ByteSpan(file.bytes()).first(size)).has_value()) << size;
  }
  Bytes longer = file.bytes();
  longer.push_back(std::byte{0});
  EXPECT_ERROR(ReadTable(longer), Code::kCorrupt, "end mark");
}

// A file with this table, and no frames.
Bytes FileOf(ByteSpan content, std::size_t frame_bytes) {
  Bytes file(base::AsBytes(kCompactPreamble).begin(), base::AsBytes(kCompactPreamble).end());
  file.resize(kCompactPreambleBytes + frame_bytes);
  const std::size_t offset = file.size();
  file.resize(offset + ZSTD_compressBound(content.size()));
  const std::size_t size =
      ZSTD_compress(&file[offset], file.size() - offset, content.data(), content.size(), 1);
  file.resize(offset + size + kCompactTrailerBytes);
  std::byte* const trailer = &file[offset + size];
  base::Store(trailer, std::uint64_t{offset});
  base::Store(trailer + 8, static_cast<std::uint32_t>(size));
  base::Store(trailer + 12, static_cast<std::uint32_t>(content.size()));
  base::Store(trailer + 16, std::uint64_t{XXH3_64bits(&file[offset], size + 16)});
  std::ranges::copy(base::AsBytes(std::string_view("SYNCEND1")), trailer + 24);
  return file;
}

TEST(CompactTable, CutContentIsRefused) {
  const SmallFile file;
  const CompactTableRange range =
      ReadCompactTrailer(ByteSpan(file.bytes()).last(kCompactTrailerBytes), file.bytes().size())
          .value();
  Bytes content(range.content_bytes);
  ASSERT_EQ(
      ZSTD_decompress(content.data(), content.size(), &file.bytes()[range.offset], range.bytes),
      content.size());
  const std::size_t frame_bytes = range.offset - kCompactPreambleBytes;
  ASSERT_OK(ReadTable(FileOf(content, frame_bytes)));
  for (std::size_t size = 0; size < content.size(); ++size) {
    SCOPED_TRACE(size);
    EXPECT_ERROR(ReadTable(FileOf(ByteSpan(content).first(size), frame_bytes)), Code::kCorrupt, "");
  }
  EXPECT_ERROR(ReadTable(FileOf(content, frame_bytes + 1)), Code::kCorrupt, "all bytes");
  EXPECT_ERROR(ReadTable(FileOf(content, frame_bytes - 1)), Code::kCorrupt, "");
  content.push_back(std::byte{0});
  EXPECT_ERROR(ReadTable(FileOf(content, frame_bytes)), Code::kCorrupt, "longer");
}

// A content in the making.
class Content {
 public:
  Content& Numbers(std::initializer_list<std::uint64_t> numbers) {
    for (const std::uint64_t number : numbers) AppendVarint(number, bytes_);
    return *this;
  }
  Content& Text(std::string_view text) {
    bytes_.insert(bytes_.end(), base::AsBytes(text).begin(), base::AsBytes(text).end());
    return *this;
  }
  Content& Fill(std::size_t count) {
    bytes_.resize(bytes_.size() + count);
    return *this;
  }
  Result<CompactTable> Read() const { return ReadTable(FileOf(bytes_, 0)); }

 private:
  Bytes bytes_;
};

constexpr std::uint64_t kHuge = std::uint64_t{1} << 40;

// Numbers that nothing stands behind: refused, by what they exceed, before memory is asked for.
TEST(CompactTable, HugeNumbersAreRefused) {
  constexpr std::size_t kRoom = 1000;
  EXPECT_ERROR(Content().Numbers({1, 12, kHuge}).Fill(kRoom).Read(), Code::kCorrupt,
               fmt::format("the limit is {}", kMaxCompactModels));
  EXPECT_ERROR(Content().Numbers({1, 12, kMaxCompactModels + 1}).Fill(kRoom).Read(), Code::kCorrupt,
               fmt::format("the limit is {}", kMaxCompactModels));
  EXPECT_ERROR(Content().Numbers({1, 12, 0, kHuge}).Fill(kRoom).Read(), Code::kCorrupt,
               fmt::format("has {} cells and room for {}", kHuge, kRoom / 36));
  EXPECT_ERROR(Content().Numbers({1, 12, 0, 29}).Fill(kRoom).Read(), Code::kCorrupt,
               "has 29 cells and room for 27");
  EXPECT_ERROR(Content().Numbers({1, 12, 0, 1, kHuge}).Fill(kRoom).Read(), Code::kCorrupt,
               "too large");
  EXPECT_ERROR(Content().Numbers({1, 12, 0, 2, 20, 20}).Fill(kRoom).Read(), Code::kCorrupt,
               "has 40 tensors or more and room for 27");
  EXPECT_ERROR(Content().Numbers({1, 12, 0, 1, 1, kHuge}).Fill(kRoom).Read(), Code::kCorrupt,
               "too large");
  EXPECT_ERROR(Content().Numbers({1, 12, 0, 1, 1, 0, kHuge}).Fill(kRoom).Read(), Code::kCorrupt,
               "too large");
}

Content OneTensor(std::string_view dtype) {
  return Content().Numbers({1, 12, 0, 1, 1, 0, 1, dtype.size()}).Text(dtype).Numbers({0});
}

TEST(CompactTable, HugeTensorsAreRefused) {
  EXPECT_ERROR(OneTensor("U8").Numbers({65}).Fill(1000).Read(), Code::kCorrupt, "too large");
  EXPECT_ERROR(OneTensor("U8").Numbers({64}).Fill(40).Read(), Code::kCorrupt,
               "no room for its shapes");
  EXPECT_ERROR(OneTensor("U8").Numbers({2, kHuge, kHuge}).Fill(1000).Read(), Code::kCorrupt,
               "overflows");
  // 2^28 frames, and room for some.
  EXPECT_ERROR(OneTensor("U8").Numbers({1, kHuge, 1}).Fill(1000).Read(), Code::kCorrupt,
               "no room for its frames");
  // A thousand times as much as what is compressed, and 2^25 frames.
  EXPECT_ERROR(OneTensor("U8").Numbers({1, kHuge / 8, 1}).Fill(std::size_t{1} << 26).Read(),
               Code::kCorrupt, fmt::format("more than {} frames", 1 << 24));
}

TEST(CompactTable, HugeContentIsRefused) {
  Bytes file = SmallFile().bytes();
  base::Store(&file[file.size() - 20], std::uint32_t{(1U << 28) + 1});
  EXPECT_ERROR(ReadTable(file), Code::kCorrupt, fmt::format("the limit is {}", 1 << 28));
}

TEST(CompactTable, WhatReadersRefuseIsNotWritten) {
  CompactTable named;
  named.cells.push_back({.tensors = {{.name = std::string(65537, 'x')}}, .frames = {{}}});
  EXPECT_ERROR(MakeCompactEnd(named, 8), Code::kLimitExceeded, "65537 bytes in a tensor's name");
  named.cells[0].tensors[0] = {.name = "a", .shape = std::vector<std::uint64_t>(65, 1)};
  EXPECT_ERROR(MakeCompactEnd(named, 8), Code::kLimitExceeded, "65 dimensions");
  CompactTable table;
  table.models.resize(kMaxCompactModels + 1);
  EXPECT_ERROR(MakeCompactEnd(table, 8), Code::kLimitExceeded,
               fmt::format("{} models, the limit is {}", kMaxCompactModels + 1, kMaxCompactModels));
}

// A class without tables has no bits in the stream, and leaves the states: a writer may drop the
// tables of classes without a change, which ours does not.
TEST(CompactFrame, ClassesWithoutTables) {
  StepModel model{.classes = kMaxClasses, .base = 100};
  model.gaps[5] = {256, 768};  // END, a gap of 0
  model.steps[5] = {512};
  // Two units of class 5 step by +1 and -1; written by the reference of the tests.
  const Bytes stream = {std::byte{0x04}, std::byte{0x80}, std::byte{0xE4}};
  Bytes frame = {std::byte{0}};
  frame.insert(frame.end(), stream.begin(), stream.end());
  Bytes units(8);
  for (std::size_t i = 0; i < 4; ++i) {
    const auto exponent = static_cast<std::uint16_t>(i % 2 == 0 ? 105 : 110);
    base::Store(&units[2 * i], static_cast<std::uint16_t>(exponent << 7 | 9));
  }
  ASSERT_OK(ReadFrame(frame, UnitKind::kFloat16M7, model, {units}));
  EXPECT_EQ(base::Load<std::uint16_t>(units.data()), 105 << 7 | 10);
  EXPECT_EQ(base::Load<std::uint16_t>(&units[2]), 110 << 7 | 9);
  EXPECT_EQ(base::Load<std::uint16_t>(&units[4]), 105 << 7 | 8);
}

}  // namespace
}  // namespace syncline::delta
