// What every store promises, asked of each kind: a directory, HTTP, S3.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <atomic>
#include <thread>

#include "base/result_matchers.h"
#include "base/temp_dir.h"
#include "objects/moto_server.h"
#include "objects/object_store.h"
#include "objects/test_server.h"

namespace syncline::objects {
namespace {

using base::CancelToken;
using base::Code;
using base::FileSystem;
using base::Result;
using testing::ElementsAre;

// Something that holds a store, and another way to put objects into it.
class Scene {
 public:
  virtual ~Scene() = default;
  virtual ObjectStore& store() = 0;
  virtual ObjectStore& writer() { return store(); }
};

std::unique_ptr<ObjectStore> MustOpen(const std::string& url, const Settings& settings) {
  auto store = Open(FileSystem::Posix(), url, settings);
  EXPECT_OK(store);
  return store ? *std::move(store) : nullptr;
}

class DirectoryScene final : public Scene {
 public:
  DirectoryScene() : store_(MustOpen("file://" + directory_ / "store", {})) {
    EXPECT_OK(FileSystem::Posix().MakeDirectories(directory_ / "store"));
  }
  ObjectStore& store() override { return *store_; }

 private:
  base::TempDir directory_;
  std::unique_ptr<ObjectStore> store_;
};

class HttpScene final : public Scene {
 public:
  HttpScene()
      : server_(ServeDirectory(directory_.path())),
        writer_(MustOpen(directory_ / "the tree", {})),
        store_(MustOpen(server_.url() + "/the%20tree", {})) {}
  ObjectStore& store() override { return *store_; }
  ObjectStore& writer() override { return *writer_; }

 private:
  base::TempDir directory_;
  TestServer server_;
  std::unique_ptr<ObjectStore> writer_;
  std::unique_ptr<ObjectStore> store_;
};

class S3Scene final : public Scene {
 public:
  explicit S3Scene(MotoServer& server)
      : store_(MustOpen(fmt::format("s3://{}/a prefix/below", server.MakeBucket()),
                        server.settings())) {}
  ObjectStore& store() override { return *store_; }

 private:
  std::unique_ptr<ObjectStore> store_;
};

class ObjectStoreContract : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string kind = GetParam();
    if (kind == "Directory") scene_ = std::make_unique<DirectoryScene>();
    if (kind == "Http") scene_ = std::make_unique<HttpScene>();
    if (kind == "S3") {
      MotoServer* server = MotoServer::Shared();
      ASSERT_NE(server, nullptr);
      scene_ = std::make_unique<S3Scene>(*server);
    }
  }

  ObjectStore& store() { return scene_->store(); }
  bool writable() { return store().can_write(); }
  void Seed(const std::string& key, std::string_view content) {
    ASSERT_OK(scene_->writer().PutText(key, content, false, nullptr));
  }
  Result<std::string> Read(const std::string& key, std::size_t size, std::uint64_t offset,
                           const std::string& tag = "", const CancelToken* cancel = nullptr) {
    std::string bytes(size, '\0');
    std::uint64_t received = 0;
    SYNCLINE_TRY(store().ReadAt(
        key, std::as_writable_bytes(std::span(bytes)), offset, tag,
        [&](std::uint64_t more) { received += more; }, cancel));
    EXPECT_EQ(received, size);
    return bytes;
  }
  std::vector<std::string> Keys(const std::string& prefix, bool folders) {
    const auto listed = store().List(prefix, folders, nullptr);
    EXPECT_OK(listed);
    std::vector<std::string> keys;
    for (const ObjectInfo& object : listed.value_or(std::vector<ObjectInfo>())) {
      keys.push_back(object.key);
    }
    return keys;
  }

 private:
  std::unique_ptr<Scene> scene_;
};

INSTANTIATE_TEST_SUITE_P(Stores, ObjectStoreContract, testing::Values("Directory", "Http", "S3"),
                         [](const auto& kind) { return kind.param; });

TEST_P(ObjectStoreContract, ReadsAnyPart) {
  std::string content(100'000, '\0');
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * i >> 7);
  Seed("folder/object", content);
  ASSERT_OK_AND_ASSIGN(const ObjectInfo info, store().Stat("folder/object", nullptr));
  EXPECT_EQ(info.key, "folder/object");
  EXPECT_EQ(info.bytes, content.size());
  EXPECT_EQ(store().ReadText("folder/object", content.size(), nullptr).value_or(""), content);
  const bool held = rc::check("a part is that part", [&] {
    const auto offset = *rc::gen::inRange<std::size_t>(0, content.size() + 1);
    const auto size = *rc::gen::inRange<std::size_t>(0, content.size() - offset + 1);
    const auto part = Read("folder/object", size, offset, info.tag);
    RC_ASSERT(part.has_value());
    RC_ASSERT(*part == content.substr(offset, size));
  });
  EXPECT_TRUE(held);
}

