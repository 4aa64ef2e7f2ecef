// Publishing to a bucket: a real S3 server, and a store whose calls fail or whose answers are lost.
#include "store/object_sink.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>

#include "base/result_matchers.h"
#include "base/temp_dir.h"
#include "objects/moto_server.h"
#include "store/publisher.h"

namespace syncline::store {
namespace {

using base::CancelToken;
using base::Code;
using base::FileSystem;
using base::Status;
using objects::ObjectStore;
using tensor::TensorView;

FileSystem& files = FileSystem::Posix();

// A directory's objects behind calls that a rule can make fail, before or after they had their
// effect.
class FaultyStore final : public ObjectStore {
 public:
  enum class Fault { kNone, kBefore, kAfter };
  using Rule = std::function<Fault(std::string_view operation, const std::string& key)>;

  FaultyStore(const std::string& directory, Rule* rule)
      : inner_(objects::Open(files, directory, {}).value()), rule_(rule) {}

  const std::string& url() const override { return url_; }
  const std::string& local_path() const override { return local_path_; }
  bool can_list() const override { return true; }
  bool can_write() const override { return true; }
  base::Result<std::vector<objects::ObjectInfo>> List(const std::string& prefix, bool folders,
                                                      const CancelToken* cancel) override {
    return inner_->List(prefix, folders, cancel);
  }
  base::Result<objects::ObjectInfo> Stat(const std::string& key,
                                         const CancelToken* cancel) override {
    return Do<base::Result<objects::ObjectInfo>>("stat", key,
                                                 [&] { return inner_->Stat(key, cancel); });
  }
  Status ReadAt(const std::string& key, base::MutableByteSpan into, std::uint64_t offset,
                const std::string& tag, const std::function<void(std::uint64_t)>& received,
                const CancelToken* cancel) override {
    return inner_->ReadAt(key, into, offset, tag, received, cancel);
  }
  base::Result<std::string> ReadText(const std::string& key, std::uint64_t limit,
                                     const CancelToken* cancel) override {
    return Do<base::Result<std::string>>("read", key,
                                         [&] { return inner_->ReadText(key, limit, cancel); });
  }
  Status Put(const std::string& key, base::File& from,
             const std::function<void(std::uint64_t)>& sent, const CancelToken* cancel) override {
    return Do<Status>("put", key, [&] { return inner_->Put(key, from, sent, cancel); });
  }
  Status PutText(const std::string& key, std::string_view text, bool if_absent,
                 const CancelToken* cancel) override {
    return Do<Status>("put", key, [&] { return inner_->PutText(key, text, if_absent, cancel); });
  }
  Status Remove(const std::string& key, const CancelToken* cancel) override {
    return Do<Status>("remove", key, [&] { return inner_->Remove(key, cancel); });
  }

 private:
  template <typename R>
  R Do(std::string_view operation, const std::string& key, const std::function<R()>& call) {
    const Fault fault = *rule_ ? (*rule_)(operation, key) : Fault::kNone;
    if (fault == Fault::kBefore) return base::Fail(Code::kUnavailable, "the line is cut");
    R result = call();
    if (fault == Fault::kAfter) return base::Fail(Code::kUnavailable, "the line is cut");
    return result;
  }

