#include "replica/replica.h"

#include <gtest/gtest.h>

#include <random>

#include "base/faulty_file_system.h"
#include "base/result_matchers.h"
#include "base/temp_dir.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/writer.h"
#include "replica/change_log.h"
#include "replica/state.h"
#include "store/publisher.h"

namespace syncline::replica {
namespace {

using base::Code;
using base::FileSystem;
using base::Result;
using tensor::Dtype;
using tensor::TensorView;
using testing::ElementsAre;
using testing::HasSubstr;

FileSystem& files = FileSystem::Posix();

struct Case {
  std::string_view name;
  delta::Encoding encoding;
  std::uint64_t rows;  // of the large tensor: below or above what is patched as a whole
};
constexpr Case kCases[] = {
    {"Xor", delta::Encoding::kXor, 600},
    {"Overwrite", delta::Encoding::kOverwrite, 600},
    {"XorLarge", delta::Encoding::kXor, 8500},
    {"OverwriteLarge", delta::Encoding::kOverwrite, 8500},
};

// A trainer with a store, and what each of its versions looked like.
class ReplicaTest : public testing::TestWithParam<Case> {
 protected:
  using Bytes = std::vector<std::vector<std::byte>>;

  ReplicaTest() {
    Add("big", Dtype::kBF16, {GetParam().rows, 500});
    Add("empty", Dtype::kBF16, {2, 0});
    Add("mask", Dtype::kBool, {7});
    Add("norm", Dtype::kF32, {33});
    publisher_.emplace(
        store::Publisher::Open(files, store_, store::MakeMemoryBaseline(), false,
                               {.encoding = GetParam().encoding, .durable = false, .threads = 2})
            .value());
  }