TEST_P(ObjectStoreContract, WithoutAListener) {
  Seed("object", "content");
  std::array<std::byte, 7> bytes = {};
  EXPECT_OK(store().ReadAt("object", bytes, 0, "", nullptr, nullptr));
  EXPECT_EQ(base::AsText(bytes), "content");
}

TEST_P(ObjectStoreContract, EmptyObject) {
  Seed("empty", "");
  ASSERT_OK_AND_ASSIGN(const ObjectInfo info, store().Stat("empty", nullptr));
  EXPECT_EQ(info.bytes, 0);
  ASSERT_OK_AND_ASSIGN(const std::string text, store().ReadText("empty", 0, nullptr));
  EXPECT_EQ(text, "");
  EXPECT_OK(Read("empty", 0, 0));
  EXPECT_ERROR(Read("empty", 1, 0), Code::kCorrupt, "/empty");
}

TEST_P(ObjectStoreContract, WhatIsNotThere) {
  Seed("folder/object", "content");
  for (const char* key : {"missing", "folder", "folder/missing", "folder/object/below"}) {
    EXPECT_ERROR(store().Stat(key, nullptr), Code::kNotFound, key);
    EXPECT_ERROR(Read(key, 1, 0), Code::kNotFound, key);
    EXPECT_ERROR(store().ReadText(key, 10, nullptr), Code::kNotFound, key);
  }
}

TEST_P(ObjectStoreContract, BeyondTheEnd) {
  Seed("object", "0123456789");
  EXPECT_ERROR(Read("object", 11, 0), Code::kCorrupt, "expected at least 11 bytes, found 10");
  EXPECT_ERROR(Read("object", 5, 6), Code::kCorrupt, "expected at least 11 bytes, found 10");
  EXPECT_ERROR(Read("object", 1, 10), Code::kCorrupt, "/object");
  EXPECT_ERROR(Read("object", 1, 1000), Code::kCorrupt, "/object");
}

TEST_P(ObjectStoreContract, TextIsBounded) {
  Seed("object", "0123456789");
  EXPECT_OK(store().ReadText("object", 10, nullptr));
  EXPECT_ERROR(store().ReadText("object", 9, nullptr), Code::kLimitExceeded,
               "has 10 bytes, more than the limit of 9");
}

TEST_P(ObjectStoreContract, KeysOfAllCharacters) {
  const std::vector<std::string> keys = {
      "a b/c d",          "plus+plus",     "100%",         "%41",    "q?x=1&y=2", "#hash",
      "semi;colon",       "a&amp;b<c>\"'", "größe/日本語", "tilde~", ".dot/.x",   "a=b",
      "$,:@!*()[]|\\^`{}"};
  for (const std::string& key : keys) {
    Seed(key, "content of " + key);
    EXPECT_EQ(store().ReadText(key, 100, nullptr).value_or("nothing"), "content of " + key);
    EXPECT_EQ(store().Stat(key, nullptr).value_or(ObjectInfo()).bytes, 11 + key.size());
  }
  if (!store().can_list()) return;
  std::vector<std::string> sorted = keys;
  std::ranges::sort(sorted);
  EXPECT_EQ(Keys("", false), sorted);
  EXPECT_THAT(Keys("größe/", false), ElementsAre("größe/日本語"));
  EXPECT_THAT(Keys("a b/", false), ElementsAre("a b/c d"));
  EXPECT_THAT(Keys("plus+", false), ElementsAre("plus+plus"));
  EXPECT_THAT(Keys("", true), ElementsAre(".dot/", "a b/", "größe/"));
}

