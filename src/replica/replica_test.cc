#include "replica/replica.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <random>

#include "base/faulty_file_system.h"
#include "base/result_matchers.h"
#include "base/temp_dir.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/writer.h"
#include "replica/changes.h"
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
  delta::EncodingChoice encoding;
  std::uint64_t rows;  // of the large tensor: below or above what is patched as a whole
};
constexpr Case kCases[] = {
    {"Xor", delta::Encoding::kXor, 600},
    {"Overwrite", delta::Encoding::kOverwrite, 600},
    {"Compact", delta::Encoding::kCompact, 600},
    {"XorLarge", delta::Encoding::kXor, 8500},
    {"OverwriteLarge", delta::Encoding::kOverwrite, 8500},
    {"CompactLarge", delta::Encoding::kCompact, 8500},
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

  std::optional<std::uint64_t> MarkerOf() const {
    const auto marker = ReplicaState(files, into_).ReadMarker();
    EXPECT_OK(marker);
    return *marker ? std::optional((*marker)->version) : std::nullopt;
  }
  // The replica is exactly that version, by its marker and by its bytes.
  void ExpectAt(std::uint64_t version) {
    EXPECT_EQ(MarkerOf(), version);
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

  const base::TempDir dir_{base::TempDir::MemoryFolder()};
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

// Folding: each byte of the replica is recorded once, and applying one by one leads to the same.
TEST_P(ReplicaTest, AChainIsAppliedAsOne) {
  PublishUpTo(6);
  ASSERT_OK(PullTo(1));
  ASSERT_OK_AND_ASSIGN(const PullReport report, PullTo(6));
  EXPECT_THAT(report.applied, ElementsAre(2, 3, 4, 5, 6));
  ExpectAt(6);
  EXPECT_EQ(files.List(into_ + "/.weight_sync/journal").value().size(), 1U);
  ASSERT_OK_AND_ASSIGN(const UndoReport undone, Undo(files, into_, {}));
  EXPECT_EQ(undone.version, 1U);
  ExpectAt(1);
  for (std::uint64_t version = 2; version <= 6; ++version) {
    ASSERT_OK(PullTo(version));
    ExpectAt(version);
  }
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

TEST_P(ReplicaTest, AnOlderTargetIsReachedAsFarAsTheLastPullCanBeTakenBack) {
  PublishUpTo(5);
  ASSERT_OK(PullTo(2));
  ASSERT_OK(PullTo(5));
  EXPECT_ERROR(PullTo(1), Code::kOutOfOrder,
               "is at version 5; going back to 1 is not possible: the last pull can be taken back "
               "to version 2; pull version 0 first");
  ExpectAt(5);
  // The deltas of a pull are folded: what lies between is reached from before it.
  EXPECT_ERROR(PullTo(3), Code::kOutOfOrder, "can be taken back to version 2");
  ASSERT_OK_AND_ASSIGN(const PullReport back, PullTo(2));
  EXPECT_THAT(back.undone, ElementsAre(5));
  EXPECT_EQ(back.bytes_read, 0U);
  ExpectAt(2);
  ASSERT_OK(PullTo(4));
  ExpectAt(4);
  ASSERT_OK(PullTo(0));
  ExpectAt(0);
}

TEST_P(ReplicaTest, UndoReturnsToTheStateBeforeTheLastPull) {
  PublishUpTo(4);
  ASSERT_OK(PullTo(0));
  EXPECT_ERROR(Undo(files, into_, {}), Code::kNotFound, "nothing to undo");
  ASSERT_OK(PullTo(1));
  ASSERT_OK(PullTo(4));
  ASSERT_OK(PullTo(4));  // changes nothing, so it does not count
  ASSERT_OK_AND_ASSIGN(const UndoReport report, Undo(files, into_, {}));
  EXPECT_EQ(report.from_version, 4U);
  EXPECT_EQ(report.version, 1U);
  ExpectAt(1);
  EXPECT_ERROR(Undo(files, into_, {}), Code::kNotFound, "nothing to undo");
  ASSERT_OK(PullTo(3));
  ExpectAt(3);
  EXPECT_ERROR(Undo(files, dir_ / "nowhere", {}), Code::kNotFound, "is no replica");
}

TEST_P(ReplicaTest, UndoBringsBackWhatAFullVersionReplaced) {
  PublishUpTo(1);
  ASSERT_OK(PullTo(1));
  Step(0.5);
  ASSERT_OK(publisher_->Publish(std::nullopt, views(), true, progress_));
  versions_.push_back(bytes_);
  PublishUpTo(3);
  ASSERT_OK_AND_ASSIGN(const PullReport report, PullTo(3));
  EXPECT_EQ(report.seeded_from, 2U);
  ASSERT_OK_AND_ASSIGN(const UndoReport back, Undo(files, into_, {}));
  EXPECT_EQ(back.version, 1U);
  ExpectAt(1);
  EXPECT_ERROR(Undo(files, into_, {}), Code::kNotFound, "nothing to undo");
  ASSERT_OK(PullTo(3));
  ExpectAt(3);
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

// The disk fails in the middle of the writes and goes on failing: the journal stays, and the next
// pull completes what was begun.
TEST_P(ReplicaTest, WhenPuttingBackFailsTooTheNextPullCompletesIt) {
  PublishUpTo(1, 0.02);
  ASSERT_OK(PullTo(0));
  base::FaultyFileSystem faulty(files);
  std::atomic<int> writes = 0;
  faulty.SetRule([&](std::string_view operation, const std::string& path) -> base::Status {
    if (operation != "write" || !path.ends_with("model.safetensors") || writes++ < 1) return {};
    return base::Fail(Code::kIo, "the disk is gone");
  });
  EXPECT_ERROR(PullWith(faulty), Code::kIo, "the next pull completes what was begun");
  EXPECT_EQ(MarkerOf(), std::nullopt);
  EXPECT_ERROR(Verify(files, into_, {}), Code::kCorrupt, "the last pull did not end");
  ASSERT_OK_AND_ASSIGN(const PullReport next, PullWith(files));
  EXPECT_TRUE(next.recovered);
  EXPECT_FALSE(next.seeded);
  EXPECT_TRUE(next.applied.empty());
  ExpectAt(1);
  ASSERT_OK_AND_ASSIGN(const UndoReport undone, Undo(files, into_, {}));
  EXPECT_EQ(undone.version, 0U);
  ExpectAt(0);
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

// So much of it that a delta which is read over the old values cannot even be decoded.
TEST_P(ReplicaTest, MuchDamageIsHealedOnTheWay) {
  PublishUpTo(2, 0.05);
  ASSERT_OK(PullTo(1));
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, checkpoint::Checkpoint::Open(files, into_));
  const std::string path = into_ + "/model.safetensors";
  for (std::uint64_t byte = 1; byte < 4000; byte += 2) {  // signs and exponents
    FlipByte(path, checkpoint.Find("big")->offset + byte);
  }
  ASSERT_OK_AND_ASSIGN(const PullReport report, PullTo(2));
  EXPECT_EQ(report.tensors_repaired, 1U);
  EXPECT_FALSE(report.seeded);
  ExpectAt(2);
}

TEST_P(ReplicaTest, DamageIsFoundAndHealedFromTheStore) {
  PublishUpTo(2, 0.001);
  ASSERT_OK(PullTo(1));
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, checkpoint::Checkpoint::Open(files, into_));
  const std::string path = into_ + "/model.safetensors";
  FlipByte(path, checkpoint.Find("big")->offset + 1000);
  EXPECT_ERROR(Verify(files, into_, {}), Code::kChecksumMismatch, "big");
  ASSERT_OK_AND_ASSIGN(const VerifyReport healed, Verify(files, into_, {.repair = true}));
  EXPECT_EQ(healed.tensors_repaired, 1U);
  ExpectAt(1);
  // The pull heals by itself what it finds on its way.
  FlipByte(path, checkpoint.Find("big")->offset + 1000);
  ASSERT_OK_AND_ASSIGN(const PullReport report, PullTo(2));
  EXPECT_EQ(report.tensors_repaired, 1U);
  EXPECT_FALSE(report.seeded);
  ExpectAt(2);
  // Headers too.
  FlipByte(path, 9);
  EXPECT_ERROR(Verify(files, into_, {}), Code::kCorrupt, "model.safetensors");
  ASSERT_OK(Verify(files, into_, {.repair = true}));
  ExpectAt(2);
}

TEST_P(ReplicaTest, WithoutItsStoreDamageStaysAndIsTold) {
  PublishUpTo(1, 0.01);
  ASSERT_OK(PullTo(1));
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, checkpoint::Checkpoint::Open(files, into_));
  FlipByte(into_ + "/model.safetensors", checkpoint.Find("norm")->offset);
  ASSERT_OK(files.RemoveAll(base::JoinPath(store_, store::VersionName(0))));
  EXPECT_ERROR(Verify(files, into_, {.repair = true}), Code::kNotFound, "version 0 is not in");
  EXPECT_EQ(MarkerOf(), std::nullopt);
}

// After a restart of the machine (another boot id) the journals of the last pull are carried out
// again: what the device lost comes back.
TEST_P(ReplicaTest, AfterARestartTheJournalsAreCarriedOutAgain) {
  PublishUpTo(2);
  ASSERT_OK(PullTo(0));
  const std::string path = into_ + "/model.safetensors";
  const std::string before = base::ReadText(files, path, 1 << 30).value();
  ASSERT_OK(PullTo(1));
  const std::string after = base::ReadText(files, path, 1 << 30).value();
  ASSERT_OK_AND_ASSIGN(const auto file, files.Open(path, base::OpenMode::kReadWrite));
  for (std::size_t page = 0; page * 4096 < before.size(); page += 2) {
    const std::string_view old = std::string_view(before).substr(page * 4096, 4096);
    ASSERT_OK(file->WriteAt(base::AsBytes(old), page * 4096));
  }
  ASSERT_OK_AND_ASSIGN(const PullReport report,
                       PullWith(files, {.version = 1, .test_boot_id = "another boot"}));
  EXPECT_TRUE(report.recovered);
  EXPECT_FALSE(report.seeded);
  EXPECT_EQ(report.tensors_repaired, 0U);
  EXPECT_TRUE(base::ReadText(files, path, 1 << 30).value() == after);
  ASSERT_OK_AND_ASSIGN(const PullReport again,
                       PullWith(files, {.version = 1, .test_boot_id = "another boot"}));
  EXPECT_FALSE(again.recovered);
  // What was touched and then lost beyond the journals' reach is found by its hash, and healed.
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, checkpoint::Checkpoint::Open(files, into_));
  FlipByte(path, checkpoint.Find("norm")->offset);
  FlipByte(path, checkpoint.Find("norm")->offset + 1);
  FlipByte(path, checkpoint.Find("norm")->offset + 2);
  FlipByte(path, checkpoint.Find("norm")->offset + 3);
  ASSERT_OK(PullWith(files, {.version = 1, .test_boot_id = "a third boot"}));
  ExpectAt(1);
}

TEST_P(ReplicaTest, AReplicaOfAnotherProgramIsTakenOver) {
  PublishUpTo(2);
  ASSERT_OK(PullTo(1));
  // Another program brings it to version 1 by itself, say.
  ASSERT_OK(base::WriteTextAtomically(files, ReplicaState(files, into_).Path("state.json"),
                                      "{\"version\": \"000001\"}", false));
  ASSERT_OK_AND_ASSIGN(const VerifyReport unknown, Verify(files, into_, {}));
  EXPECT_EQ(unknown.tensors_hashed, 0U);
  ASSERT_OK_AND_ASSIGN(const PullReport report, PullTo(2));
  EXPECT_FALSE(report.seeded);
  ExpectAt(2);
  ASSERT_OK_AND_ASSIGN(const VerifyReport known, Verify(files, into_, {}));
  EXPECT_EQ(known.tensors_hashed, views_.size());
}

// The process is killed at the n-th operation, for every n; the next pull ends at the new version,
// and never copies the checkpoint again. BR-04, BR-05.
TEST_P(ReplicaTest, BR05_AKillAtAnyOperationIsRecovered) {
  PublishUpTo(2, 0.02);
  const bool large = GetParam().rows > 1000;
  for (const bool undo : {false, true}) {
    for (std::uint64_t n = 0; true; n += large ? 23 : 1) {
      ASSERT_OK(PullTo(0));
      ASSERT_OK(PullTo(1));
      if (undo) ASSERT_OK(PullTo(2));
      const std::uint64_t before = undo ? 2 : 1;
      base::FaultyFileSystem faulty(files);
      faulty.KillAt(n);
      const bool ended = undo ? Undo(faulty, into_, {.threads = 2}).has_value()
                              : PullWith(faulty, {.version = 2}).has_value();
      if (faulty.operation_count() <= n) {
        EXPECT_TRUE(ended);
        break;
      }
      const auto marker = MarkerOf();
      EXPECT_TRUE(!marker || *marker == 1 || *marker == 2) << n;
      if (marker) ExpectAt(*marker);
      ASSERT_OK_AND_ASSIGN(const PullReport next, PullTo(2));
      EXPECT_FALSE(next.seeded) << n;
      EXPECT_EQ(next.tensors_repaired, 0U) << n;
      ExpectAt(2);
      if (before == 1 && next.undone.empty() && next.from_version == 1U) {
        ASSERT_OK(Undo(files, into_, {}));
        ExpectAt(1);
      }
    }
  }
}

TEST_P(ReplicaTest, AnotherRunsVersionIsNeverTakenForTheSame) {
  PublishUpTo(2);
  ASSERT_OK(PullTo(2));
  // The trainer begins anew at the same place, and comes to the same number.
  publisher_.reset();
  ASSERT_OK(files.RemoveAll(store_));
  publisher_.emplace(
      store::Publisher::Open(files, store_, store::MakeMemoryBaseline(), false,
                             {.encoding = GetParam().encoding, .durable = false, .threads = 2})
          .value());
  versions_.clear();
  Step(0.5);
  PublishUpTo(2);
  ASSERT_OK_AND_ASSIGN(const PullReport report, PullTo(2));
  EXPECT_TRUE(report.seeded);
  ExpectAt(2);
  ASSERT_OK_AND_ASSIGN(const PullReport same, PullTo(2));
  EXPECT_FALSE(same.seeded);
}

TEST_P(ReplicaTest, TheChangeRecordNamesWhatChanged) {
  PublishUpTo(1, 0.01);
  ASSERT_OK(PullTo(1));
  bytes_[3][0] ^= std::byte{1};  // norm
  ASSERT_OK(publisher_->Publish(std::nullopt, views(), false, progress_));
  versions_.push_back(bytes_);
  bytes_[2][6] ^= std::byte{1};  // mask
  ASSERT_OK(publisher_->Publish(std::nullopt, views(), false, progress_));
  versions_.push_back(bytes_);
  ASSERT_OK(PullTo(2));
  ASSERT_OK(PullTo(3));
  const auto names = [&](std::uint64_t since) {
    const auto changes = ChangesSince(files, into_, since);
    EXPECT_OK(changes);
    EXPECT_EQ(changes->to, MarkerOf());
    std::vector<std::string> found;
    for (const ChangedTensor& tensor : changes->tensors) found.push_back(tensor.name);
    if (changes->everything) found.emplace_back("everything");
    return found;
  };
  EXPECT_THAT(names(3), ElementsAre());
  EXPECT_THAT(names(2), ElementsAre("mask"));
  EXPECT_THAT(names(1), ElementsAre("mask", "norm"));
  EXPECT_THAT(names(0), ElementsAre("big", "mask", "norm"));
  EXPECT_THAT(names(9), ElementsAre("everything"));
  ASSERT_OK(Undo(files, into_, {}));
  EXPECT_THAT(names(3), ElementsAre("mask"));
  ASSERT_OK(PullTo(0));
  EXPECT_THAT(names(1), ElementsAre("everything"));
  ASSERT_OK(PullTo(3));  // folded
  EXPECT_THAT(names(0), ElementsAre("big", "mask", "norm"));
}

// BR-20: a snapshot in a Hugging Face cache is made of links.
TEST_P(ReplicaTest, BR20_LinksAreNeverWrittenThrough) {
  PublishUpTo(1);
  ASSERT_OK(PullTo(0));
  const std::string path = into_ + "/model.safetensors";
  const std::string blob = dir_ / "blob";
  const std::string before = base::ReadText(files, path, 1 << 30).value();
  for (const bool symbolic : {true, false}) {
    ASSERT_OK(PullTo(0));
    ASSERT_OK(files.RemoveAll(blob));
    ASSERT_OK(files.Rename(path, blob));
    ASSERT_EQ(symbolic ? symlink(blob.c_str(), path.c_str()) : link(blob.c_str(), path.c_str()), 0);
    ASSERT_OK(PullTo(1));
    ExpectAt(1);
    EXPECT_TRUE(base::ReadText(files, blob, 1 << 30).value() == before);
    EXPECT_FALSE(files.IsShared(path).value());
  }
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

}  // namespace
}  // namespace syncline::replica
