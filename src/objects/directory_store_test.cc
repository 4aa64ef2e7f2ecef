// The directory as a store: what the contract suite does not ask.
#include "objects/directory_store.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "base/faulty_file_system.h"
#include "base/result_matchers.h"
#include "base/temp_dir.h"

namespace syncline::objects {
namespace {

using base::CancelToken;
using base::Code;
using base::FaultyFileSystem;
using base::FileSystem;
using testing::ElementsAre;
using testing::HasSubstr;

class DirectoryStoreTest : public testing::Test {
 protected:
  std::vector<std::string> Names(const std::string& folder = "") {
    return FileSystem::Posix().List(root_ + "/" + folder).value_or(std::vector<std::string>());
  }
  std::vector<std::string> Keys(const std::string& prefix = "") {
    std::vector<std::string> keys;
    const auto listed = store_->List(prefix, false, nullptr);
    EXPECT_OK(listed);
    for (const ObjectInfo& object : listed.value_or(std::vector<ObjectInfo>())) {
      keys.push_back(object.key);
    }
    return keys;
  }

  base::TempDir directory_;
  std::string root_ = directory_ / "store";
  FaultyFileSystem files_{FileSystem::Posix()};
  std::unique_ptr<ObjectStore> store_ = OpenDirectory(files_, root_, root_);
  const std::string lock_ = fmt::format("{}lock", kOwnNames);
};

TEST_F(DirectoryStoreTest, WritesAsideThenCommits) {
  std::vector<std::string> changes;
  files_.SetRule([&](std::string_view operation, const std::string& path) {
    constexpr std::string_view kShown[] = {"open", "allocate", "write",
                                           "sync", "rename",   "sync_directory"};
    if (std::ranges::find(kShown, operation) == std::end(kShown)) return base::Status();
    const std::size_t part = path.find(fmt::format("{}part-", kOwnNames));
    changes.push_back(fmt::format("{} {}{}", operation,
                                  path.substr(root_.size(), part - root_.size()),
                                  part == std::string::npos ? "" : "ASIDE"));
    return base::Status();
  });
  ASSERT_OK(store_->PutText("a/b", "text", true, nullptr));
  EXPECT_THAT(changes,
              ElementsAre("open /a/ASIDE", "allocate /a/ASIDE", "write /a/ASIDE", "sync /a/ASIDE",
                          "rename /a/b", "sync_directory /a", "sync_directory "));
  EXPECT_THAT(Names(), ElementsAre(lock_, "a"));
  EXPECT_THAT(Names("a"), ElementsAre("b"));
}

TEST_F(DirectoryStoreTest, AFailedWriteChangesNothing) {
  ASSERT_OK(store_->PutText("a/b", "old", false, nullptr));
  for (const char* operation : {"open", "allocate", "write", "sync", "rename"}) {
    const bool rename = std::string_view(operation) == "rename";
    files_.FailNth(operation, rename ? "/a/b" : "part-", 0, {Code::kNoSpace, "injected"});
    EXPECT_ERROR(store_->PutText("a/b", "new", false, nullptr), Code::kNoSpace, "injected");
    EXPECT_EQ(store_->ReadText("a/b", 10, nullptr).value_or(""), "old");
    EXPECT_THAT(Names("a"), ElementsAre("b")) << operation;
  }
}

TEST_F(DirectoryStoreTest, WhatADeadWriterLeft) {
  ASSERT_OK(store_->PutText("a/b", "text", false, nullptr));
  const std::string dead = fmt::format("{}part-dead", kOwnNames);
  const std::string live = fmt::format("{}part-live", kOwnNames);
  ASSERT_OK(base::WriteTextAtomically(FileSystem::Posix(), root_ + "/a/" + dead, "half", false));
  ASSERT_OK_AND_ASSIGN(const auto lock, FileSystem::Posix().Lock(root_ + "/a/" + live,
                                                                 base::LockMode::kExclusive, true));
  EXPECT_THAT(Keys(), ElementsAre("a/b"));
  ASSERT_OK(store_->PutText("a/c", "text", false, nullptr));
  EXPECT_THAT(Names("a"), ElementsAre(live, "b", "c"));
}

TEST_F(DirectoryStoreTest, OwnNamesAreNoObjects) {
  ASSERT_OK(store_->PutText("a", "text", false, nullptr));
  for (const std::string& key : {lock_, "a/" + lock_, lock_ + "/a"}) {
    EXPECT_ERROR(store_->Stat(key, nullptr), Code::kInvalidArgument, "the store's own");
    EXPECT_ERROR(store_->PutText(key, "", false, nullptr), Code::kInvalidArgument, "own");
    EXPECT_ERROR(store_->Remove(key, nullptr), Code::kInvalidArgument, "own");
  }
}

TEST_F(DirectoryStoreTest, WaitsForAnotherWriter) {
  ASSERT_OK(store_->PutText("a", "text", false, nullptr));
  ASSERT_OK_AND_ASSIGN(const auto lock, FileSystem::Posix().Lock(root_ + "/" + lock_,
                                                                 base::LockMode::kExclusive, true));
  CancelToken cancel;
  int tries = 0;
  files_.SetRule([&](std::string_view operation, const std::string&) {
    if (operation == "lock" && ++tries == 3) cancel.Cancel();
    return base::Status();
  });
  EXPECT_ERROR(store_->PutText("b", "text", true, &cancel), Code::kCancelled, "");
  EXPECT_EQ(tries, 3);
  EXPECT_THAT(Keys(), ElementsAre("a"));
}

TEST_F(DirectoryStoreTest, NoDirectoryIsNoEmptyStore) {
  EXPECT_ERROR(store_->List("", false, nullptr), Code::kNotFound, root_);
  EXPECT_OK(store_->Remove("a", nullptr));
  EXPECT_ERROR(FileSystem::Posix().Stat(root_), Code::kNotFound, "");  // nothing was made
}

TEST_F(DirectoryStoreTest, LinksAndOtherThings) {
  ASSERT_OK(store_->PutText("a/b", "text", false, nullptr));
  std::filesystem::create_symlink("nowhere", root_ + "/dangling");
  std::filesystem::create_symlink("a/b", root_ + "/link");
  ASSERT_EQ(mkfifo((root_ + "/fifo").c_str(), 0600), 0);
  EXPECT_THAT(Keys(), ElementsAre("a/b", "link"));
  EXPECT_EQ(store_->ReadText("link", 10, nullptr).value_or(""), "text");
  EXPECT_ERROR(store_->Stat("fifo", nullptr), Code::kNotFound, "/fifo");
  EXPECT_ERROR(store_->ReadText("fifo", 10, nullptr), Code::kNotFound, "/fifo");
  EXPECT_ERROR(store_->ReadText("a", 10, nullptr), Code::kNotFound, "/a is no file");
}

TEST_F(DirectoryStoreTest, AFolderThatCannotBeRead) {
  ASSERT_OK(store_->PutText("a/b", "text", false, nullptr));
  files_.FailNth("list", "/a", 0, {Code::kPermissionDenied, "injected"});
  EXPECT_ERROR(store_->List("", false, nullptr), Code::kPermissionDenied, "injected");
}

TEST_F(DirectoryStoreTest, OverAFolder) {
  ASSERT_OK(store_->PutText("a/b", "text", false, nullptr));
  EXPECT_FALSE(store_->PutText("a", "text", false, nullptr).has_value());
  EXPECT_ERROR(store_->PutText("a", "text", true, nullptr), Code::kAlreadyExists, "/a");
  EXPECT_FALSE(store_->PutText("a/b/c", "text", false, nullptr).has_value());
  EXPECT_OK(store_->Remove("a", nullptr));  // there is no such object
  EXPECT_THAT(Keys(), ElementsAre("a/b"));
}

TEST_F(DirectoryStoreTest, ALargeFileIsCancelledBetweenBlocks) {
  ASSERT_OK_AND_ASSIGN(const auto file,
                       FileSystem::Posix().Open(directory_ / "f", base::OpenMode::kCreate));
  ASSERT_OK(file->Allocate(20 << 20));
  CancelToken cancel;
  std::uint64_t sent = 0;
  const auto put = store_->Put(
      "a", *file,
      [&](std::uint64_t more) {
        sent += more;
        cancel.Cancel();
      },
      &cancel);
  EXPECT_ERROR(put, Code::kCancelled, "");
  EXPECT_LT(sent, 20 << 20);
  EXPECT_THAT(Names(), ElementsAre(lock_));
}

}  // namespace
}  // namespace syncline::objects
