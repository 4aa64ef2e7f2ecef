#include "replica/tensor_check.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <random>
#include <vector>

#include "base/faulty_file_system.h"
#include "base/result_matchers.h"
#include "base/temp_dir.h"
#include "checkpoint/checkpoint.h"
#include "delta/block_patch.h"
#include "replica/apply.h"
#include "replica/journals.h"
#include "store/publisher.h"

namespace syncline::replica {
namespace {

using base::ByteSpan;
using base::Code;
using base::FileSystem;
using base::Result;
using store::Version;
using tensor::Digest;
using tensor::Dtype;
using tensor::TensorView;
using testing::HasSubstr;

FileSystem& files = FileSystem::Posix();

constexpr VerifyBy kAll[] = {VerifyBy::kHash, VerifyBy::kChained, VerifyBy::kFull};

TEST(VerifyByTest, NamesAreReadBack) {
  for (const VerifyBy by : kAll) EXPECT_EQ(FindVerifyBy(Name(by)), by);
  EXPECT_EQ(FindVerifyBy("fast"), std::nullopt);
  EXPECT_EQ(FindVerifyBy(""), std::nullopt);
}

// What journals record of changes, whatever the units and however many of them, is what the digest
// needs; and a record that is lost, comes twice, or is of another place, does not go unseen.
RC_GTEST_PROP(TensorCheckTest, ChainedFollowsTheRecords, ()) {
  const auto dtype = *rc::gen::element(Dtype::kBool, Dtype::kF8E4M3, Dtype::kBF16, Dtype::kF32,
                                       Dtype::kI64, Dtype::kF4);
  const bool overwrite = *rc::gen::arbitrary<bool>();
  const bool known = *rc::gen::arbitrary<bool>();
  const std::size_t record_unit = overwrite ? 1 : UnitBytes(dtype);
  const std::size_t size = 8 * *rc::gen::inRange<std::size_t>(1, 20'000);
  const double density = *rc::gen::element(0.0002, 0.01, 0.5, 1.0);
  std::mt19937_64 random(*rc::gen::arbitrary<std::uint64_t>());
  std::vector<std::byte> before(size);
  for (std::byte& byte : before) byte = static_cast<std::byte>(random());
  std::vector<std::byte> after = before;
  after[random() % size] ^= std::byte{1};
  std::bernoulli_distribution change(density);
  for (std::byte& byte : after) {
    if (change(random)) byte = static_cast<std::byte>(random());
  }

  const std::size_t unit = DigestUnitBytes(dtype);
  TensorCheck::Expected expected;
  expected.digest = tensor::DigestOf(after, unit);
  if (known) expected.digest_before = tensor::DigestOf(before, unit);
  TensorCheck right(VerifyBy::kChained, expected, dtype);
  TensorCheck lost(VerifyBy::kChained, expected, dtype);
  TensorCheck doubled(VerifyBy::kChained, expected, dtype);
  TensorCheck moved(VerifyBy::kChained, expected, dtype);
  bool changed = false;
  for (std::size_t at = 0; at < size; at += delta::kBlockBytes) {
    const std::size_t bytes = std::min(delta::kBlockBytes, size - at);
    std::vector<std::byte> block(before.begin() + static_cast<std::ptrdiff_t>(at),
                                 before.begin() + static_cast<std::ptrdiff_t>(at + bytes));
    for (TensorCheck* check : {&right, &lost, &doubled, &moved}) check->Old(block, at);
    delta::BlockPatch patch(
        overwrite ? delta::BlockPatch::Kind::kSet : delta::BlockPatch::Kind::kXor, record_unit);
    for (std::size_t i = 0; i < bytes / record_unit; ++i) {
      const std::byte* from = &before[at + i * record_unit];
      const std::byte* to = &after[at + i * record_unit];
      if (std::equal(from, from + record_unit, to)) continue;
      if (overwrite) {
        patch.Add(i, base::Load<std::uint8_t>(to));
      } else if (record_unit == 1) {
        patch.Add(i, static_cast<std::uint8_t>(*from ^ *to));
      } else {
        patch.Add(i, static_cast<std::uint16_t>(base::Load<std::uint16_t>(from) ^
                                                base::Load<std::uint16_t>(to)));
      }
    }
    std::vector<std::byte> record;
    patch.Apply(block, at, 1, record);
    right.New(block, at, record);
    lost.New(block, at, changed ? ByteSpan(record) : ByteSpan());
    if (!record.empty() && !changed) doubled.New(block, at, record);
    doubled.New(block, at, record);
    std::vector<std::byte> elsewhere = record;
    if (!record.empty() && !changed) {
      base::Store(elsewhere.data(), at + 7 * delta::kBlockBytes);
    }
    moved.New(block, at, elsewhere);
    changed = changed || !record.empty();
  }
  RC_ASSERT(changed);
  RC_ASSERT(!right.Mismatch());
  RC_ASSERT(lost.Mismatch());
  RC_ASSERT(doubled.Mismatch());
  RC_ASSERT(moved.Mismatch());
}

// A replica, and deltas to which the digests of their tensors are given by hand.
class DigestPullTest : public testing::TestWithParam<delta::Encoding> {
 protected:
  DigestPullTest() {
    Add("big", Dtype::kBF16, {300, 500});
    Add("count", Dtype::kI64, {9});
    Add("mask", Dtype::kBool, {70'001});
    Add("norm", Dtype::kF32, {333});
    publisher_.emplace(
        store::Publisher::Open(files, store_, store::MakeMemoryBaseline(), false,
                               {.encoding = GetParam(), .durable = false, .threads = 2})
            .value());
    for (int version = 0; version <= 4; ++version) {
      if (version > 0) Step(0.01);
      std::vector<TensorView> views = views_;
      for (std::size_t i = 0; i < views.size(); ++i) views[i].bytes = bytes_[i];
      EXPECT_OK(publisher_->Publish(std::nullopt, views, false, progress_));
      versions_.push_back(bytes_);
    }
    EXPECT_OK(PullTo(0));
  }

  void Add(std::string name, Dtype dtype, std::vector<std::uint64_t> shape) {
    views_.push_back({std::move(name), dtype, std::move(shape), {}});
    bytes_.emplace_back(ByteCount(dtype, views_.back().shape).value());
  }
  // The first bytes of each tensor change in every version, its last ones in none.
  void Step(double density) {
    std::bernoulli_distribution change(density);
    for (auto& bytes : bytes_) {
      bytes[2] ^= std::byte{0x5a};
      for (std::byte& byte : std::span(bytes).first(bytes.size() - 8)) {
        if (change(random_)) byte = static_cast<std::byte>(random_());
      }
    }
  }
  Result<PullReport> PullTo(std::uint64_t version, VerifyBy verify = VerifyBy::kHash) {
    return Pull(files, store_, into_, {.version = version, .verify = verify, .threads = 2});
  }

  Digest DigestIn(std::uint64_t version, std::size_t tensor) const {
    return tensor::DigestOf(versions_[version][tensor], DigestUnitBytes(views_[tensor].dtype));
  }
  // All tensors change in every version, so they are those of `views_`.
  Version WithDigests(std::uint64_t number) const {
    Version version = store::ReadVersion(files, store_, number).value();
    EXPECT_EQ(version.tensors.size(), views_.size());
    for (std::size_t i = 0; i < views_.size(); ++i) {
      version.tensors[i].digest = DigestIn(number, i);
    }
    return version;
  }

  Head HeadNow() const { return ReplicaState(files, into_).ReadHead().value().value(); }
  Result<ApplyCounts> Apply(const std::vector<Version>& chain, VerifyBy verify,
                            FileSystem& fs = files) {
    const ReplicaState state(fs, into_);
    Head head = HeadNow();
    // As a pull does: only the last one can be undone.
    SYNCLINE_ASSIGN(Journals journals, Journals::Open(state));
    SYNCLINE_TRY(journals.RemoveOthers({}));
    SYNCLINE_TRY(fs.RemoveAll(state.Path("previous")));
    SYNCLINE_ASSIGN(const auto checkpoint, checkpoint::Checkpoint::Open(fs, into_));
    const HeldVersion to{.run = head.held.run};
    const auto arrival = store::Arrival::Ended(fs, store_, {});
    return ApplyChain(
        state, checkpoint, *arrival, chain, to, head, verify, [] { return base::Status(); }, pool_,
        progress_, nullptr);
  }

  void ExpectBytes(std::uint64_t version) const {
    ASSERT_OK_AND_ASSIGN(const auto marker, ReplicaState(files, into_).ReadMarker());
    ASSERT_TRUE(marker);
    EXPECT_EQ(marker->version, version);
    ASSERT_OK_AND_ASSIGN(const auto mapped, checkpoint::MappedCheckpoint::Open(files, into_));
    for (std::size_t i = 0; i < views_.size(); ++i) {
      EXPECT_TRUE(std::ranges::equal(mapped.Bytes(*mapped.checkpoint().Find(views_[i].name)),
                                     versions_[version][i]))
          << views_[i].name << " of version " << version;
    }
  }
  void ExpectAt(std::uint64_t version) const {
    ExpectBytes(version);
    EXPECT_OK(Verify(files, into_, {.threads = 2}));
  }
  void ExpectDigests(std::uint64_t version) const {
    const Head head = HeadNow();
    EXPECT_EQ(head.digests.size(), views_.size());
    for (std::size_t i = 0; i < views_.size(); ++i) {
      EXPECT_EQ(head.digests.at(views_[i].name), DigestIn(version, i)) << views_[i].name;
    }
  }
  // Of tensor "big", from its start.
  void FlipByte(std::uint64_t offset) const {
    ASSERT_OK_AND_ASSIGN(const auto checkpoint, checkpoint::Checkpoint::Open(files, into_));
    const std::uint64_t at = checkpoint.Find("big")->offset + offset;
    ASSERT_OK_AND_ASSIGN(const auto file,
                         files.Open(into_ + "/model.safetensors", base::OpenMode::kReadWrite));
    std::array<std::byte, 1> byte;
    ASSERT_OK(base::ReadExactly(*file, byte, at));
    byte[0] ^= std::byte{1};
    ASSERT_OK(file->WriteAt(byte, at));
  }

  const base::TempDir dir_{base::TempDir::MemoryFolder()};
  const std::string store_ = dir_ / "store";
  const std::string into_ = dir_ / "replica";
  std::mt19937 random_{7};
  std::vector<TensorView> views_;
  std::vector<std::vector<std::byte>> bytes_;
  std::vector<std::vector<std::vector<std::byte>>> versions_;
  base::Progress progress_;
  base::ThreadPool pool_{2};
  std::optional<store::Publisher> publisher_;
};

INSTANTIATE_TEST_SUITE_P(Encodings, DigestPullTest,
                         testing::Values(delta::Encoding::kXor, delta::Encoding::kOverwrite),
                         [](const auto& tested) { return std::string(Name(tested.param)); });

TEST_P(DigestPullTest, EachWayAcceptsWhatWasPublished) {
  for (const VerifyBy by : kAll) {
    ASSERT_OK(PullTo(0));
    EXPECT_TRUE(HeadNow().digests.empty());  // nothing is kept over a seed
    for (std::uint64_t number = 1; number <= 4; ++number) {
      ASSERT_OK(Apply({WithDigests(number)}, by));
      ExpectAt(number);
      ExpectDigests(number);
    }
  }
}

TEST_P(DigestPullTest, EachWayRefusesWhatWasNot) {
  for (const std::uint64_t from : {0, 1}) {  // without and with known digests
    if (from == 1) ASSERT_OK(Apply({WithDigests(1)}, VerifyBy::kHash));
    Version wrong = WithDigests(from + 1);
    wrong.tensors[3].hash = std::string(32, '0');
    EXPECT_ERROR(Apply({wrong}, VerifyBy::kHash), Code::kChecksumMismatch,
                 "expected 00000000000000000000000000000000)");
    ExpectAt(from);
    wrong = WithDigests(from + 1);
    wrong.tensors[3].digest->high ^= 1;
    const std::string expected = wrong.tensors[3].digest->Hex();
    const std::string found = DigestIn(from + 1, 3).Hex();
    EXPECT_ERROR(Apply({wrong}, VerifyBy::kChained), Code::kChecksumMismatch,
                 "norm (its chained digest is " + found + ", expected " + expected + ")");
    ExpectAt(from);
    EXPECT_ERROR(Apply({wrong}, VerifyBy::kFull), Code::kChecksumMismatch,
                 "norm (its digest is " + found + ", expected " + expected + ")");
    ExpectAt(from);
  }
}

// The changes of another version, under the right digest.
TEST_P(DigestPullTest, AWrongFrameIsRefused) {
  for (const VerifyBy by : kAll) {
    Version wrong = WithDigests(2);
    Version right = WithDigests(1);
    for (std::size_t i = 0; i < views_.size(); ++i) {
      wrong.tensors[i].hash = right.tensors[i].hash;
      wrong.tensors[i].digest = right.tensors[i].digest;
    }
    EXPECT_ERROR(Apply({wrong}, by), Code::kChecksumMismatch, "mismatch for 4 tensors");
    ExpectAt(0);
  }
}

// Of deltas that are applied as one only the last digest of a tensor counts.
TEST_P(DigestPullTest, FoldedDeltas) {
  for (const VerifyBy by : kAll) {
    ASSERT_OK(PullTo(0));
    ASSERT_OK(Apply({WithDigests(1)}, by));
    std::vector<Version> chain = {WithDigests(2), WithDigests(3), WithDigests(4)};
    for (store::DeltaTensor& tensor : chain.front().tensors) tensor.digest = Digest{1, 2};
    ASSERT_OK(Apply(chain, by));
    ExpectAt(4);
    ExpectDigests(4);
    if (by == VerifyBy::kHash) continue;
    ASSERT_OK(Undo(files, into_, {}));
    chain.back().tensors[1].digest->low ^= 1;
    EXPECT_ERROR(Apply(chain, by), Code::kChecksumMismatch, "for 1 tensors: count (");
    ExpectAt(1);
  }
}

// The digests of the head are those of what is held, or are not there.
TEST_P(DigestPullTest, TheHeadForgetsDigestsThatItCannotKnow) {
  ASSERT_OK(Apply({WithDigests(1)}, VerifyBy::kHash));
  Version second = WithDigests(2);
  second.tensors[0].digest.reset();
  ASSERT_OK(Apply({second}, VerifyBy::kHash));
  Head head = HeadNow();
  EXPECT_EQ(head.digests.size(), 3U);
  EXPECT_FALSE(head.digests.contains("big"));
  EXPECT_EQ(head.digests.at("norm"), DigestIn(2, 3));
  ASSERT_OK(Undo(files, into_, {}));
  EXPECT_TRUE(HeadNow().digests.empty());
  ASSERT_OK(Apply({WithDigests(2)}, VerifyBy::kChained));
  ExpectDigests(2);
  ExpectAt(2);
}

// A machine's fault ends the writing, and putting back too: what the next one completes has no
// digests.
TEST_P(DigestPullTest, AnInterruptedApplyIsCompletedWithoutDigests) {
  ASSERT_OK(Apply({WithDigests(1)}, VerifyBy::kHash));
  base::FaultyFileSystem faulty(files);
  std::atomic<int> writes = 0;
  faulty.SetRule([&](std::string_view operation, const std::string& path) -> base::Status {
    if (operation != "write" || !path.ends_with("model.safetensors") || writes++ < 1) return {};
    return base::Fail(Code::kIo, "the disk is gone");
  });
  EXPECT_ERROR(Apply({WithDigests(2)}, VerifyBy::kChained, faulty), Code::kIo, "is gone");
  ASSERT_OK(Verify(files, into_, {.repair = true, .threads = 2}));
  ExpectAt(2);
  EXPECT_TRUE(HeadNow().digests.empty());
  ASSERT_OK(Apply({WithDigests(3)}, VerifyBy::kChained));
  ExpectAt(3);
  ExpectDigests(3);
}

// What chained means: a base that was wrong where nothing changes stays wrong, and only a look at
// it tells.
TEST_P(DigestPullTest, ChainedSaysNothingOfWhatDoesNotChange) {
  ASSERT_OK(Apply({WithDigests(1)}, VerifyBy::kHash));
  const std::uint64_t untouched = versions_[0][0].size() - 3;
  FlipByte(untouched);
  for (const VerifyBy by : {VerifyBy::kHash, VerifyBy::kFull}) {
    ASSERT_OK_AND_ASSIGN(const ApplyCounts counts, Apply({WithDigests(2)}, by));
    EXPECT_THAT(counts.damaged, testing::ElementsAre("big"));
  }
  ASSERT_OK_AND_ASSIGN(const ApplyCounts counts, Apply({WithDigests(2)}, VerifyBy::kChained));
  EXPECT_TRUE(counts.damaged.empty());
  EXPECT_ERROR(Verify(files, into_, {.threads = 2}), Code::kChecksumMismatch, "big");
  FlipByte(untouched);
  ExpectAt(2);
  // Where no digest is known, all of the old tensor is looked at.
  ASSERT_OK(Undo(files, into_, {}));
  FlipByte(untouched);
  ASSERT_OK_AND_ASSIGN(const ApplyCounts all, Apply({WithDigests(2)}, VerifyBy::kChained));
  EXPECT_THAT(all.damaged, testing::ElementsAre("big"));
}

TEST_P(DigestPullTest, WithoutDigestsItIsRefusedBeforeAnythingMoves) {
  for (const VerifyBy by : {VerifyBy::kChained, VerifyBy::kFull}) {
    base::FaultyFileSystem counting(files);
    std::atomic<int> reads = 0;
    counting.SetRule([&](std::string_view operation, const std::string& path) -> base::Status {
      if (operation == "read" && path.find("weight_v") != std::string::npos &&
          path.ends_with(".safetensors")) {
        ++reads;
      }
      return {};
    });
    EXPECT_ERROR(Pull(counting, store_, into_, {.version = 2, .verify = by, .threads = 2}),
                 Code::kIncompatible,
                 "version 1: its encoding, " + std::string(delta::Name(GetParam())) +
                     ", carries no digest, which verifying by \"" + std::string(Name(by)) +
                     "\" needs");
    EXPECT_EQ(reads, 0);
    ExpectAt(0);
    std::vector<Version> chain = {WithDigests(1), WithDigests(2)};
    chain[0].tensors[3].digest.reset();
    EXPECT_ERROR(Apply(chain, by), Code::kIncompatible, "version 1: tensor norm comes with no");
    ExpectAt(0);
    ASSERT_OK(PullTo(0, by));  // a full version needs none
  }
}

}  // namespace
}  // namespace syncline::replica
