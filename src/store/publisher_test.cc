#include "store/publisher.h"

#include <gtest/gtest.h>

#include <random>

#include "base/faulty_file_system.h"
#include "base/result_matchers.h"
#include "base/temp_dir.h"
#include "checkpoint/checkpoint.h"
#include "delta/patch.h"
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
  Model() {
    Add("big", Dtype::kBF16, {4500, 1000});
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

class PublisherTest : public testing::TestWithParam<delta::Encoding> {
 protected:
  base::Result<Publisher> Open(FileSystem& fs) {
    return Publisher::Open(fs, dir_.path(), MakeMemoryBaseline(), false,
                           {.encoding = GetParam(), .threads = 2});
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
    std::size_t changed = 0;
    for (std::size_t i = 0; i < views.size(); ++i) {
      const bool differs = !std::ranges::equal(views[i].bytes, old_bytes[i]);
      const auto found = std::ranges::find(version.tensors, views[i].name, &DeltaTensor::name);
      ASSERT_EQ(found != version.tensors.end(), differs) << views[i].name;
      if (!differs) continue;
      ++changed;
      ASSERT_OK_AND_ASSIGN(const auto file,
                           files.Open(base::JoinPath(version.directory, version.files[found->file]),
                                      base::OpenMode::kRead));
      std::vector<std::byte> frame(found->bytes);
      ASSERT_OK(base::ReadExactly(*file, frame, found->offset));
      std::vector<std::byte> bytes = old_bytes[i];
      ASSERT_OK_AND_ASSIGN(const auto patch, delta::OpenPatch(version.delta->encoding, frame,
                                                              bytes.size(), views[i].dtype));
      delta::BlockPatch block = patch->MakeBlock();
      std::vector<std::byte> records;
      for (std::size_t at = 0; at < bytes.size(); at += delta::kBlockBytes) {
        const std::size_t size = std::min(delta::kBlockBytes, bytes.size() - at);
        ASSERT_OK(patch->Next(size, block));
        records.clear();
        block.AppendRecord(at, size, records);
        if (records.empty()) continue;
        ASSERT_OK_AND_ASSIGN(const auto record, delta::BlockRecord::Read(records));
        record.Apply(std::span(bytes).subspan(record.begin(), record.end() - record.begin()));
      }
      ASSERT_OK(patch->Finish());
      EXPECT_TRUE(std::ranges::equal(bytes, views[i].bytes)) << views[i].name;
      EXPECT_EQ(HashHex(version.delta->checksum, bytes), found->hash);
    }
    EXPECT_EQ(version.tensors.size(), changed);
  }
  std::vector<std::vector<std::byte>> Snapshot() {
    std::vector<std::vector<std::byte>> copies;
    for (const TensorView& view : model_.views())
      copies.emplace_back(view.bytes.begin(), view.bytes.end());
    return copies;
  }

  const base::TempDir dir_;
  Model model_;
  base::Progress progress_;
};
INSTANTIATE_TEST_SUITE_P(Encodings, PublisherTest,
                         testing::Values(delta::Encoding::kXor, delta::Encoding::kOverwrite),
                         [](const auto& tested) { return std::string(Name(tested.param)); });

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
  for (const double density : {0.001, 0.0, 0.5, 0.00001}) {
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

// Every call that changes a file is made to fail once. Nothing of the version is seen then, and the
// next publish covers it.
TEST_P(PublisherTest, BR07_AFailedPublishLeavesNothingAndTheNextOneCoversIt) {
  base::FaultyFileSystem faulty(files);
  ASSERT_OK_AND_ASSIGN(Publisher publisher, Open(faulty));
  ASSERT_OK(Publish(publisher));
  std::uint64_t last = 0;
  for (const char* operation : {"mkdir", "allocate", "write", "sync", "rename"}) {
    for (std::size_t n = 0; true; ++n) {
      const auto old_bytes = Snapshot();
      model_.Step(0.0001);
      faulty.FailNth(operation, VersionName(last + 1), n, {Code::kNoSpace, "full"});
      const auto report = Publish(publisher);
      if (report) {
        ASSERT_GT(n, 0U) << operation;  // it did fail before
        CheckDelta(++last, old_bytes);
        break;
      }
      EXPECT_ERROR(report, Code::kNoSpace, "full");
      EXPECT_EQ(ListVersions(files, dir_.path()).value().back(), last);
      EXPECT_EQ(publisher.last_version(), last);
      faulty.SetRule(nullptr);
      ASSERT_OK(Publish(publisher));
      CheckDelta(++last, old_bytes);
    }
  }
  EXPECT_GT(last, 10U);
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
  EXPECT_ERROR(Publish(publisher), Code::kIo, "the disk is gone");
  EXPECT_EQ(publisher.last_version(), 1U);
  CheckDelta(1, first);
  faulty.SetRule(nullptr);
  const auto second = Snapshot();
  model_.Step(0.001);
  ASSERT_OK(Publish(publisher));
  CheckDelta(2, second);
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
  views = model_.views();
  views.push_back(views[0]);
  EXPECT_ERROR(publisher.Publish({}, views, true, progress_), Code::kInvalidArgument,
               "two tensors have the name big");
  EXPECT_EQ(publisher.last_version(), 9U);
  ASSERT_OK(Publish(publisher));
}

}  // namespace
}  // namespace syncline::store