TEST_P(ObjectStoreContract, KeysThatAreNoPaths) {
  base::TempDir directory;
  ASSERT_OK_AND_ASSIGN(const auto file,
                       FileSystem::Posix().Open(directory / "file", base::OpenMode::kCreate));
  for (const std::string& key :
       {std::string(), std::string("/a"), std::string("a//b"), std::string("../a"),
        std::string("a/.."), std::string("./a"), std::string("a/"), std::string("a\0b", 3)}) {
    EXPECT_ERROR(store().Stat(key, nullptr), Code::kInvalidArgument, store().url());
    EXPECT_ERROR(Read(key, 1, 0), Code::kInvalidArgument, store().url());
    EXPECT_ERROR(store().ReadText(key, 1, nullptr), Code::kInvalidArgument, store().url());
    if (!writable()) continue;
    EXPECT_ERROR(store().Put(key, *file, nullptr, nullptr), Code::kInvalidArgument, store().url());
    EXPECT_ERROR(store().PutText(key, "", false, nullptr), Code::kInvalidArgument, store().url());
    EXPECT_ERROR(store().Remove(key, nullptr), Code::kInvalidArgument, store().url());
  }
  if (!store().can_list()) return;
  EXPECT_ERROR(store().List("../a", false, nullptr), Code::kInvalidArgument, store().url());
  EXPECT_ERROR(store().List("a", true, nullptr), Code::kInvalidArgument, store().url());
}

TEST_P(ObjectStoreContract, TagsChangeWithTheContent) {
  Seed("object", "old content");
  ASSERT_OK_AND_ASSIGN(const ObjectInfo old, store().Stat("object", nullptr));
  Seed("object", "new content");
  ASSERT_OK_AND_ASSIGN(const ObjectInfo now, store().Stat("object", nullptr));
  EXPECT_EQ(Read("object", 11, 0, now.tag).value_or(""), "new content");
  if (old.tag.empty()) return;
  EXPECT_NE(old.tag, now.tag);
  EXPECT_ERROR(Read("object", 11, 0, old.tag), Code::kOutOfOrder, "changed while it was read");
}

TEST_P(ObjectStoreContract, CancelledBefore) {
  Seed("object", "content");
  base::TempDir directory;
  ASSERT_OK_AND_ASSIGN(const auto file,
                       FileSystem::Posix().Open(directory / "file", base::OpenMode::kCreate));
  CancelToken cancel;
  cancel.Cancel();
  EXPECT_ERROR(store().Stat("object", &cancel), Code::kCancelled, "");
  EXPECT_ERROR(Read("object", 7, 0, "", &cancel), Code::kCancelled, "");
  EXPECT_ERROR(store().ReadText("object", 7, &cancel), Code::kCancelled, "");
  if (!writable()) return;
  EXPECT_ERROR(store().List("", false, &cancel), Code::kCancelled, "");
  EXPECT_ERROR(store().Put("new", *file, nullptr, &cancel), Code::kCancelled, "");
  EXPECT_ERROR(store().PutText("new", "", false, &cancel), Code::kCancelled, "");
  EXPECT_ERROR(store().Remove("object", &cancel), Code::kCancelled, "");
  EXPECT_THAT(Keys("", false), ElementsAre("object"));
}

TEST_P(ObjectStoreContract, ListsByPrefix) {
  if (!store().can_list()) {
    EXPECT_ERROR(store().List("", false, nullptr), Code::kIncompatible, store().url());
    return;
  }
  EXPECT_THAT(Keys("", false), ElementsAre());
  // More than a page of the server.
  std::vector<std::string> versions;
  std::vector<std::string> folders;
  for (int version = 0; version < 8; ++version) {
    folders.push_back(fmt::format("v{}/", version));
    for (const char* name : {"a", "b.json", "sub/c"}) {
      versions.push_back(fmt::format("v{}/{}", version, name));
      Seed(versions.back(), name);
    }
  }
  Seed("v", "a file");
  Seed("v.json", "a file");
  Seed("v1-more", "a file");
  EXPECT_EQ(Keys("", true), folders);
  EXPECT_THAT(Keys("v1/", true), ElementsAre("v1/sub/"));
  EXPECT_THAT(Keys("v1/", false), ElementsAre("v1/a", "v1/b.json", "v1/sub/c"));
  EXPECT_THAT(Keys("v1", false), ElementsAre("v1-more", "v1/a", "v1/b.json", "v1/sub/c"));
  EXPECT_THAT(Keys("v1/b", false), ElementsAre("v1/b.json"));
  EXPECT_THAT(Keys("nothing/", false), ElementsAre());
  EXPECT_THAT(Keys("nothing/", true), ElementsAre());
  EXPECT_THAT(Keys("v1/a/", true), ElementsAre());
  std::vector<std::string> all = versions;
  all.insert(all.end(), {"v", "v.json", "v1-more"});
  std::ranges::sort(all);
  EXPECT_EQ(Keys("", false), all);
  ASSERT_OK_AND_ASSIGN(const auto listed, store().List("v3/", false, nullptr));
  ASSERT_EQ(listed.size(), 3);
  EXPECT_EQ(listed[1].bytes, 6);
  EXPECT_EQ(listed[1].tag, store().Stat("v3/b.json", nullptr).value_or(ObjectInfo()).tag);
}