  void Add(std::string name, Dtype dtype, std::vector<std::uint64_t> shape) {
    views_.push_back({std::move(name), dtype, std::move(shape), {}});
    bytes_.emplace_back(ByteCount(dtype, views_.back().shape).value());
    Step(1.0);
  }
  void Step(double density) {
    std::bernoulli_distribution change(density);
    for (auto& bytes : bytes_) {
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
  // Makes versions up to `last`, the first one full.
  void PublishUpTo(std::uint64_t last, double density = 0.01) {
    while (versions_.size() <= last) {
      if (!versions_.empty()) Step(density);
      ASSERT_OK(publisher_->Publish(std::nullopt, views(), false, progress_));
      versions_.push_back(bytes_);
    }
  }
  Result<PullReport> PullWith(FileSystem& fs, PullOptions options = {}) {
    options.threads = 2;
    return Pull(fs, store_, into_, options);
  }
  Result<PullReport> PullTo(std::uint64_t version) { return PullWith(files, {.version = version}); }

  // The replica is exactly that version, by its marker and by its bytes.
  void ExpectAt(std::uint64_t version) {
    EXPECT_EQ(ReplicaState(files, into_).ReadMarker().value(), version);
    ASSERT_OK_AND_ASSIGN(const auto mapped, checkpoint::MappedCheckpoint::Open(files, into_));
    for (std::size_t i = 0; i < views_.size(); ++i) {
      const auto* tensor = mapped.checkpoint().Find(views_[i].name);
      ASSERT_NE(tensor, nullptr);
      EXPECT_TRUE(std::ranges::equal(mapped.Bytes(*tensor), versions_[version][i]))
          << views_[i].name << " of version " << version;
    }
    EXPECT_OK(Verify(files, into_, {.threads = 2}));
  }
  void FlipByte(const std::string& path, std::uint64_t offset) {
    ASSERT_OK_AND_ASSIGN(const auto file, files.Open(path, base::OpenMode::kReadWrite));
    std::array<std::byte, 1> byte;
    ASSERT_OK(base::ReadExactly(*file, byte, offset));
    byte[0] ^= std::byte{1};
    ASSERT_OK(file->WriteAt(byte, offset));
  }

  const base::TempDir dir_;
  const std::string store_ = dir_ / "store";
  const std::string into_ = dir_ / "replica";
  std::mt19937 random_{7};
  std::vector<TensorView> views_;
  Bytes bytes_;
  std::vector<Bytes> versions_;
  base::Progress progress_;
  std::optional<store::Publisher> publisher_;
};

INSTANTIATE_TEST_SUITE_P(Cases, ReplicaTest, testing::ValuesIn(kCases),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST_P(ReplicaTest, SeedsFromTheFullVersionAndFollowsTheChain) {
  PublishUpTo(4);
  ASSERT_OK_AND_ASSIGN(const PullReport first, PullTo(2));
  EXPECT_EQ(first.from_version, std::nullopt);
  EXPECT_EQ(first.seeded_from, 0U);
  EXPECT_THAT(first.applied, ElementsAre(1, 2));
  ExpectAt(2);
  ASSERT_OK_AND_ASSIGN(const PullReport second, PullWith(files));
  EXPECT_EQ(second.from_version, 2U);
  EXPECT_FALSE(second.seeded);
  EXPECT_THAT(second.applied, ElementsAre(3, 4));
  ExpectAt(4);
  ASSERT_OK_AND_ASSIGN(const PullReport third, PullWith(files));
  EXPECT_TRUE(third.applied.empty());
  EXPECT_EQ(third.bytes_read, 0U);
}

TEST_P(ReplicaTest, AFullVersionOnTheWayReplacesWhatIsHeld) {
  PublishUpTo(2);
  ASSERT_OK(PullTo(1));
  Step(0.5);
  ASSERT_OK(publisher_->Publish(std::nullopt, views(), true, progress_));
  versions_.push_back(bytes_);
  PublishUpTo(5);
  ASSERT_OK_AND_ASSIGN(const PullReport report, PullWith(files));
  EXPECT_EQ(report.seeded_from, 3U);
  EXPECT_THAT(report.applied, ElementsAre(4, 5));
  ExpectAt(5);
}

TEST_P(ReplicaTest, BR06_ABrokenChainIsRefusedBeforeAnythingMoves) {
  PublishUpTo(6);
  ASSERT_OK(PullTo(1));
  for (const std::uint64_t version : {3, 4}) {
    ASSERT_OK(files.RemoveAll(base::JoinPath(store_, store::VersionName(version))));
  }
  EXPECT_ERROR(PullWith(files), Code::kNotFound, "lacks versions 3–4");
  ExpectAt(1);
  EXPECT_ERROR(PullTo(9), Code::kNotFound, "it holds 0–2, 5–6");
}

TEST_P(ReplicaTest, OlderTargets) {
  PublishUpTo(3);
  ASSERT_OK(PullTo(3));
  EXPECT_ERROR(PullTo(2), Code::kOutOfOrder, "is at version 3; going back to 2");
  ExpectAt(3);
  ASSERT_OK(PullTo(0));
  ExpectAt(0);
}

// Each operation that the pull makes on the replica is made to fail, one after the other. Whatever
// fails, the replica is then at the old or the new version, and the next pull succeeds without
// seeding.
TEST_P(ReplicaTest, BR05_AFailureAnywhereLeavesOneVersionWhole) {
  PublishUpTo(1, 0.02);
  base::FaultyFileSystem faulty(files);
  std::size_t failures = 0;
  std::size_t put_back = 0;
  for (const char* operation : {"open", "read", "write", "rename", "remove", "stat", "list"}) {
    // A large tensor is written block by block: there every seventh call will do.
    for (std::size_t n = 0; true; n += GetParam().rows > 1000 ? 7 : 1) {
      ASSERT_OK(PullTo(0));
      ExpectAt(0);
      faulty.FailNth(operation, "", n, {Code::kIo, "injected"});
      const auto report = PullWith(faulty, {.version = 1});
      if (report) break;  // fewer than n + 1 operations of this kind
      ++failures;
      EXPECT_THAT(report.error().message, HasSubstr("injected")) << operation << n;
      if (report.error().message.find("was put back to version 0") != std::string::npos) ++put_back;
      ExpectAt(0);
      ASSERT_OK_AND_ASSIGN(const PullReport next, PullTo(1));
      EXPECT_FALSE(next.seeded) << operation << n;
      ExpectAt(1);
    }
  }
  EXPECT_GT(failures, 20U);
  EXPECT_GT(put_back, 3U);
}

TEST_P(ReplicaTest, WhenPuttingBackFailsTooTheNextPullSeeds) {
  PublishUpTo(1, 0.02);
  ASSERT_OK(PullTo(0));
  base::FaultyFileSystem faulty(files);
  std::atomic<int> writes = 0;
  faulty.SetRule([&](std::string_view operation, const std::string& path) -> base::Status {
    if (operation != "write" || !path.ends_with("model.safetensors") || writes++ < 1) return {};
    return base::Fail(Code::kIo, "the disk is gone");
  });
  EXPECT_ERROR(PullWith(faulty), Code::kIo, "must be seeded again");
  EXPECT_EQ(ReplicaState(files, into_).ReadMarker().value(), std::nullopt);
  EXPECT_ERROR(Verify(files, into_, {}), Code::kCorrupt, "the last pull did not end");
  ASSERT_OK_AND_ASSIGN(const PullReport next, PullWith(files));
  EXPECT_TRUE(next.seeded);
  ExpectAt(1);
}

TEST_P(ReplicaTest, AFailedSeedKeepsTheOldVersion) {
  PublishUpTo(0);
  ASSERT_OK(PullTo(0));
  Step(0.5);
  ASSERT_OK(publisher_->Publish(std::nullopt, views(), true, progress_));
  versions_.push_back(bytes_);
  base::FaultyFileSystem faulty(files);
  for (const char* operation : {"allocate", "write", "mkdir"}) {
    faulty.FailNth(operation, "incoming", 0, {Code::kNoSpace, "full"});
    EXPECT_ERROR(PullWith(faulty), Code::kNoSpace, "full");
    ExpectAt(0);
  }
  ASSERT_OK(PullWith(files));
  ExpectAt(1);
}

TEST_P(ReplicaTest, ADamagedReplicaIsRefusedByTheHashAndNotTouched) {
  PublishUpTo(1, 0.001);
  ASSERT_OK(PullTo(0));
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, checkpoint::Checkpoint::Open(files, into_));
  FlipByte(into_ + "/model.safetensors", checkpoint.Find("big")->offset + 1000);
  EXPECT_ERROR(Verify(files, into_, {}), Code::kChecksumMismatch, "big");
  const std::string before = base::ReadText(files, into_ + "/model.safetensors", 1 << 30).value();
  EXPECT_ERROR(PullWith(files), Code::kChecksumMismatch,
               "version 1: checksum mismatch for 1 tensors: big");
  EXPECT_EQ(base::ReadText(files, into_ + "/model.safetensors", 1 << 30).value(), before);
  EXPECT_EQ(ReplicaState(files, into_).ReadMarker().value(), 0U);
}

// After a restart of the machine (another boot id) nothing is believed that does not have its hash.
TEST_P(ReplicaTest, AfterARestartBytesAreHashedBeforeTheyAreTrusted) {
  PublishUpTo(2);
  ASSERT_OK(PullTo(1));
  const ReplicaState state(files, into_);
  const auto restart = [&] {
    Head head = state.ReadHead(1).value().value();
    EXPECT_EQ(head.boot_id, state.BootId());
    EXPECT_EQ(head.boot_id.size(), 36U);
    head.boot_id = "another boot";
    ASSERT_OK(state.WriteHead(head));
  };
  restart();
  ASSERT_OK(PullTo(1));
  EXPECT_EQ(state.ReadHead(1).value().value().boot_id, state.BootId());
  restart();
  ASSERT_OK_AND_ASSIGN(const PullReport kept, PullTo(2));
  EXPECT_FALSE(kept.seeded);
  ExpectAt(2);

  ASSERT_OK(PullTo(0));
  ASSERT_OK(PullTo(1));
  restart();
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, checkpoint::Checkpoint::Open(files, into_));
  FlipByte(into_ + "/model.safetensors", checkpoint.Find("norm")->offset);
  ASSERT_OK_AND_ASSIGN(const PullReport again, PullTo(2));
  EXPECT_TRUE(again.seeded);
  ExpectAt(2);
}

TEST_P(ReplicaTest, AReplicaOfAnotherProgramIsTakenOver) {
  PublishUpTo(2);
  ASSERT_OK(PullTo(1));
  ASSERT_OK(files.Remove(ReplicaState(files, into_).Path("syncline.json")));
  ASSERT_OK_AND_ASSIGN(const VerifyReport unknown, Verify(files, into_, {}));
  EXPECT_EQ(unknown.tensors_hashed, 0U);
  ASSERT_OK_AND_ASSIGN(const PullReport report, PullTo(2));
  EXPECT_FALSE(report.seeded);
  ExpectAt(2);
  ASSERT_OK_AND_ASSIGN(const VerifyReport known, Verify(files, into_, {}));
  EXPECT_EQ(known.tensors_hashed, views_.size());
}

TEST_P(ReplicaTest, ADirectoryWithFilesOfItsOwnIsLeftAlone) {
  PublishUpTo(0);
  ASSERT_OK(files.MakeDirectories(into_));
  ASSERT_OK(base::WriteTextAtomically(files, into_ + "/thesis.txt", "precious", false));
  EXPECT_ERROR(PullWith(files), Code::kAlreadyExists, "is no replica");
  EXPECT_THAT(files.List(into_).value(), ElementsAre("thesis.txt"));
}

TEST_P(ReplicaTest, VersionZeroCanBeACheckpointThatIsNotInTheStore) {
  const std::string seed = dir_ / "seed";
  ASSERT_OK(files.MakeDirectories(seed));
  base::ThreadPool pool(2);
  ASSERT_OK(checkpoint::WriteCheckpoint(files, seed, views(), {.max_file_bytes = 300'000}, pool,
                                        progress_, nullptr));
  ASSERT_OK(base::WriteTextAtomically(files, seed + "/config.json", "{}", false));
  versions_.push_back(bytes_);
  publisher_.reset();
  auto baseline = store::MakeMemoryBaseline();
  ASSERT_OK(baseline->Advance(0, views(), {}, pool));
  publisher_.emplace(
      store::Publisher::Open(files, store_, std::move(baseline), true,
                             {.encoding = GetParam().encoding, .durable = false, .threads = 2})
          .value());
  PublishUpTo(2);
  EXPECT_THAT(store::ListVersions(files, store_).value(), ElementsAre(1, 2));
  EXPECT_ERROR(PullWith(files), Code::kNotFound, "the seed");
  EXPECT_ERROR(PullWith(files, {.seed = dir_ / "nowhere"}), Code::kNotFound, "nowhere");
  ASSERT_OK_AND_ASSIGN(const PullReport report, PullWith(files, {.seed = seed}));
  EXPECT_TRUE(report.seeded);
  EXPECT_EQ(report.seeded_from, std::nullopt);
  ExpectAt(2);
  EXPECT_OK(base::ReadText(files, into_ + "/config.json", 100));
}

TEST_P(ReplicaTest, CancellingKeepsTheOldVersion) {
  PublishUpTo(1);
  ASSERT_OK(PullTo(0));
  base::CancelToken cancel;
  cancel.Cancel();
  EXPECT_ERROR(PullWith(files, {.cancel = &cancel}), Code::kCancelled, "cancelled");
  ExpectAt(0);
}

TEST(ChangeLogTest, WhatDoesNotFitIntoMemoryIsReadBackFromTheFile) {
  const base::TempDir dir;
  {
    ChangeLog log(files, dir / "spill", 100, 11);
    for (std::size_t i = 1; i <= 10; ++i) {
      ASSERT_OK(log.Append(i, std::vector<std::byte>(i * 10, static_cast<std::byte>(i))));
    }
    ASSERT_OK(log.Append(0, {}));
    EXPECT_EQ(log.segment_count(0), 0U);
    EXPECT_THAT(files.List(dir.path()).value(), ElementsAre("spill"));
    for (int round = 0; round < 2; ++round) {
      for (std::size_t i = 1; i <= 10; ++i) {
        ASSERT_EQ(log.segment_count(i), 1U);
        std::vector<std::byte> scratch;
        ASSERT_OK_AND_ASSIGN(const base::MutableByteSpan records, log.Read(i, 0, scratch));
        ASSERT_EQ(records.size(), i * 10);
        EXPECT_EQ(records.back(), static_cast<std::byte>(i + static_cast<std::size_t>(round)));
        records.back() = static_cast<std::byte>(i + 1);
        ASSERT_OK(log.Keep(i, 0, records));
      }
    }
  }
  EXPECT_TRUE(files.List(dir.path()).value().empty());
}

}  // namespace
}  // namespace syncline::replica