  std::unique_ptr<ObjectStore> inner_;
  Rule* rule_;
  std::string url_ = "s3://bucket/prefix";
  std::string local_path_;
};

class ObjectSinkTest : public testing::Test {
 protected:
  base::Result<Publisher> Open() {
    auto baseline = MakeMemoryBaseline();
    if (!held_.empty()) {
      base::ThreadPool pool(1);
      SYNCLINE_TRY(baseline->Advance(0, Views(held_), {}, pool));
    }
    SYNCLINE_ASSIGN(auto sink,
                    OpenObjectSink(files, std::make_unique<FaultyStore>(dir_ / "store", &rule_),
                                   dir_ / "work"));
    return Publisher::Open(files, std::move(sink), std::move(baseline), false, {.threads = 2});
  }
  std::vector<TensorView> Views(const std::vector<std::byte>& bytes) const {
    return {{"w", tensor::Dtype::kU8, {bytes.size()}, bytes}};
  }
  base::Result<PublishReport> Publish(Publisher& publisher) {
    weights_[step_++ % weights_.size()] ^= std::byte{1};
    return publisher.Publish({}, Views(weights_), false, progress_);
  }
  // The newest version that has a manifest, whose files must all be there.
  std::uint64_t Newest() {
    base::ThreadPool pool(1);
    std::uint64_t newest = 0;
    const auto versions = ListVersions(files, dir_ / "store");
    EXPECT_OK(versions);
    for (const std::uint64_t version : versions.value_or(std::vector<std::uint64_t>())) {
      const std::string directory = dir_ / ("store/" + VersionName(version));
      const auto manifest = ReadManifest(files, directory);
      EXPECT_OK(manifest);
      if (!manifest || !*manifest) continue;
      EXPECT_OK(CheckFiles(files, directory, (**manifest).manifest, Part::kAll, true, pool, {}));
      newest = version;
    }
    return newest;
  }

