#include "store/publisher.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <set>

#include "base/faulty_file_system.h"
#include "base/result_matchers.h"
#include "base/temp_dir.h"
#include "checkpoint/checkpoint.h"
#include "delta/patch.h"
#include "store/delta_reader.h"
#include "store/history.h"
#include "store/latest.h"
#include "store/manifest.h"

namespace syncline::store {
namespace {

using base::Code;
using base::FileSystem;
using tensor::Dtype;
using tensor::TensorView;

FileSystem& files = FileSystem::Posix();

// Tensors of several sizes and dtypes, one of them larger than what is encoded in one task.
class Model {
 public:
  explicit Model(std::uint64_t rows = 4500) {
    Add("big", Dtype::kBF16, {rows, 1000});
    Add("empty", Dtype::kBF16, {2, 0});
    Add("f32", Dtype::kF32, {33, 3});
    Add("mask", Dtype::kBool, {7});
    Add("scalar", Dtype::kF64, {});
  }
  void Step(double density) {
    std::bernoulli_distribution change(density);
    for (std::vector<std::byte>& bytes : bytes_) {
      for (std::byte& byte : bytes) {
        if (change(random_)) byte = static_cast<std::byte>(random_());
      }
    }
  }
  std::vector<TensorView> views() const {
    std::vector<TensorView> views = views_;
    for (std::size_t i = 0; i < views.size(); ++i) views[i].bytes = bytes_[i];
    return views;
  }

 private:
  void Add(std::string name, Dtype dtype, std::vector<std::uint64_t> shape) {
    const std::uint64_t bytes = ByteCount(dtype, shape).value();
    views_.push_back({std::move(name), dtype, std::move(shape), {}});
    std::vector<std::byte>& memory = bytes_.emplace_back(bytes);
    for (std::byte& byte : memory) byte = static_cast<std::byte>(random_());
  }
  std::mt19937 random_{1};
  std::vector<TensorView> views_;
  std::vector<std::vector<std::byte>> bytes_;
};

base::Result<std::vector<VersionSummary>> History(const std::string& store) {
  SYNCLINE_ASSIGN(const auto source, Source::Open(FileSystem::Posix(), store, {}));
  return ReadHistory(*source);
}

class PublisherTest : public testing::TestWithParam<delta::Encoding> {
 protected:
  base::Result<Publisher> Open(FileSystem& fs) {
    return Publisher::Open(fs, dir_.path(), MakeMemoryBaseline(), false, options_);
  }
  base::Result<PublishReport> Publish(Publisher& publisher,
                                      std::optional<std::uint64_t> version = std::nullopt,
                                      bool full = false) {
    return publisher.Publish(version, model_.views(), full, progress_);
  }
  // What version `number` makes of `old_views`, checked by its hashes.
  void CheckDelta(std::uint64_t number, const std::vector<std::vector<std::byte>>& old_bytes) {
    ASSERT_OK_AND_ASSIGN(const Version version, ReadVersion(files, dir_.path(), number));
    ASSERT_TRUE(version.delta);
    const std::vector<TensorView> views = model_.views();
    std::vector<std::vector<std::byte>> bytes = old_bytes;
    const auto index = [&](std::size_t tensor) {
      return static_cast<std::size_t>(
          std::ranges::find(views, version.tensors[tensor].name, &TensorView::name) -
          views.begin());
    };
    ASSERT_OK_AND_ASSIGN(const auto reader, DeltaReader::Open(files, version, {}));
    for (std::size_t run = 0; run < reader->runs().size(); ++run) {
      std::vector<DeltaReader::Target> targets;
      for (const std::size_t i : reader->runs()[run]) {
        targets.push_back({bytes[index(i)].size(), views[index(i)].dtype});
      }
      ASSERT_OK(reader->CheckRun(run));
      ASSERT_OK_AND_ASSIGN(const auto patch, reader->OpenRun(run, targets));
      delta::BlockPatch block = patch->MakeBlock();
      for (const std::size_t i : reader->runs()[run]) {
        std::vector<std::byte>& image = bytes[index(i)];
        for (std::size_t at = 0; at < image.size(); at += delta::kBlockBytes) {
          const auto part =
              std::span(image).subspan(at, std::min(delta::kBlockBytes, image.size() - at));
          ASSERT_OK(patch->Next(part, block));
          block.Put(part);
        }
        SCOPED_TRACE(version.tensors[i].name);
        ASSERT_OK(patch->Finish());
        EXPECT_EQ(HashHex(version.delta->checksum, image), version.tensors[i].hash);
        if (GetParam() == delta::Encoding::kCompact) {
          EXPECT_EQ(version.tensors[i].digest,
                    tensor::DigestOf(image, DigestUnitBytes(views[index(i)].dtype)));
        }
      }
    }
    std::size_t changed = 0;
    for (std::size_t i = 0; i < views.size(); ++i) {
      EXPECT_TRUE(std::ranges::equal(bytes[i], views[i].bytes)) << views[i].name;
      const bool differs = !std::ranges::equal(views[i].bytes, old_bytes[i]);
      EXPECT_EQ(std::ranges::find(version.tensors, views[i].name, &DeltaTensor::name) !=
                    version.tensors.end(),
                differs)
          << views[i].name;
      changed += differs ? 1 : 0;
    }
    EXPECT_EQ(version.tensors.size(), changed);
    CheckDigests(number, GetParam() == delta::Encoding::kCompact ? 0 : changed);
  }
  // Of `listed` tensors, and of those of a full copy if there is one.
  void CheckDigests(std::uint64_t number, std::size_t listed) {
    ASSERT_OK_AND_ASSIGN(const auto read, ReadManifest(files, dir_ / VersionName(number)));
    const Manifest& manifest = read->manifest;
    EXPECT_EQ(manifest.tensors.size(), listed);
    EXPECT_EQ(manifest.copy_tensors.size(), HasFullCopy(manifest) ? model_.views().size() : 0);
    for (const auto* tensors : {&manifest.tensors, &manifest.copy_tensors}) {
      for (const ManifestTensor& tensor : *tensors) {
        const std::vector<TensorView> views = model_.views();
        const auto view = std::ranges::find(views, tensor.name, &TensorView::name);
        ASSERT_NE(view, views.end()) << tensor.name;
        EXPECT_EQ(tensor.digest, tensor::DigestOf(view->bytes, DigestUnitBytes(view->dtype)))
            << tensor.name;
      }
    }
  }
  std::vector<std::vector<std::byte>> Snapshot() {
    std::vector<std::vector<std::byte>> copies;
    for (const TensorView& view : model_.views())
      copies.emplace_back(view.bytes.begin(), view.bytes.end());
    return copies;
  }

