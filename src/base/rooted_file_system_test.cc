#include "base/rooted_file_system.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "base/faulty_file_system.h"
#include "base/result_matchers.h"
#include "base/temp_dir.h"

namespace syncline::base {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class RootedTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"models/one", "blobs", "outside", "models-2", "launch"}) {
      fs::create_directories(place_ / name);
    }
    for (const char* name :
         {"models/one/a", "blobs/b", "outside/secret", "models-2/x", "launch/w"}) {
      ASSERT_OK(WriteTextAtomically(FileSystem::Posix(), place_ / name, name, false));
    }
    ASSERT_OK_AND_ASSIGN(
        files_, RootedFileSystem::Make(recorder_, {.roots = {place_ / "models", place_ / "blobs"},
                                                   .readable = {launch_}}));
  }

  void Link(const std::string& name, const std::string& target) {
    fs::create_symlink(target, place_ / name);
  }
  std::string Read(const std::string& name) {
    const auto text = ReadText(*files_, place_ / name, 100);
    return text ? *text : text.error().message;
  }
  void ExpectRefused(const std::string& path) {
    std::vector<std::string> asked;
    recorder_.SetRule([&](std::string_view operation, const std::string&) {
      asked.emplace_back(operation);
      return Status();
    });
    EXPECT_ERROR(files_->Open(path, OpenMode::kRead), Code::kPermissionDenied, path);
    EXPECT_ERROR(files_->Open(path, OpenMode::kReadWrite), Code::kPermissionDenied, path);
    EXPECT_ERROR(files_->Stat(path), Code::kPermissionDenied, place_ / "models");
    EXPECT_ERROR(files_->Check(path), Code::kPermissionDenied, place_ / "models");
    EXPECT_ERROR(files_->MakeDirectories(path), Code::kPermissionDenied, path);
    EXPECT_ERROR(files_->Lock(path, LockMode::kShared, false), Code::kPermissionDenied, path);
    EXPECT_THAT(asked, IsEmpty()) << path;
    recorder_.SetRule({});
  }

  TempDir place_;
  const std::string launch_ = place_ / "launch/";
  FaultyFileSystem recorder_{FileSystem::Posix()};
  std::unique_ptr<RootedFileSystem> files_;
};

TEST_F(RootedTest, WhatLiesInsideIsThere) {
  EXPECT_EQ(Read("models/one/a"), "models/one/a");
  EXPECT_EQ(Read("outside/../models/./one//a"), "models/one/a");
  ASSERT_OK_AND_ASSIGN(const auto names, files_->List(place_ / "models"));
  EXPECT_THAT(names, ElementsAre("one"));
  EXPECT_OK(files_->MakeDirectories(place_ / "models/two/three"));
  EXPECT_OK(files_->Rename(place_ / "models/two", place_ / "models/four"));
  EXPECT_OK(files_->RemoveAll(place_ / "models/four"));
  EXPECT_OK(files_->Check(place_ / "models/not/there/yet"));
  EXPECT_OK(files_->SyncDirectory(place_ / "models"));
  EXPECT_OK(files_->FreeBytes(place_ / "blobs"));
}

TEST_F(RootedTest, Br48WhatLeadsOutsideIsRefusedBeforeAnythingIsOpened) {
  Link("models/one/link", place_ / "outside/secret");
  Link("models/one/relative", "../../outside/secret");
  Link("models/one/folder", "../../outside");
  Link("models/one/again", "link");
  Link("models/one/dangling", place_ / "outside/new");
  for (const char* name :
       {"outside/secret", "outside", "models/../outside/secret", "models/one/link",
        "models/one/relative", "models/one/folder/secret", "models/one/folder/new",
        "models/one/again", "models/one/dangling", "models/one/folder/../outside/secret",
        "models-2/x", "missing", "models/missing/../../outside/secret", "models/.."}) {
    ExpectRefused(place_ / name);
  }
  ExpectRefused("/etc/passwd");
  ExpectRefused("/");
  ExpectRefused("relative");
}

TEST_F(RootedTest, Br20LinksBetweenRootsAreFine) {
  Link("models/one/weights", "../../blobs/b");
  EXPECT_EQ(Read("models/one/weights"), "blobs/b");
  Link("to-models", "models");
  EXPECT_EQ(Read("to-models/one/a"), "models/one/a");
}

TEST_F(RootedTest, ALinkItselfIsANameOfItsDirectory) {
  Link("models/one/link", place_ / "outside/secret");
  EXPECT_OK(files_->Rename(place_ / "models/one/link", place_ / "models/one/moved"));
  ASSERT_OK_AND_ASSIGN(const bool shared, files_->IsShared(place_ / "models/one/moved"));
  EXPECT_TRUE(shared);
  EXPECT_OK(files_->Remove(place_ / "models/one/moved"));
  Link("models/one/folder", place_ / "outside");
  EXPECT_ERROR(files_->Remove(place_ / "models/one/folder/secret"), Code::kPermissionDenied,
               "outside");
  EXPECT_ERROR(files_->Rename(place_ / "models/one/a", place_ / "outside/a"),
               Code::kPermissionDenied, "outside");
  EXPECT_ERROR(files_->RemoveAll(place_ / "models"), Code::kPermissionDenied, "models");
  EXPECT_EQ(Read("models/one/a"), "models/one/a");
}

TEST_F(RootedTest, WhatTheOperatorChoseMayBeReadAndNotWritten) {
  Link("launch/linked", "../outside/secret");
  EXPECT_EQ(Read("launch/w"), "launch/w");
  EXPECT_EQ(Read("launch/linked"), "outside/secret");
  EXPECT_OK(files_->Check(place_ / "launch"));
  EXPECT_ERROR(files_->Open(place_ / "launch/w", OpenMode::kReadWrite), Code::kPermissionDenied,
               "launch");
  ExpectRefused(place_ / "launch/../outside/secret");
  EXPECT_THAT(Read("launch-2"), HasSubstr("is outside"));
}

TEST_F(RootedTest, LinksInACircleEnd) {
  Link("models/one/x", "y");
  Link("models/one/y", "x");
  EXPECT_ERROR(files_->Stat(place_ / "models/one/x"), Code::kInvalidArgument, "too many links");
}

TEST_F(RootedTest, RootsAreDirectories) {
  for (const char* name : {"missing", "blobs/b"}) {
    EXPECT_ERROR(RootedFileSystem::Make(FileSystem::Posix(), {.roots = {place_ / name}}),
                 Code::kInvalidArgument, name);
  }
  Link("alias", "models");
  ASSERT_OK_AND_ASSIGN(const auto files,
                       RootedFileSystem::Make(FileSystem::Posix(), {.roots = {place_ / "alias/"}}));
  EXPECT_OK(files->Stat(place_ / "models/one/a"));
  ASSERT_OK_AND_ASSIGN(const auto all,
                       RootedFileSystem::Make(FileSystem::Posix(), {.roots = {"/"}}));
  EXPECT_OK(all->Stat(place_ / "outside/secret"));
}

}  // namespace
}  // namespace syncline::base
