#include "base/file.h"

#include <gtest/gtest.h>

#include "base/faulty_file_system.h"
#include "base/result_matchers.h"
#include "base/temp_dir.h"

namespace syncline::base {
namespace {

using testing::ElementsAre;

FileSystem& files = FileSystem::Posix();

TEST(FileTest, PathsThatStayInside) {
  for (const char* good : {"a", "a/b", "a.b/..c", "weights-00001.safetensors"}) {
    EXPECT_TRUE(IsInsidePath(good)) << good;
  }
  for (const char* bad : {"", "/a", "..", "../a", "a/../b", "a//b", "./a", "a/", "a/."}) {
    EXPECT_FALSE(IsInsidePath(bad)) << bad;
  }
  EXPECT_FALSE(IsInsidePath(std::string_view("a\0b", 3)));
}

TEST(FileTest, WriteReadAllocateAndMap) {
  const TempDir dir;
  ASSERT_OK_AND_ASSIGN(const auto file, files.Open(dir / "f", OpenMode::kCreateNew));
  ASSERT_OK(file->Allocate(10));
  ASSERT_OK(file->WriteAt(AsBytes("hello"), 5));
  ASSERT_OK_AND_ASSIGN(const FileInfo info, file->Stat());
  EXPECT_EQ(info.size, 10U);
  ASSERT_OK_AND_ASSIGN(Mapping map, file->Map(true));
  map.mutable_bytes()[0] = std::byte{'x'};
  std::array<std::byte, 20> buffer;
  ASSERT_OK_AND_ASSIGN(const std::size_t got, file->ReadAt(buffer, 0));
  EXPECT_EQ(AsText(ByteSpan(buffer).first(got)), std::string_view("x\0\0\0\0hello", 10));
  EXPECT_ERROR(ReadExactly(*file, buffer, 1), Code::kCorrupt,
               "is truncated: expected at least 21 bytes, found 10");
  EXPECT_ERROR(files.Open(dir / "f", OpenMode::kCreateNew), Code::kAlreadyExists, "/f");
  EXPECT_ERROR(files.Open(dir / "g", OpenMode::kRead), Code::kNotFound, "/g");
  EXPECT_ERROR(files.Open(dir.path(), OpenMode::kRead), Code::kInvalidArgument, "directory");
}

TEST(FileTest, AtomicTextLeavesNothingAside) {
  const TempDir dir;
  ASSERT_OK(WriteTextAtomically(files, dir / "t", "one", true));
  ASSERT_OK(WriteTextAtomically(files, dir / "t", "two!", false));
  EXPECT_EQ(ReadText(files, dir / "t", 4).value(), "two!");
  EXPECT_ERROR(ReadText(files, dir / "t", 3), Code::kLimitExceeded, "4 bytes");
  EXPECT_THAT(files.List(dir.path()).value(), ElementsAre("t"));
}

TEST(FileTest, FailedAtomicWriteKeepsTheOldContent) {
  const TempDir dir;
  FaultyFileSystem faulty(files);
  ASSERT_OK(WriteTextAtomically(faulty, dir / "t", "old", true));
  for (const char* operation : {"open", "write", "sync", "rename"}) {
    faulty.FailNth(operation, "t", 0, {Code::kNoSpace, "full"});
    EXPECT_ERROR(WriteTextAtomically(faulty, dir / "t", "new", true), Code::kNoSpace, "full");
    EXPECT_EQ(ReadText(files, dir / "t", 9).value(), "old") << operation;
  }
}

TEST(FileTest, DirectoriesAreMadeListedAndRemovedWithoutFollowingLinks) {
  const TempDir dir;
  ASSERT_OK(files.MakeDirectories(dir / "a/b/c"));
  ASSERT_OK(files.MakeDirectories(dir / "a/b/c"));
  ASSERT_OK(WriteTextAtomically(files, dir / "kept", "k", false));
  ASSERT_EQ(symlink((dir / "kept").c_str(), (dir / "a/link").c_str()), 0);
  EXPECT_THAT(files.List(dir / "a").value(), ElementsAre("b", "link"));
  ASSERT_OK(files.RemoveAll(dir / "a"));
  ASSERT_OK(files.RemoveAll(dir / "a"));
  EXPECT_THAT(files.List(dir.path()).value(), ElementsAre("kept"));
  EXPECT_ERROR(files.MakeDirectories(dir / "kept"), Code::kAlreadyExists, "kept");
}

TEST(FileTest, LocksExcludeEachOtherAndAreReleased) {
  const TempDir dir;
  {
    ASSERT_OK_AND_ASSIGN(const auto held, files.Lock(dir / "l", LockMode::kExclusive, false));
    EXPECT_ERROR(files.Lock(dir / "l", LockMode::kShared, false), Code::kLocked, "/l");
  }
  ASSERT_OK_AND_ASSIGN(const auto one, files.Lock(dir / "l", LockMode::kShared, false));
  ASSERT_OK_AND_ASSIGN(const auto two, files.Lock(dir / "l", LockMode::kShared, false));
}

TEST(FileTest, FaultyFileSystemRecordsChanges) {
  const TempDir dir;
  FaultyFileSystem faulty(files);
  ASSERT_OK(WriteTextAtomically(faulty, dir / "t", "x", true));
  EXPECT_THAT(faulty.changes(), ElementsAre("write " + dir / "t.tmp", "sync " + dir / "t.tmp",
                                            "rename " + dir / "t"));
}

TEST(PathTest, ParentsLeadToTheRoot) {
  EXPECT_EQ(ParentOf("/a/b/c"), "/a/b");
  EXPECT_EQ(ParentOf("/a/b/"), "/a");
  EXPECT_EQ(ParentOf("/a"), "/");
  EXPECT_EQ(ParentOf("/"), "/");
  EXPECT_EQ(ParentOf("a/b"), "a");
  EXPECT_EQ(ParentOf("a"), ".");
  EXPECT_EQ(ParentOf(""), ".");
}

}  // namespace
}  // namespace syncline::base