  void CheckPointer(std::uint64_t version) {
    ASSERT_OK_AND_ASSIGN(const auto manifest, ReadManifest(files, dir_ / VersionName(version)));
    ASSERT_OK_AND_ASSIGN(const auto latest, ReadLatest(files, dir_.path()));
    EXPECT_EQ(latest, (Latest{manifest->manifest.run, version, manifest->identity}));
  }

  const base::TempDir dir_;
  PublisherOptions options_{.encoding = GetParam(), .threads = 2};
  Model model_;
  base::Progress progress_;
};
INSTANTIATE_TEST_SUITE_P(Encodings, PublisherTest,
                         testing::Values(delta::Encoding::kXor, delta::Encoding::kOverwrite,
                                         delta::Encoding::kCompact),
                         [](const auto& tested) { return std::string(Name(tested.param)); });

// Tensors in an order and in batches by chance, each in memory that is gone afterwards.
class ShuffledArrivals final : public tensor::Arrivals {
 public:
  ShuffledArrivals(std::vector<TensorView> tensors, std::mt19937& random)
      : tensors_(std::move(tensors)), random_(random), order_(tensors_.size()) {
    std::iota(order_.begin(), order_.end(), 0);
    std::ranges::shuffle(order_, random_);
  }
  base::Result<Batch> Next() override {
    memory_.clear();
    Batch batch;
    for (std::size_t i = 1 + random_() % 3; i > 0 && !order_.empty(); --i) {
      const std::size_t tensor = order_.back();
      order_.pop_back();
      memory_.emplace_back(tensors_[tensor].bytes.begin(), tensors_[tensor].bytes.end());
      batch.emplace_back(tensor, memory_.back());
    }
    return batch;
  }
  std::vector<std::size_t>& order() { return order_; }

