#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <set>

#include "base/faulty_file_system.h"
#include "base/result_matchers.h"
#include "base/temp_dir.h"

namespace syncline::checkpoint {
namespace {

using base::AsBytes;
using base::Code;
using base::FileSystem;
using base::OpenMode;

FileSystem& files = FileSystem::Posix();

std::string WithLength(std::string_view header, std::string_view data) {
  std::string text(8, '\0');
  base::Store(reinterpret_cast<std::byte*>(text.data()), std::uint64_t{header.size()});
  return text + std::string(header) + std::string(data);
}

base::Result<SafetensorsHeader> ReadBytes(std::string_view bytes) {
  const base::TempDir dir;
  SYNCLINE_ASSIGN(const auto file, files.Open(dir / "m.safetensors", OpenMode::kCreate));
  SYNCLINE_TRY(file->WriteAt(AsBytes(bytes), 0));
  return ReadSafetensorsHeader(*file);
}

constexpr std::string_view kTwo =
    R"({"b":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
    R"("a":{"dtype":"BF16","shape":[],"data_offsets":[3,5]},"__metadata__":{"k":"v"}})";

TEST(SafetensorsTest, ReadsUnpaddedFilesWhoseDataIsNotAligned) {
  ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header, ReadBytes(WithLength(kTwo, "xyz12")));
  ASSERT_EQ(header.tensors.size(), 2U);
  EXPECT_EQ(header.tensors[0].name, "b");
  EXPECT_EQ(header.tensors[1].name, "a");
  EXPECT_EQ(header.tensors[1].offset, 8 + kTwo.size() + 3);
  EXPECT_EQ(header.tensors[1].bytes, 2U);
  EXPECT_EQ(header.metadata, (Metadata{{"k", "v"}}));
  EXPECT_OK(ReadBytes(WithLength(std::string(kTwo) + "   ", "xyz12")));
}

// BR-10: a cut at any byte, and one byte too many, are errors that name the file and the sizes.
TEST(SafetensorsTest, BR10_EveryTruncationIsNamed) {
  const std::string whole = WithLength(kTwo, "xyz12");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_ERROR(ReadBytes(whole.substr(0, size)), Code::kCorrupt, "m.safetensors");
    EXPECT_ERROR(ReadBytes(whole.substr(0, size)), Code::kCorrupt, "truncated");
    EXPECT_ERROR(ReadBytes(whole.substr(0, size)), Code::kCorrupt, std::to_string(size));
  }
  EXPECT_ERROR(ReadBytes(whole + "!"), Code::kCorrupt,
               "describes " + std::to_string(whole.size()) + " bytes, the file has");
}

TEST(SafetensorsTest, BR14_LengthFieldIsCheckedBeforeAnythingIsAllocated) {
  std::string bytes(100, ' ');
  for (const std::uint64_t length : {1ULL << 63, 100'000'001ULL, 93ULL, ~0ULL}) {
    base::Store(reinterpret_cast<std::byte*>(bytes.data()), std::uint64_t{length});
    EXPECT_ERROR(ReadBytes(bytes), Code::kCorrupt, length == 93 ? "truncated" : "limit");
  }
}

