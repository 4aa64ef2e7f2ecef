#include "base/faulty_file_system.h"

#include <gtest/gtest.h>

#include "base/result_matchers.h"
#include "base/temp_dir.h"

namespace syncline::base {
namespace {

FileSystem& files = FileSystem::Posix();

std::string Text(const std::string& path) { return ReadText(files, path, 1000).value(); }

TEST(FaultyFileSystemTest, AShortReadIsTruncation) {
  const TempDir dir;
  ASSERT_OK(WriteTextAtomically(files, dir / "f", "0123456789", false));
  FaultyFileSystem faulty(files);
  faulty.ShortReadNth("f", 1, 4);
  EXPECT_EQ(ReadText(faulty, dir / "f", 100).value(), "0123456789");
  EXPECT_ERROR(ReadText(faulty, dir / "f", 100), Code::kCorrupt,
               "truncated: expected at least 10 bytes, found 4");
  EXPECT_EQ(ReadText(faulty, dir / "f", 100).value(), "0123456789");
}

TEST(FaultyFileSystemTest, AReadRuleFlipsBitsInWhatIsReadOnly) {
  const TempDir dir;
  ASSERT_OK(WriteTextAtomically(files, dir / "f", "abc", false));
  FaultyFileSystem faulty(files);
  faulty.SetReadRule([](const std::string&, std::uint64_t, MutableByteSpan bytes) {
    bytes[1] ^= std::byte{1};
    return bytes.size();
  });
  EXPECT_EQ(ReadText(faulty, dir / "f", 100).value(), "acc");
  EXPECT_EQ(Text(dir / "f"), "abc");
}

TEST(FaultyFileSystemTest, AShortWriteWritesAPartAndFails) {
  const TempDir dir;
  FaultyFileSystem faulty(files);
  faulty.ShortWriteNth("f", 1, 2, {Code::kNoSpace, "full"});
  ASSERT_OK_AND_ASSIGN(const auto file, faulty.Open(dir / "f", OpenMode::kCreate));
  ASSERT_OK(file->WriteAt(AsBytes("aaaa"), 0));
  EXPECT_ERROR(file->WriteAt(AsBytes("bbbb"), 0), Code::kNoSpace, "full (write");
  EXPECT_EQ(Text(dir / "f"), "bbaa");
  ASSERT_OK(file->WriteAt(AsBytes("cccc"), 0));
  EXPECT_EQ(Text(dir / "f"), "cccc");
}

TEST(FaultyFileSystemTest, KillAtEndsEverything) {
  const TempDir dir;
  FaultyFileSystem faulty(files);
  faulty.KillAt(3, 1);  // open, lock, write, write
  {
    ASSERT_OK_AND_ASSIGN(const auto file, faulty.Open(dir / "f", OpenMode::kCreate));
    ASSERT_OK_AND_ASSIGN(const auto lock, faulty.Lock(dir / "lock", LockMode::kExclusive, false));
    ASSERT_OK(file->WriteAt(AsBytes("aaaa"), 0));
    EXPECT_FALSE(faulty.killed());
    EXPECT_ERROR(file->WriteAt(AsBytes("bbbb"), 0), Code::kIo, "killed before write");
    EXPECT_TRUE(faulty.killed());
    EXPECT_EQ(Text(dir / "f"), "baaa");  // the kill came in the middle of the write
    EXPECT_ERROR(file->WriteAt(AsBytes("cccc"), 0), Code::kIo, "killed");
    EXPECT_ERROR(file->Stat(), Code::kIo, "killed");
  }
  EXPECT_ERROR(faulty.Remove(dir / "f"), Code::kIo, "killed");
  EXPECT_ERROR(faulty.Rename(dir / "f", dir / "g"), Code::kIo, "killed");
  EXPECT_ERROR(faulty.Open(dir / "g", OpenMode::kCreate), Code::kIo, "killed");
  EXPECT_EQ(Text(dir / "f"), "baaa");
  EXPECT_OK(files.Lock(dir / "lock", LockMode::kExclusive, false));  // a dead process holds none
  EXPECT_EQ(faulty.operation_count(), 9U);
}

}  // namespace
}  // namespace syncline::base