 private:
  std::vector<TensorView> tensors_;
  std::mt19937& random_;
  std::vector<std::size_t> order_;
  std::deque<std::vector<std::byte>> memory_;
};

TEST_P(PublisherTest, TensorsMayComeOneAfterTheOther) {
  options_.full_copy_ratio = 0;
  ASSERT_OK_AND_ASSIGN(Publisher publisher, Open(files));
  EXPECT_FALSE(publisher.can_take_arriving());
  ASSERT_OK(Publish(publisher));
  EXPECT_EQ(publisher.can_take_arriving(), GetParam() == delta::Encoding::kCompact);
  std::mt19937 random(4);
  if (!publisher.can_take_arriving()) {
    ShuffledArrivals arrivals(model_.views(), random);
    EXPECT_ERROR(publisher.PublishArriving(std::nullopt, arrivals, progress_),
                 Code::kInvalidArgument, "cannot be made of tensors that come one by one");
    return;
  }
  for (const double density : {0.002, 0.0, 0.4, 0.001, 0.001}) {
    SCOPED_TRACE(density);
    const auto old_bytes = Snapshot();
    model_.Step(density);
    ShuffledArrivals arrivals(model_.views(), random);
    ASSERT_OK_AND_ASSIGN(const PublishReport report,
                         publisher.PublishArriving(std::nullopt, arrivals, progress_));
    CheckDelta(report.version, old_bytes);
    CheckPointer(report.version);
  }
  // What does not fit ends in an error, and the next call covers it.
  const auto old_bytes = Snapshot();
  model_.Step(0.01);
  for (const bool twice : {true, false}) {
    ShuffledArrivals arrivals(model_.views(), random);
    std::erase(arrivals.order(), 2);
    if (twice) arrivals.order().push_back(0);
    EXPECT_ERROR(publisher.PublishArriving(std::nullopt, arrivals, progress_),
                 Code::kInvalidArgument,
                 twice ? "tensor big came twice" : "tensor f32 did not come");
  }
  ASSERT_OK_AND_ASSIGN(const PublishReport report, Publish(publisher));
  CheckDelta(report.version, old_bytes);
}

TEST_P(PublisherTest, FullThenDeltasEachAgainstTheOneBefore) {
  ASSERT_OK_AND_ASSIGN(Publisher publisher, Open(files));
  EXPECT_EQ(publisher.last_version(), std::nullopt);
  ASSERT_OK_AND_ASSIGN(const PublishReport first, Publish(publisher));
  EXPECT_EQ(first.version, 0U);
  EXPECT_EQ(first.base_version, std::nullopt);
  EXPECT_EQ(first.density(), 1.0);
  ASSERT_OK_AND_ASSIGN(const auto full,
                       checkpoint::MappedCheckpoint::Open(files, dir_ / VersionName(0)));
  for (const TensorView& view : model_.views()) {
    EXPECT_TRUE(std::ranges::equal(full.Bytes(*full.checkpoint().Find(view.name)), view.bytes));
  }
  ASSERT_OK_AND_ASSIGN(const auto zero, ReadManifest(files, dir_ / VersionName(0)));
  ReadManifestResult parent = *zero;
  EXPECT_EQ(parent.manifest.parent, "");
  ASSERT_EQ(parent.manifest.tensors.size(), 5U);
  EXPECT_EQ(parent.manifest.tensors[3].hash,
            HashHex(tensor::HashKind::kXxh3, model_.views()[3].bytes));
  CheckDigests(0, 5);
  for (const double density : {0.001, 0.0, 0.5, 0.00001}) {
    SCOPED_TRACE(density);
    const auto old_bytes = Snapshot();
    model_.Step(density);
    ASSERT_OK_AND_ASSIGN(const PublishReport report, Publish(publisher));
    EXPECT_EQ(report.base_version, report.version - 1);
    CheckDelta(report.version, old_bytes);
    ASSERT_OK_AND_ASSIGN(const auto manifest,
                         ReadManifest(files, dir_ / VersionName(report.version)));
    EXPECT_EQ(manifest->manifest.elements_changed, report.elements_changed);
    base::ThreadPool pool(2);
    EXPECT_OK(CheckFiles(files, dir_ / VersionName(report.version), manifest->manifest, Part::kAll,
                         true, pool, nullptr));
    EXPECT_EQ(manifest->manifest.run, parent.manifest.run);
    EXPECT_EQ(manifest->manifest.parent, parent.identity);
    parent = *manifest;
  }
  EXPECT_EQ(ListVersions(files, dir_.path()).value().size(), 5U);
}

// Every call is made to fail once. Either nothing of the version is seen then and the next publish
// covers it, or the message says that the version stands and the chain goes on from it.
TEST_P(PublisherTest, BR07_WhateverFailsTheChainGoesOn) {
  model_ = Model(50);
  base::FaultyFileSystem faulty(files);
  ASSERT_OK_AND_ASSIGN(Publisher publisher, Open(faulty));
  ASSERT_OK(Publish(publisher));
  std::uint64_t last = 0;
  std::size_t stood = 0;
  for (const char* operation : {"mkdir", "open", "allocate", "write", "sync", "rename", "list",
                                "stat", "remove", "read", "sync_directory"}) {
    for (std::size_t n = 0; true; ++n) {
      auto old_bytes = Snapshot();
      model_.Step(0.0001);
      bool failed = false;
      faulty.SetRule([&, seen = std::size_t{0}](std::string_view asked,
                                                const std::string&) mutable -> base::Status {
        if (asked != operation || seen++ != n) return {};
        failed = true;
        return base::Fail(Code::kNoSpace, "full");
      });
      const auto report = Publish(publisher);
      faulty.SetRule(nullptr);
      if (report) {
        CheckDelta(++last, old_bytes);
        if (!failed) break;
        continue;  // of no consequence (a look at the pointer)
      }
      EXPECT_ERROR(report, Code::kNoSpace, "full");
      const bool stands = report.error().message.starts_with("version ");
      if (stands) {
        ++stood;
        CheckDelta(++last, old_bytes);
        old_bytes = Snapshot();
      }
      EXPECT_EQ(ListVersions(files, dir_.path()).value().back(), last) << operation << " " << n;
      EXPECT_EQ(publisher.last_version(), last);
      ASSERT_OK(Publish(publisher));
      CheckDelta(++last, old_bytes);
      CheckPointer(last);
    }
  }
  EXPECT_GT(stood, 2U);  // the sync of the store, and the pointer's steps
}

// The process dies at each call in turn: from then on nothing reaches the disk.
TEST_P(PublisherTest, AfterACrashAtAnyPointTheNextPublisherGoesOn) {
  model_ = Model(50);
  std::string run;
  for (std::size_t n = 0; true; ++n) {
    base::FaultyFileSystem faulty(files);
    std::uint64_t last = 0;
    std::vector<std::vector<std::byte>> old_bytes;
    bool died = false;
    {
      ASSERT_OK_AND_ASSIGN(Publisher publisher, Open(faulty));
      ASSERT_OK(Publish(publisher, std::nullopt, true));
      last = *publisher.last_version();
      old_bytes = Snapshot();
      model_.Step(0.0001);
      faulty.SetRule([calls = std::make_shared<std::atomic<std::size_t>>(0), n, &died](
                         std::string_view, const std::string&) -> base::Status {
        if (calls->fetch_add(1) < n) return {};
        died = true;
        return base::Fail(Code::kIo, "dead");
      });
      (void)Publish(publisher);
    }
    const std::uint64_t stands = ListVersions(files, dir_.path()).value().back();
    ASSERT_TRUE(stands == last || stands == last + 1);
    if (stands != last) CheckDelta(stands, old_bytes);
    ASSERT_OK_AND_ASSIGN(Publisher next, Open(files));
    EXPECT_EQ(next.last_version(), stands);
    CheckPointer(stands);
    ASSERT_OK(Publish(next));
    ASSERT_OK_AND_ASSIGN(const auto manifest, ReadManifest(files, dir_ / VersionName(stands + 1)));
    ASSERT_OK_AND_ASSIGN(const auto parent, ReadManifest(files, dir_ / VersionName(stands)));
    EXPECT_EQ(manifest->manifest.parent, parent->identity);
    EXPECT_EQ(manifest->manifest.run, parent->manifest.run);
    if (!died) break;
  }
}

// What a loss of power could take is on the device before the version is seen, and the version
// before the call returns.
TEST_P(PublisherTest, EverythingIsSyncedBeforeTheRename) {
  base::FaultyFileSystem faulty(files);
  options_.full_copy_ratio = 1e-9;
  ASSERT_OK_AND_ASSIGN(Publisher publisher, Open(faulty));
  ASSERT_OK(Publish(publisher));
  model_.Step(0.001);
  std::vector<std::string> changes;
  std::mutex mutex;
  faulty.SetRule([&](std::string_view operation, const std::string& path) -> base::Status {
    const std::scoped_lock lock(mutex);
    changes.push_back(fmt::format("{} {}", operation, path));
    return {};
  });
  ASSERT_OK(Publish(publisher));
  faulty.SetRule(nullptr);
  const std::string staged = dir_ / (".syncline/staging/" + VersionName(1));
  const auto commit = std::ranges::find(changes, "rename " + (dir_ / VersionName(1)));
  ASSERT_NE(commit, changes.end());
  std::map<std::string, std::string> dirty;  // path → last change that was not synced
  std::set<std::string> folders;
  for (auto at = changes.begin(); at != commit; ++at) {
    const std::string operation = at->substr(0, at->find(' '));
    const std::string path = at->substr(operation.size() + 1);
    if (!path.starts_with(staged)) continue;
    const std::string folder = path.substr(0, path.rfind('/'));
    if (operation == "write" || operation == "allocate" || operation == "truncate") {
      dirty[path] = *at;
    }
    if (operation == "sync") dirty.erase(path);
    if (operation == "rename" || operation == "mkdir") folders.insert(folder);
    if (operation == "sync_directory") {
      folders.erase(path.ends_with('/') ? path.substr(0, path.size() - 1) : path);
    }
  }
  folders.erase(staged.substr(0, staged.rfind('/')));  // staging itself is of no worth
  EXPECT_THAT(dirty, testing::IsEmpty());
  EXPECT_THAT(folders, testing::IsEmpty());
  EXPECT_NE(std::find(commit, changes.end(), "sync_directory " + dir_.path()), changes.end());
}

// The rename is the commit: what fails after it is reported, but the version stands and the chain
// goes on from it.
TEST_P(PublisherTest, AFailureAfterTheCommitIsReportedAndTheVersionStands) {
  base::FaultyFileSystem faulty(files);
  ASSERT_OK_AND_ASSIGN(Publisher publisher, Open(faulty));
  ASSERT_OK(Publish(publisher));
  const auto first = Snapshot();
  model_.Step(0.001);
  faulty.SetRule([&](std::string_view operation, const std::string& path) -> base::Status {
    if (operation != "sync_directory" || path != dir_.path()) return {};
    return base::Fail(Code::kIo, "the disk is gone");
  });
  EXPECT_ERROR(Publish(publisher), Code::kIo, "version 1 stands");
  EXPECT_EQ(publisher.last_version(), 1U);
  CheckDelta(1, first);
  faulty.SetRule(nullptr);
  const auto second = Snapshot();
  model_.Step(0.001);
  ASSERT_OK(Publish(publisher));
  CheckDelta(2, second);
}

class FailingBaseline final : public Baseline {
 public:
  std::span<const TensorView> tensors() const override { return inner_->tensors(); }
  base::Status Advance(std::uint64_t version, std::span<const TensorView> tensors,
                       std::span<const delta::ChangedLines> lines,
                       base::ThreadPool& pool) override {
    if (version == 1) return base::Fail(Code::kLimitExceeded, "no memory");
    return inner_->Advance(version, tensors, lines, pool);
  }