TEST(SafetensorsTest, BR14_WriterRefusesAHeaderThatNobodyCouldOpen) {
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 1000; ++i) {
    specs.push_back({.name = std::string(110'000, 'x') + std::to_string(i)});
  }
  EXPECT_ERROR(LayOutSafetensors(std::move(specs), {}), Code::kLimitExceeded, "100000000");
}

TEST(SafetensorsTest, BR15_WhatBreaksARuleIsRefusedByName) {
  const auto one = [](std::string_view dtype, std::string_view shape, std::string_view offsets) {
    return "{\"t\":{\"dtype\":" + std::string(dtype) + ",\"shape\":" + std::string(shape) +
           ",\"data_offsets\":" + std::string(offsets) + "}}";
  };
  EXPECT_OK(ReadBytes(WithLength(one("\"U8\"", "[2]", "[0,2]"), "ab")));
  const std::vector<std::pair<std::string, std::string>> bad = {
      {one("\"U8\"", "[3]", "[0,2]"), "takes 3 bytes, but its offsets hold 2"},
      {one("\"U8\"", "[2]", "[2,0]"), "not [begin, end]"},
      {one("\"U8\"", "[1]", "[1,2]"), "leaves a gap"},
      {one("\"U8\"", "[2]", "[0,-2]"), "-2, which is not an unsigned integer"},
      {one("\"U8\"", "[2.0]", "[0,2]"), "which is not an unsigned integer"},
      {one("\"U8\"", "\"2\"", "[0,2]"), "\"shape\" is not a list"},
      {one("\"U8\"", "[4294967296,4294967296]", "[0,2]"), "overflows"},
      {one("\"F4\"", "[3]", "[0,2]"), "does not end on a byte"},
      {one("8", "[2]", "[0,2]"), "no \"dtype\""},
      {R"({"t":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
       R"("t":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
       "duplicate name \"t\""},
      {R"({"t":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
       R"("u":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
       "overlaps"},
      {R"({"t":[]})", "not an object"},
      {R"({"__metadata__":{"a":1}})", "not a string"},
      {R"( {"t":1})", "does not start with '{'"},
      {"{\"\xff\":1}", "invalid JSON"},
  };
  for (const auto& [header, part] : bad) {
    EXPECT_ERROR(ReadBytes(WithLength(header, "ab")), Code::kCorrupt, part);
  }
  EXPECT_ERROR(ReadBytes(WithLength(one("\"F12\"", "[2]", "[0,2]"), "ab")), Code::kIncompatible,
               "unknown dtype F12");
}

TEST(SafetensorsTest, BR18_EmptyAndScalarTensorsAndFilesWithoutAny) {
  std::vector<TensorSpec> specs = {{.name = "scalar", .dtype = tensor::Dtype::kF32},
                                   {.name = "empty", .shape = {2, 0}},
                                   {.name = "none", .shape = {0}}};
  ASSERT_OK_AND_ASSIGN(const SafetensorsLayout layout, LayOutSafetensors(specs, {}));
  ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header, ReadBytes(layout.head + "1234"));
  EXPECT_EQ(header.tensors.size(), 3U);
  EXPECT_OK(ReadBytes(WithLength("{}", "")));
}

RC_GTEST_PROP(SafetensorsTest, WhatIsLaidOutIsReadBack, ()) {
  const auto count = *rc::gen::inRange<std::size_t>(0, 12);
  std::vector<TensorSpec> specs;
  std::set<std::string> names;
  for (std::size_t i = 0; i < count; ++i) {
    const auto& info =
        *rc::gen::elementOf(std::vector(tensor::DtypeTable().begin(), tensor::DtypeTable().end()));
    TensorSpec spec{.name = *rc::gen::string<std::string>(), .dtype = info.dtype};
    spec.shape =
        *rc::gen::container<std::vector<std::uint64_t>>(rc::gen::inRange<std::uint64_t>(0, 5));
    RC_PRE(names.insert(spec.name).second);
    for (const char c : spec.name) RC_PRE(static_cast<unsigned char>(c) < 0x80);
    RC_PRE(tensor::ByteCount(spec.dtype, spec.shape).has_value());
    specs.push_back(std::move(spec));
  }
  const auto alignment = *rc::gen::elementOf(std::vector{kDataAlignment, kLoadAlignment});
  const auto layout = LayOutSafetensors(specs, {{"format", "pt"}}, alignment);
  RC_ASSERT(layout.has_value());
  RC_ASSERT(layout->head.size() % alignment == 0U);
  // No more than it takes.
  const std::string_view head = layout->head;
  RC_ASSERT(head.size() - head.find_last_not_of(' ') <= alignment);
  const auto read =
      ParseSafetensorsHeader(std::string_view(layout->head).substr(8), layout->header.file_bytes);
  RC_ASSERT(read.has_value());
  RC_ASSERT(read->tensors.size() == specs.size());
  for (const TensorInfo& info : read->tensors) {
    const auto spec = std::ranges::find(specs, info.name, &TensorSpec::name);
    RC_ASSERT(spec != specs.end());
    RC_ASSERT(spec->dtype == info.dtype);
    RC_ASSERT(spec->shape == info.shape);
  }
}

TEST(SafetensorsTest, WriterNeedsTheSpaceFirstAndLeavesNothingWithoutCommit) {
  const base::TempDir dir;
  base::FaultyFileSystem faulty(files);
  const auto create = [&] {
    return SafetensorsWriter::Create(faulty, dir / "w.safetensors",
                                     LayOutSafetensors({{.name = "t", .shape = {4}}}, {}).value());
  };
  faulty.FailNth("allocate", "w.safetensors", 0, {Code::kNoSpace, "full"});
  EXPECT_ERROR(create(), Code::kNoSpace, "full");
  {
    EXPECT_OK(create());
  }
  EXPECT_TRUE(files.List(dir.path()).value().empty());
  {
    ASSERT_OK_AND_ASSIGN(SafetensorsWriter writer, create());
    ASSERT_OK(writer.WriteAt(AsBytes("abcd"), writer.header().tensors[0].offset));
    ASSERT_OK(writer.Commit(true));
  }
  EXPECT_EQ(files.List(dir.path()).value(), std::vector<std::string>{"w.safetensors"});
  const std::string text = base::ReadText(files, dir / "w.safetensors", 1000).value();
  EXPECT_TRUE(text.ends_with("abcd"));
}

}  // namespace
}  // namespace syncline::checkpoint