  const base::TempDir dir_;
  FaultyStore::Rule rule_;
  std::vector<std::byte> weights_ = std::vector<std::byte>(1000);
  std::vector<std::byte> held_;
  std::size_t step_ = 0;
  base::Progress progress_;
};

// Each call fails once, before or after its effect. The version stands or it does not, the publisher
// finds out which, and the next one covers whatever is missing.
TEST_F(ObjectSinkTest, WhateverFailsTheChainGoesOn) {
  ASSERT_OK(files.MakeDirectories(dir_ / "store"));
  ASSERT_OK_AND_ASSIGN(Publisher publisher, Open());
  ASSERT_OK(Publish(publisher));
  std::uint64_t last = 0;
  for (const auto fault : {FaultyStore::Fault::kBefore, FaultyStore::Fault::kAfter}) {
    for (std::size_t n = 0; true; ++n) {
      bool failed = false;
      rule_ = [&, seen = std::make_shared<std::atomic<std::size_t>>(0)](std::string_view,
                                                                        const std::string&) {
        if (seen->fetch_add(1) != n) return FaultyStore::Fault::kNone;
        failed = true;
        return fault;
      };
      const auto report = Publish(publisher);
      rule_ = nullptr;
      const std::uint64_t newest = Newest();
      ASSERT_TRUE(newest == last || newest == last + 1);
      ASSERT_TRUE(!report || newest == last + 1);
      last = newest;
      if (!failed) break;
      ASSERT_OK(Publish(publisher));
      EXPECT_EQ(publisher.last_version(), ++last);
      EXPECT_EQ(Newest(), last);
      ASSERT_OK_AND_ASSIGN(const auto latest, ReadLatest(files, dir_ / "store"));
      EXPECT_EQ(latest->version, last);
      ASSERT_OK_AND_ASSIGN(const auto manifest,
                           ReadManifest(files, dir_ / ("store/" + VersionName(last))));
      ASSERT_OK_AND_ASSIGN(const auto before,
                           ReadManifest(files, dir_ / ("store/" + VersionName(last - 1))));
      EXPECT_EQ(manifest->manifest.parent, before->identity);
    }
  }
  EXPECT_GT(last, 10U);
}

// The answer to the commit is lost and the store cannot be asked: the next call finds the version.
TEST_F(ObjectSinkTest, ACommitOfWhichNothingIsKnownIsFoundByTheNextCall) {
  ASSERT_OK(files.MakeDirectories(dir_ / "store"));
  ASSERT_OK_AND_ASSIGN(Publisher publisher, Open());
  ASSERT_OK(Publish(publisher));
  bool cut = false;
  rule_ = [&](std::string_view operation, const std::string& key) {
    if (operation == "put" && key.ends_with(kManifestName)) {
      cut = true;
      return FaultyStore::Fault::kAfter;
    }
    return cut ? FaultyStore::Fault::kBefore : FaultyStore::Fault::kNone;
  };
  EXPECT_ERROR(Publish(publisher), Code::kUnavailable, "the line is cut");
  EXPECT_ERROR(Publish(publisher), Code::kUnavailable, "the line is cut");
  rule_ = nullptr;
  ASSERT_OK_AND_ASSIGN(const PublishReport report, Publish(publisher));
  EXPECT_EQ(report.version, 2U);
  EXPECT_EQ(report.base_version, std::nullopt);  // the baseline is still that of version 0
  ASSERT_OK_AND_ASSIGN(const PublishReport next, Publish(publisher));
  EXPECT_EQ(next.base_version, 2U);
}

// A process that dies at each call in turn leaves objects that no manifest names, or a version.
TEST_F(ObjectSinkTest, AfterACrashTheNextPublisherGoesOn) {
  ASSERT_OK(files.MakeDirectories(dir_ / "store"));
  for (std::size_t n = 0; true; ++n) {
    bool died = false;
    {
      ASSERT_OK_AND_ASSIGN(Publisher publisher, Open());
      rule_ = [&, seen = std::make_shared<std::atomic<std::size_t>>(0)](std::string_view,
                                                                        const std::string&) {
        if (seen->fetch_add(1) < n) return FaultyStore::Fault::kNone;
        died = true;
        return FaultyStore::Fault::kBefore;
      };
      (void)Publish(publisher);
      rule_ = nullptr;
    }
    held_ = weights_;
    ASSERT_OK_AND_ASSIGN(Publisher next, Open());
    ASSERT_OK(Publish(next));
    held_ = weights_;
    EXPECT_EQ(next.last_version(), Newest());
    ASSERT_OK_AND_ASSIGN(const auto latest, ReadLatest(files, dir_ / "store"));
    EXPECT_EQ(latest->version, Newest());
    if (!died) break;
  }
}

TEST_F(ObjectSinkTest, TheSecondPublisherFails) {
  ASSERT_OK(files.MakeDirectories(dir_ / "store"));
  ASSERT_OK_AND_ASSIGN(Publisher first, Open());
  EXPECT_ERROR(Open(), Code::kLocked, "another publisher is at work");
  ASSERT_OK_AND_ASSIGN(
      auto sink,
      OpenObjectSink(files, std::make_unique<FaultyStore>(dir_ / "store", &rule_), dir_ / "other"));
  ASSERT_OK_AND_ASSIGN(
      Publisher second,
      Publisher::Open(files, std::move(sink), MakeMemoryBaseline(), false, {.threads = 2}));
  ASSERT_OK(Publish(first));
  EXPECT_ERROR(Publish(second), Code::kAlreadyExists, "another publisher made version 0");
  EXPECT_EQ(Newest(), 0U);
  ASSERT_OK(Publish(first));
  // Between the look and the put.
  bool raced = false;
  rule_ = [&](std::string_view operation, const std::string& key) {
    if (operation == "put" && key.ends_with(kManifestName) && !raced) {
      raced = true;
      rule_ = nullptr;
      EXPECT_OK(base::WriteTextAtomically(files, dir_ / ("store/" + key), "other", false));
    }
    return FaultyStore::Fault::kNone;
  };
  EXPECT_ERROR(Publish(first), Code::kAlreadyExists, "another publisher made version 2");
}

TEST_F(ObjectSinkTest, TheFolderForUploadsIsOursAndGoes) {
  ASSERT_OK(files.MakeDirectories(dir_ / "tmp"));
  ASSERT_OK(files.MakeDirectories(dir_ / "store"));
  ASSERT_EQ(setenv("TMPDIR", (dir_ / "tmp").c_str(), 1), 0);
  const auto open = [&] {
    return OpenObjectSink(files, std::make_unique<FaultyStore>(dir_ / "store", &rule_), "");
  };
  {
    ASSERT_OK_AND_ASSIGN(const auto sink, open());
    ASSERT_OK_AND_ASSIGN(const std::string staged, sink->Stage(VersionName(3)));
    EXPECT_TRUE(staged.starts_with(dir_ / "tmp/syncline-"));
  }
  EXPECT_EQ(files.List(dir_ / "tmp").value().size(), 0U);
  std::string place;
  {
    ASSERT_OK_AND_ASSIGN(const auto sink, open());
    place = dir_ / ("tmp/" + files.List(dir_ / "tmp").value().at(0));
  }
  ASSERT_EQ(symlink(dir_.path().c_str(), place.c_str()), 0);
  EXPECT_ERROR(open(), Code::kPermissionDenied, "of this user alone");
  unsetenv("TMPDIR");
}

TEST(ObjectSinkS3Test, PublishesToARealServer) {
  objects::MotoServer* server = objects::MotoServer::Shared();
  ASSERT_NE(server, nullptr);
  const std::string url = "s3://" + server->MakeBucket() + "/runs/a";
  const base::TempDir dir;
  ASSERT_OK(WriteKeyPair(files, dir / "key"));
  ASSERT_OK(base::WriteTextAtomically(files, dir / "config.json", "{}", false));
  const PublisherOptions options{.companions_from = dir.path(),
                                 .signing_key = dir / "key",
                                 .full_copy_ratio = 0.001,
                                 .threads = 2,
                                 .work_directory = dir / "work",
                                 .objects = server->settings()};
  std::vector<std::byte> weights(300'000);
  const auto views = [&] {
    return std::vector<TensorView>{{"w", tensor::Dtype::kU8, {weights.size()}, weights}};
  };
  base::Progress progress;
  std::string run;
  std::string parent;
  ASSERT_OK_AND_ASSIGN(const auto store, objects::Open(files, url, server->settings()));
  {
    ASSERT_OK_AND_ASSIGN(Publisher publisher,
                         Publisher::Open(files, url, MakeMemoryBaseline(), false, options));
    for (std::uint64_t version = 0; version < 3; ++version) {
      ASSERT_OK_AND_ASSIGN(const PublishReport report,
                           publisher.Publish({}, views(), false, progress));
      EXPECT_EQ(report.version, version);
      weights[version] = std::byte{7};
      // What the manifest names is there.
      ASSERT_OK_AND_ASSIGN(
          const std::string text,
          store->ReadText(VersionName(version) + "/" + std::string(kManifestName), 1 << 20, {}));
      ASSERT_OK_AND_ASSIGN(const Manifest manifest, ParseManifest(text));
      EXPECT_EQ(manifest.parent, parent);
      EXPECT_EQ(Identity(text), report.identity);
      run = manifest.run;
      parent = report.identity;
      EXPECT_EQ(HasFullCopy(manifest), version > 0);
      for (const ManifestFile& file : manifest.files) {
        ASSERT_OK_AND_ASSIGN(const auto info,
                             store->Stat(VersionName(version) + "/" + file.name, {}));
        EXPECT_EQ(info.bytes, file.bytes);
      }
      EXPECT_OK(store->Stat(VersionName(version) + "/" + std::string(kSignatureName), {}));
    }
    ASSERT_OK_AND_ASSIGN(const std::string text,
                         store->ReadText(std::string(kLatestName), 4096, {}));
    EXPECT_EQ(ParseLatest(text).value(), (Latest{run, 2, parent}));
    CancelToken cancel;
    cancel.Cancel();
    EXPECT_ERROR(publisher.Publish({}, views(), false, progress, &cancel), Code::kCancelled, "");
  }
  // Half of a version that nobody finished, and a pointer that lags behind.
  ASSERT_OK(store->PutText(VersionName(3) + "/model-00000-of-00001.safetensors", "x", false, {}));
  ASSERT_OK(store->Remove(std::string(kLatestName), {}));
  ASSERT_OK_AND_ASSIGN(Publisher next,
                       Publisher::Open(files, url, MakeMemoryBaseline(), false, options));
  EXPECT_EQ(next.last_version(), 2U);
  EXPECT_OK(store->Stat(std::string(kLatestName), {}));
  ASSERT_OK_AND_ASSIGN(const PublishReport report, next.Publish({}, views(), false, progress));
  EXPECT_EQ(report.version, 3U);
  EXPECT_EQ(report.base_version, std::nullopt);
}

}  // namespace
}  // namespace syncline::store