TEST_P(ObjectStoreContract, PutsFiles) {
  base::TempDir directory;
  ASSERT_OK_AND_ASSIGN(const auto file,
                       FileSystem::Posix().Open(directory / "file", base::OpenMode::kCreate));
  if (!writable()) {
    EXPECT_ERROR(store().Put("a", *file, nullptr, nullptr), Code::kIncompatible, "/a");
    return;
  }
  std::string content;
  // The last one takes three parts of S3.
  for (const std::size_t size : {0, 1, 300'000, (16 << 20) + 12'345}) {
    while (content.size() < size) content += static_cast<char>(content.size() * 7 >> 3);
    ASSERT_OK(file->WriteAt(base::AsBytes(content), 0));
    std::uint64_t sent = 0;
    ASSERT_OK(
        store().Put("folder/file", *file, [&](std::uint64_t more) { sent += more; }, nullptr));
    EXPECT_EQ(sent, size);
    EXPECT_TRUE(store().ReadText("folder/file", size, nullptr).value_or("nothing") == content);
    EXPECT_THAT(Keys("", false), ElementsAre("folder/file"));
  }
  ASSERT_OK(store().Put("folder/file", *file, nullptr, nullptr));
}

TEST_P(ObjectStoreContract, PutsTexts) {
  if (!writable()) {
    EXPECT_ERROR(store().PutText("a", "", false, nullptr), Code::kIncompatible, "/a");
    return;
  }
  ASSERT_OK(store().PutText("a/text", "one", true, nullptr));
  EXPECT_ERROR(store().PutText("a/text", "two", true, nullptr), Code::kAlreadyExists, "a/text");
  EXPECT_ERROR(store().PutText("a/text", "one", true, nullptr), Code::kAlreadyExists, "a/text");
  EXPECT_ERROR(store().PutText("a/text", "", true, nullptr), Code::kAlreadyExists, "a/text");
  EXPECT_EQ(store().ReadText("a/text", 10, nullptr).value_or(""), "one");
  ASSERT_OK(store().PutText("a/text", "three", false, nullptr));
  EXPECT_EQ(store().ReadText("a/text", 10, nullptr).value_or(""), "three");
}

TEST_P(ObjectStoreContract, OneOfManyWritersWins) {
  if (!writable()) return;
  std::atomic<int> winners = 0;
  std::atomic<int> losers = 0;
  std::string winner;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      const std::string text = fmt::format("writer {}", i);
      const auto put = store().PutText("folder/commit", text, true, nullptr);
      if (put) {
        ++winners;
        winner = text;
      } else if (put.error().code == Code::kAlreadyExists) {
        ++losers;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(winners, 1);
  EXPECT_EQ(losers, 7);
  EXPECT_EQ(store().ReadText("folder/commit", 100, nullptr).value_or(""), winner);
  EXPECT_THAT(Keys("", false), ElementsAre("folder/commit"));
}

TEST_P(ObjectStoreContract, Removes) {
  if (!writable()) {
    EXPECT_ERROR(store().Remove("a", nullptr), Code::kIncompatible, "/a");
    return;
  }
  Seed("a/b/c", "content");
  Seed("a/d", "content");
  EXPECT_OK(store().Remove("missing", nullptr));
  EXPECT_OK(store().Remove("a/missing/x", nullptr));
  EXPECT_OK(store().Remove("a/b/c", nullptr));
  EXPECT_OK(store().Remove("a/b/c", nullptr));
  EXPECT_ERROR(store().Stat("a/b/c", nullptr), Code::kNotFound, "a/b/c");
  EXPECT_THAT(Keys("", false), ElementsAre("a/d"));
  EXPECT_THAT(Keys("a/", true), ElementsAre());  // no folder without an object
  EXPECT_OK(store().Remove("a/d", nullptr));
  EXPECT_THAT(Keys("", true), ElementsAre());
  EXPECT_OK(store().PutText("a/b/c", "again", true, nullptr));
}

}  // namespace
}  // namespace syncline::objects