 private:
  std::unique_ptr<Baseline> inner_ = MakeMemoryBaseline();
};

TEST_P(PublisherTest, ABaselineLeftBehindIsNeverComparedWith) {
  ASSERT_OK_AND_ASSIGN(Publisher publisher,
                       Publisher::Open(files, dir_.path(), std::make_unique<FailingBaseline>(),
                                       false, {.encoding = GetParam(), .threads = 2}));
  ASSERT_OK(Publish(publisher));
  model_.Step(0.001);
  EXPECT_ERROR(Publish(publisher), Code::kLimitExceeded, "version 1 stands");
  model_.Step(0.001);
  ASSERT_OK_AND_ASSIGN(const PublishReport full, Publish(publisher));
  EXPECT_EQ(full.version, 2U);
  EXPECT_EQ(full.base_version, std::nullopt);
  const auto old_bytes = Snapshot();
  model_.Step(0.001);
  ASSERT_OK(Publish(publisher));
  CheckDelta(3, old_bytes);
}

// A late reader never needs much more than the model's bytes.
TEST_P(PublisherTest, FullCopiesComeByCost) {
  options_.full_copy_ratio = 0.2;
  options_.companions_from = dir_ / "config";
  ASSERT_OK(files.MakeDirectories(options_.companions_from));
  ASSERT_OK(base::WriteTextAtomically(files, dir_ / "config/config.json", "{}", false));
  std::optional<Publisher> publisher;
  std::uint64_t chain = 0;
  std::size_t copies = 0;
  for (std::uint64_t version = 0; version < 9; ++version) {
    // Another publisher knows the cost as well.
    if (!publisher || version == 4) {
      publisher.reset();
      auto baseline = MakeMemoryBaseline();
      base::ThreadPool pool(1);
      if (version != 0) ASSERT_OK(baseline->Advance(version - 1, model_.views(), {}, pool));
      ASSERT_OK_AND_ASSIGN(
          publisher, Publisher::Open(files, dir_.path(), std::move(baseline), false, options_));
    }
    const auto old_bytes = Snapshot();
    model_.Step(0.05);
    ASSERT_OK_AND_ASSIGN(const PublishReport report, Publish(*publisher));
    ASSERT_OK_AND_ASSIGN(const auto read, ReadManifest(files, dir_ / VersionName(version)));
    const Manifest& manifest = read->manifest;
    EXPECT_EQ(report.full_copy, HasFullCopy(manifest));
    if (version == 0) continue;
    CheckDelta(version, old_bytes);
    std::uint64_t delta = 0;
    for (const ManifestFile& file : manifest.files) {
      if (!file.name.starts_with("full/")) delta += file.bytes;
    }
    chain += delta;
    EXPECT_EQ(report.full_copy, 5 * chain >= report.full_bytes);
    if (report.full_copy) chain = 0;
    EXPECT_EQ(manifest.chain_bytes, chain);
    if (!report.full_copy) continue;
    ++copies;
    ASSERT_OK_AND_ASSIGN(const auto copy, checkpoint::MappedCheckpoint::Open(
                                              files, dir_ / VersionName(version) + "/full"));
    for (const TensorView& view : model_.views()) {
      EXPECT_TRUE(std::ranges::equal(copy.Bytes(*copy.checkpoint().Find(view.name)), view.bytes));
    }
    EXPECT_TRUE(
        base::Exists(files, dir_ / VersionName(version) + "/full/config.json").value_or(false));
    base::ThreadPool pool(2);
    EXPECT_OK(CheckFiles(files, dir_ / VersionName(version), manifest, Part::kFullCopy, true, pool,
                         nullptr));
  }
  EXPECT_GE(copies, 2U);
  ASSERT_OK_AND_ASSIGN(const auto history, History(dir_.path()));
  EXPECT_EQ(std::ranges::count(history, true, &VersionSummary::full_copy),
            static_cast<std::ptrdiff_t>(copies));
  EXPECT_EQ(history.back().fault, "");
}

TEST_P(PublisherTest, VersionsAreSigned) {
  ASSERT_OK(WriteKeyPair(files, dir_ / "key"));
  options_.signing_key = dir_ / "key";
  ASSERT_OK_AND_ASSIGN(Publisher publisher, Open(files));
  ASSERT_OK(Publish(publisher));
  ASSERT_OK_AND_ASSIGN(const auto manifest, ReadManifest(files, dir_ / VersionName(0)));
  ASSERT_OK_AND_ASSIGN(
      const std::string text,
      base::ReadText(files, dir_ / VersionName(0) + "/" + std::string(kSignatureName), 4096));
  std::vector<TrustedKey> trusted;
  trusted.push_back(TrustedKey::Read(files, dir_ / "key.pub").value());
  ASSERT_OK_AND_ASSIGN(const std::string by, CheckSignature(manifest->text, text, trusted));
  ASSERT_OK_AND_ASSIGN(const auto history, History(dir_.path()));
  EXPECT_EQ(history[0].signed_by, by);
  options_.signing_key = dir_ / "none";
  EXPECT_ERROR(Open(files), Code::kNotFound, "none");
}

// BR-14: files are cut before a header grows beyond what readers open.
TEST_P(PublisherTest, TheSameTensorMayComeTwice) {
  ASSERT_OK_AND_ASSIGN(Publisher publisher, Open(files));
  std::vector<TensorView> views = model_.views();
  const std::vector<std::byte> copy(views[2].bytes.begin(), views[2].bytes.end());
  views.push_back(views[2]);
  views.back().bytes = copy;
  views.push_back(views[0]);
  ASSERT_OK_AND_ASSIGN(const PublishReport report, publisher.Publish({}, views, false, progress_));
  EXPECT_EQ(report.tensors, 5U);
  std::vector<std::byte> other = copy;
  other[0] ^= std::byte{1};
  views[5].bytes = other;
  EXPECT_ERROR(publisher.Publish({}, views, false, progress_), Code::kInvalidArgument,
               "tensor f32 was given twice");
}

TEST_P(PublisherTest, ASecondPublisherIsRefused) {
  ASSERT_OK_AND_ASSIGN(Publisher publisher, Open(files));
  EXPECT_ERROR(Open(files), Code::kLocked, "another publisher");
}

TEST_P(PublisherTest, WrongNumbersAndTensorsAreNamed) {
  ASSERT_OK_AND_ASSIGN(Publisher publisher, Open(files));
  ASSERT_OK(Publish(publisher, 5));
  EXPECT_ERROR(Publish(publisher, 5), Code::kAlreadyExists, "version 5 is not newer");
  EXPECT_ERROR(Publish(publisher, 7), Code::kOutOfOrder, "expected 6, asked for 7");
  ASSERT_OK(Publish(publisher, 9, true));

  std::vector<TensorView> views = model_.views();
  views.pop_back();
  views.push_back({"other", Dtype::kU8, {0}, {}});
  EXPECT_ERROR(publisher.Publish({}, views, false, progress_), Code::kInvalidArgument,
               "missing [scalar], unknown [other]");
  views = model_.views();
  views[2].shape = {3, 33};
  EXPECT_ERROR(publisher.Publish({}, views, false, progress_), Code::kInvalidArgument,
               "tensor f32: expected F32 [33, 3] as in version 9, given F32 [3, 33]");
  views[2].shape = {3, 34};
  EXPECT_ERROR(publisher.Publish({}, views, false, progress_), Code::kInvalidArgument,
               "takes 408 bytes, given were 396");
  EXPECT_EQ(publisher.last_version(), 9U);
  ASSERT_OK(Publish(publisher));
}

TEST(PublisherLimitsTest, BR14_HeadersStayBelowTheLimitOfReaders) {
  const base::TempDir dir;
  base::Progress progress;
  const std::vector<std::byte> zero(1);
  const std::vector<std::byte> one(1, std::byte{1});
  std::vector<TensorView> views;
  // In the header of a delta each stands twice.
  for (char c = 'a'; c < 'a' + 3; ++c) {
    views.push_back({std::string(35'000'000, c), Dtype::kU8, {1}, zero});
  }
  ASSERT_OK_AND_ASSIGN(Publisher publisher,
                       Publisher::Open(files, dir.path(), MakeMemoryBaseline(), false, {}));
  ASSERT_OK(publisher.Publish({}, views, false, progress));
  for (TensorView& view : views) view.bytes = one;
  ASSERT_OK(publisher.Publish({}, views, false, progress));
  for (const std::uint64_t version : {0, 1}) {
    ASSERT_OK_AND_ASSIGN(const auto checkpoint,
                         checkpoint::Checkpoint::Open(files, dir / VersionName(version)));
    EXPECT_EQ(checkpoint.tensors().size(), views.size());
    EXPECT_GT(checkpoint.files().size(), 1U);
  }
  views.push_back({std::string(100'000'000, 'z'), Dtype::kU8, {1}, one});
  EXPECT_ERROR(publisher.Publish({}, views, true, progress), Code::kLimitExceeded,
               "more than the limit");
  EXPECT_EQ(publisher.last_version(), 1U);
}

}  // namespace
}  // namespace syncline::store
