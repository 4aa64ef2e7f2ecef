// Folds: making them, and readers that take them or do better without.
#include "replica/fold.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>

#include "base/faulty_file_system.h"
#include "base/result_matchers.h"
#include "base/temp_dir.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/writer.h"
#include "objects/test_server.h"
#include "replica/changes.h"
#include "replica/replica.h"
#include "replica/state.h"
#include "store/history.h"
#include "store/publisher.h"

namespace syncline::replica {
namespace {

using base::Code;
using base::FileSystem;
using base::Result;
using delta::Encoding;
using tensor::Dtype;
using tensor::TensorView;
using testing::ElementsAre;
using testing::IsEmpty;

FileSystem& files = FileSystem::Posix();

// Readers say what they make of bad folds, which is not of interest here.
const int quiet = setenv("SYNCLINE_LOG", "off", 0);

// A trainer with a store, and what each of its versions looked like.
class Trainer {
 public:
  explicit Trainer(Encoding encoding = Encoding::kXor, unsigned seed = 7) : random_(seed) {
    encoding_ = encoding;
    Add("big", Dtype::kBF16, {70, 500});  // more than a block
    Add("empty", Dtype::kBF16, {2, 0});
    Add("mask", Dtype::kU8, {7});
    Add("norm", Dtype::kF32, {33});
    Add("still", Dtype::kF32, {5});  // never changes
    Open();
  }

  void Open(const std::string& key = "") {
    publisher_.reset();
    auto baseline = store::MakeMemoryBaseline();
    base::ThreadPool pool(1);
    if (!versions_.empty()) ASSERT_OK(baseline->Advance(0, views(), {}, pool));
    auto opened = store::Publisher::Open(
        files, store(), std::move(baseline), based_,
        {.encoding = encoding_, .signing_key = key, .durable = false, .threads = 1});
    ASSERT_OK(opened);
    publisher_.emplace(*std::move(opened));
  }

  // Version 0 is a checkpoint outside of the store.
  void StartAtSeed() {
    base::ThreadPool pool(1);
    ASSERT_OK(files.MakeDirectories(seed()));
    ASSERT_OK(checkpoint::WriteCheckpoint(files, seed(), views(), {}, pool, progress_, nullptr));
    versions_.push_back(bytes_);
    based_ = true;
    Open();
  }

  // Changes all but the last tensor, each with that probability.
  void Step(double tensors = 1) {
    std::bernoulli_distribution change(tensors);
    for (std::size_t i = 0; i + 1 < bytes_.size(); ++i) {
      if (bytes_[i].empty() || !change(random_)) continue;
      for (std::size_t count = 1 + bytes_[i].size() / 100; count > 0; --count) {
        bytes_[i][random_() % bytes_[i].size()] = static_cast<std::byte>(random_());
      }
    }
  }
  void TakeBackTo(std::uint64_t version) { bytes_ = versions_[version]; }
  void Publish(bool full = false) {
    ASSERT_OK(publisher_->Publish(std::nullopt, views(), full, progress_));
    versions_.push_back(bytes_);
  }
  void PublishUpTo(std::uint64_t last) {
    while (versions_.size() <= last) {
      if (!versions_.empty()) Step();
      Publish();
    }
  }
  // The trainer begins anew, as another run.
  void BeginAnew() {
    publisher_.reset();
    versions_.clear();
    Step();
  }
  // The trainer goes back: what came after that version is taken out of the store.
  void GoBackTo(std::uint64_t version) {
    publisher_.reset();
    while (versions_.size() > version + 1) {
      versions_.pop_back();
      Remove({versions_.size()});
    }
    TakeBackTo(version);
    Open();
  }
  void Remove(std::initializer_list<std::uint64_t> versions) const {
    for (const std::uint64_t version : versions) {
      ASSERT_OK(files.RemoveAll(base::JoinPath(store(), store::VersionName(version))));
    }
  }

  Result<FoldReport> MakeFold(std::uint64_t from, std::uint64_t to, FoldOptions options = {},
                              FileSystem& fs = files) const {
    if (!fold_otherwise_) options.encoding = encoding_;
    options.from = from;
    options.to = to;
    options.durable = false;
    options.threads = 2;
    return Fold(fs, store(), options);
  }
  Result<PullReport> PullTo(std::uint64_t version, PullOptions options = {},
                            FileSystem& fs = files) const {
    options.version = version;
    options.threads = 2;
    return Pull(fs, store(), replica(), options);
  }

  // Folds have the encoding that their options say, and not that of the versions.
  void FoldOtherwise() { fold_otherwise_ = true; }

  // Is the replica exactly that version, by its marker and by its bytes?
  void ExpectAt(std::uint64_t version) const {
    ASSERT_OK_AND_ASSIGN(const auto marker, ReplicaState(files, replica()).ReadMarker());
    ASSERT_TRUE(marker.has_value());
    EXPECT_EQ(marker->version, version);
    ASSERT_OK_AND_ASSIGN(const auto mapped, checkpoint::MappedCheckpoint::Open(files, replica()));
    for (std::size_t i = 0; i < views_.size(); ++i) {
      const auto* tensor = mapped.checkpoint().Find(views_[i].name);
      ASSERT_NE(tensor, nullptr);
      EXPECT_TRUE(std::ranges::equal(mapped.Bytes(*tensor), versions_[version][i]))
          << views_[i].name << " of version " << version;
    }
    EXPECT_OK(Verify(files, replica(), {.threads = 1}));
  }
  // Does the store hold these folds, and nothing half-made?
  void ExpectFolds(const std::vector<std::string>& folds) const {
    std::vector<std::string> found;
    ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names, files.List(store()));
    for (const std::string& name : names) {
      if (name.starts_with("fold")) found.push_back(name);
    }
    EXPECT_EQ(found, folds);
    ASSERT_OK_AND_ASSIGN(const auto own, files.List(base::JoinPath(store(), ".syncline")));
    for (const std::string& name : own) {
      EXPECT_TRUE(name != "folding" && name != "fold-work") << name;
    }
    if (const auto leases = files.List(base::JoinPath(store(), ".syncline/leases"))) {
      EXPECT_THAT(*leases, IsEmpty());
    }
  }
  std::string FoldFile(std::uint64_t from, std::uint64_t to) const {
    return base::JoinPath(store(), store::FoldName({from, to})) +
           (encoding_ == Encoding::kCompact ? "/delta-00000.syncline"
                                            : "/model-00000-of-00001.safetensors");
  }

  std::string store() const { return dir_ / "store"; }
  std::string replica() const { return dir_ / "replica"; }
  std::string seed() const { return dir_ / "seed"; }
  std::string other(std::string_view name) const { return dir_ / name; }

 private:
  void Add(std::string name, Dtype dtype, std::vector<std::uint64_t> shape) {
    views_.push_back({std::move(name), dtype, std::move(shape), {}});
    bytes_.emplace_back(ByteCount(dtype, views_.back().shape).value());
    for (std::byte& byte : bytes_.back()) byte = static_cast<std::byte>(random_());
  }
  std::vector<TensorView> views() const {
    std::vector<TensorView> views = views_;
    for (std::size_t i = 0; i < views.size(); ++i) views[i].bytes = bytes_[i];
    return views;
  }

  using Bytes = std::vector<std::vector<std::byte>>;
  const base::TempDir dir_{base::TempDir::MemoryFolder()};
  Encoding encoding_;
  std::mt19937 random_;
  std::vector<TensorView> views_;
  Bytes bytes_;
  std::vector<Bytes> versions_;
  bool based_ = false;
  bool fold_otherwise_ = false;
  base::Progress progress_;
  std::optional<store::Publisher> publisher_;
};

void FlipByte(const std::string& path, std::uint64_t from_end) {
  ASSERT_OK_AND_ASSIGN(const auto file, files.Open(path, base::OpenMode::kReadWrite));
  ASSERT_OK_AND_ASSIGN(const base::FileInfo info, file->Stat());
  std::array<std::byte, 1> byte;
  ASSERT_OK(base::ReadExactly(*file, byte, info.size - from_end));
  byte[0] ^= std::byte{1};
  ASSERT_OK(file->WriteAt(byte, info.size - from_end));
}

class FoldTest : public testing::TestWithParam<Encoding> {};

INSTANTIATE_TEST_SUITE_P(Encodings, FoldTest,
                         testing::Values(Encoding::kXor, Encoding::kOverwrite, Encoding::kCompact),
                         [](const auto& of) { return std::string(Name(of.param)); });

TEST_P(FoldTest, LeadsOverVersionsAndIsUndoneAsOne) {
  Trainer trainer(GetParam());
  trainer.PublishUpTo(6);
  ASSERT_OK_AND_ASSIGN(const FoldReport fold, trainer.MakeFold(1, 5));
  EXPECT_EQ(fold.tensors, 5U);
  EXPECT_EQ(fold.tensors_changed, 3U);
  EXPECT_LT(fold.bytes, fold.bytes_without);
  trainer.ExpectFolds({"fold_v000001_v000005"});
  ASSERT_OK(trainer.PullTo(1));
  ASSERT_OK_AND_ASSIGN(const PullReport report, trainer.PullTo(6));
  EXPECT_THAT(report.applied, ElementsAre(5, 6));
  trainer.ExpectAt(6);
  ASSERT_OK_AND_ASSIGN(const auto changes, ChangesSince(files, trainer.replica(), 1));
  EXPECT_FALSE(changes.everything);
  EXPECT_EQ(changes.tensors.size(), 3U);
  ASSERT_OK_AND_ASSIGN(const UndoReport undone, Undo(files, trainer.replica(), {}));
  EXPECT_EQ(undone.version, 1U);
  trainer.ExpectAt(1);
  // Who is elsewhere goes the plain way.
  ASSERT_OK(trainer.PullTo(2));
  ASSERT_OK_AND_ASSIGN(const PullReport plain, trainer.PullTo(5));
  EXPECT_THAT(plain.applied, ElementsAre(3, 4, 5));
  trainer.ExpectAt(5);
  // It is no version for anybody.
  EXPECT_EQ(store::ListVersions(files, trainer.store()).value().size(), 7U);
  ASSERT_OK_AND_ASSIGN(const VerifyReport verified, Verify(files, trainer.store(), {}));
  EXPECT_EQ(verified.folds, 1U);
  EXPECT_EQ(verified.versions.size(), 7U);
  trainer.Open();
  trainer.PublishUpTo(7);
  ASSERT_OK(trainer.PullTo(7));
  trainer.ExpectAt(7);
}

TEST_P(FoldTest, StandsInForVersionsThatAreGone) {
  Trainer trainer(GetParam());
  trainer.PublishUpTo(6);
  ASSERT_OK(trainer.MakeFold(0, 5));
  ASSERT_OK(trainer.MakeFold(2, 6));
  ASSERT_OK(trainer.PullTo(2));
  trainer.Remove({1, 2, 3, 4});
  // From what is held, though the store does not have it any more.
  ASSERT_OK_AND_ASSIGN(const PullReport held, trainer.PullTo(6));
  EXPECT_THAT(held.applied, ElementsAre(6));
  EXPECT_FALSE(held.seeded);
  trainer.ExpectAt(6);
  // By a full version and a fold; damage is healed the same way.
  ASSERT_OK(files.RemoveAll(trainer.replica()));
  ASSERT_OK_AND_ASSIGN(const PullReport fresh, trainer.PullTo(6));
  EXPECT_EQ(fresh.seeded_from, 0U);
  EXPECT_THAT(fresh.applied, ElementsAre(5, 6));
  trainer.ExpectAt(6);
  FlipByte(trainer.replica() + "/model.safetensors", 100);
  ASSERT_OK(Verify(files, trainer.replica(), {.repair = true}));
  trainer.ExpectAt(6);
  ASSERT_OK(Verify(files, trainer.store(), {.version = 5}));
}

TEST_P(FoldTest, ABadFoldIsRefusedBeforeAnythingMoves) {
  for (const bool manifest : {false, true}) {
    Trainer trainer(GetParam());
    trainer.PublishUpTo(4);
    ASSERT_OK(trainer.MakeFold(1, 4));
    ASSERT_OK(trainer.PullTo(1));
    if (manifest) {
      ASSERT_OK(base::WriteTextAtomically(
          files, trainer.store() + "/fold_v000001_v000004/syncline.manifest.json", "{", false));
    } else {
      FlipByte(trainer.FoldFile(1, 4), 3);
    }
    ASSERT_FALSE(Verify(files, trainer.store(), {}).has_value());
    ASSERT_OK_AND_ASSIGN(const PullReport report, trainer.PullTo(4));
    EXPECT_THAT(report.applied, ElementsAre(2, 3, 4));
    trainer.ExpectAt(4);
    ASSERT_OK(Undo(files, trainer.replica(), {}));
    trainer.Remove({2, 3});
    // Without another way: told, and nothing has moved.
    const auto failed = trainer.PullTo(4);
    ASSERT_FALSE(failed.has_value());
    EXPECT_EQ(failed.error().code, manifest ? Code::kNotFound : Code::kChecksumMismatch);
    EXPECT_THAT(failed.error().message, testing::HasSubstr("lacks versions 2–3"));
    trainer.ExpectAt(1);
  }
}

// A fold whose files are those of its manifest, but do not make what they should.
TEST_P(FoldTest, AFoldThatLeadsElsewhereIsRefused) {
  Trainer trainer(GetParam());
  trainer.PublishUpTo(4);
  ASSERT_OK(trainer.MakeFold(0, 3));
  ASSERT_OK(trainer.MakeFold(1, 4));
  const std::string folder = trainer.store() + "/fold_v000001_v000004";
  // The other one's frames under this one's name, in a manifest that fits them.
  ASSERT_OK_AND_ASSIGN(const std::string frames,
                       base::ReadText(files, trainer.FoldFile(0, 3), 1 << 20));
  ASSERT_OK(base::WriteTextAtomically(files, trainer.FoldFile(1, 4), frames, false));
  ASSERT_OK_AND_ASSIGN(const auto read, store::ReadManifest(files, folder));
  store::Manifest manifest = read->manifest;
  base::ThreadPool pool(1);
  std::vector<std::string> names;
  for (const auto& file : manifest.files) names.push_back(file.name);
  ASSERT_OK_AND_ASSIGN(manifest.files, store::ListFiles(files, folder, names, pool, nullptr));
  ASSERT_OK_AND_ASSIGN(const auto other,
                       store::ReadManifest(files, trainer.store() + "/fold_v000000_v000003"));
  const bool in_files = GetParam() == Encoding::kCompact;  // the manifests know no hashes
  EXPECT_EQ(manifest.tensors_in_files, in_files);
  EXPECT_EQ(manifest.tensors.empty(), in_files);
  for (std::size_t i = 0; i < manifest.tensors.size(); ++i) {
    manifest.tensors[i].hash = other->manifest.tensors[i].hash;
  }
  const auto write = [&] {
    return base::WriteTextAtomically(files, folder + "/" + std::string(store::kManifestName),
                                     store::ManifestText(manifest), false);
  };
  // Its hashes are not those of version 4, so nobody even opens it …
  ASSERT_OK(write());
  ASSERT_OK(trainer.PullTo(1));
  ASSERT_OK_AND_ASSIGN(const PullReport plain, trainer.PullTo(4));
  EXPECT_THAT(plain.applied, ElementsAre(2, 3, 4));
  trainer.ExpectAt(4);
  // … nor where they are, but its files say something else.
  ASSERT_OK(Undo(files, trainer.replica(), {}));
  manifest.tensors = read->manifest.tensors;
  ASSERT_OK(write());
  ASSERT_OK_AND_ASSIGN(const PullReport again, trainer.PullTo(4));
  EXPECT_THAT(again.applied, ElementsAre(2, 3, 4));
  trainer.ExpectAt(4);
}

TEST_P(FoldTest, OfAnotherRunIsNotTaken) {
  Trainer trainer(GetParam());
  trainer.PublishUpTo(4);
  ASSERT_OK(trainer.MakeFold(1, 4));
  const std::string fold = trainer.store() + "/fold_v000001_v000004";
  ASSERT_OK(files.Rename(fold, trainer.other("kept")));
  trainer.BeginAnew();
  ASSERT_OK(files.RemoveAll(trainer.store()));
  trainer.Open();
  trainer.PublishUpTo(4);
  ASSERT_OK(files.Rename(trainer.other("kept"), fold));
  ASSERT_OK(trainer.PullTo(1));
  ASSERT_OK_AND_ASSIGN(const PullReport report, trainer.PullTo(4));
  EXPECT_THAT(report.applied, ElementsAre(2, 3, 4));
  trainer.ExpectAt(4);
  ASSERT_OK_AND_ASSIGN(const auto source, store::Source::Open(files, trainer.store(), {}));
  ASSERT_OK_AND_ASSIGN(const auto folds, store::ReadFolds(*source));
  ASSERT_EQ(folds.size(), 1U);
  EXPECT_THAT(folds[0].fault, testing::HasSubstr("leads to another version 4"));
  EXPECT_OK(Verify(files, trainer.store(), {}));
  // Nor does a version's folder become one by its name.
  ASSERT_OK(files.RemoveAll(fold));
  ASSERT_OK(files.Rename(trainer.store() + "/weight_v000004", fold));
  EXPECT_ERROR(trainer.PullTo(4), Code::kNotFound, "version 4 is not in");
}

// Of the same run, on the very version that is held, but to one that is not there any more.
TEST_P(FoldTest, ToAVersionThatWasMadeAnewIsNotTaken) {
  Trainer trainer(GetParam());
  trainer.PublishUpTo(4);
  ASSERT_OK(trainer.MakeFold(1, 4));
  trainer.GoBackTo(2);
  trainer.PublishUpTo(4);
  ASSERT_OK(trainer.PullTo(1));
  ASSERT_OK_AND_ASSIGN(const PullReport report, trainer.PullTo(4));
  EXPECT_THAT(report.applied, ElementsAre(2, 3, 4));
  trainer.ExpectAt(4);
}

TEST_P(FoldTest, TheBaseIsProven) {
  Trainer trainer(GetParam());
  trainer.StartAtSeed();
  trainer.PublishUpTo(5);
  EXPECT_ERROR(trainer.MakeFold(2, 5), Code::kNotFound,
               "give the checkpoint or replica that is version 2 as base");
  ASSERT_OK(trainer.PullTo(2, {.seed = trainer.seed()}));
  const FoldOptions replica = {.base = trainer.replica()};
  EXPECT_ERROR(trainer.MakeFold(2, 5, {.base = trainer.seed()}), Code::kChecksumMismatch,
               "is not version 2");
  EXPECT_ERROR(trainer.MakeFold(1, 5, replica), Code::kOutOfOrder,
               "holds version 2, expected version 1");
  EXPECT_ERROR(trainer.MakeFold(2, 5, {.base = trainer.other("nothing")}), Code::kNotFound,
               "nothing");
  trainer.ExpectFolds({});
  ASSERT_OK(trainer.MakeFold(2, 5, replica));
  ASSERT_OK(
      trainer.MakeFold(0, 5, {.base = trainer.seed(), .work_directory = trainer.other("work")}));
  EXPECT_THAT(files.List(trainer.other("work")).value(), IsEmpty());
  trainer.ExpectFolds({"fold_v000000_v000005", "fold_v000002_v000005"});
  ASSERT_OK_AND_ASSIGN(const PullReport held, trainer.PullTo(5));
  EXPECT_THAT(held.applied, ElementsAre(5));
  trainer.ExpectAt(5);
  ASSERT_OK(files.RemoveAll(trainer.replica()));
  ASSERT_OK_AND_ASSIGN(const PullReport seeded, trainer.PullTo(5, {.seed = trainer.seed()}));
  EXPECT_THAT(seeded.applied, ElementsAre(5));
  trainer.ExpectAt(5);
  // Nothing says what a seed is; but what the first deltas make of a wrong one is not right.
  FlipByte(trainer.seed() + "/model.safetensors", 2000);
  EXPECT_ERROR(trainer.MakeFold(0, 4, {.base = trainer.seed()}), Code::kChecksumMismatch,
               "version 4 cannot be made from version 0");
  // The first of them may be gone, if a replica holds it.
  ASSERT_OK(files.RemoveAll(trainer.replica()));
  trainer.ExpectFolds({"fold_v000000_v000005", "fold_v000002_v000005"});
}

TEST_P(FoldTest, RefusesWhatMakesNoSense) {
  Trainer trainer(GetParam());
  trainer.PublishUpTo(3);
  EXPECT_ERROR(trainer.MakeFold(3, 1), Code::kInvalidArgument, "from version 3 to 1");
  EXPECT_ERROR(trainer.MakeFold(2, 3), Code::kInvalidArgument, "is a delta on version 2 already");
  EXPECT_ERROR(trainer.MakeFold(1, 9), Code::kNotFound, "version 9 is not in");
  EXPECT_ERROR(trainer.MakeFold(1, 3, {.signing_key = trainer.other("key")}), Code::kNotFound,
               "key");
  base::CancelToken cancel;
  cancel.Cancel();
  EXPECT_ERROR(trainer.MakeFold(1, 3, {.cancel = &cancel}), Code::kCancelled, "cancelled");
  trainer.ExpectFolds({});
  ASSERT_OK(trainer.MakeFold(1, 3));
  EXPECT_ERROR(trainer.MakeFold(1, 3), Code::kAlreadyExists, "fold_v000001_v000003 is in");
  ASSERT_OK_AND_ASSIGN(const auto lock, files.Lock(trainer.store() + "/.syncline/fold.lock",
                                                   base::LockMode::kExclusive, false));
  EXPECT_ERROR(trainer.MakeFold(0, 3), Code::kLocked, "another fold is at work");
}

TEST_P(FoldTest, ReadersWhoTrustKeysTakeSignedOnesOnly) {
  Trainer trainer(GetParam());
  const std::string key = trainer.other("key");
  ASSERT_OK(store::WriteKeyPair(files, key));
  trainer.Open(key);
  trainer.PublishUpTo(4);
  const PullOptions trusting = {.source = {.trusted_keys = {key + ".pub"}}};
  ASSERT_OK(trainer.MakeFold(1, 4));
  ASSERT_OK(trainer.PullTo(1, trusting));
  ASSERT_OK_AND_ASSIGN(const PullReport plain, trainer.PullTo(4, trusting));
  EXPECT_THAT(plain.applied, ElementsAre(2, 3, 4));
  ASSERT_OK(Undo(files, trainer.replica(), {}));
  ASSERT_OK(files.RemoveAll(trainer.store() + "/fold_v000001_v000004"));
  ASSERT_OK(trainer.MakeFold(1, 4, {.signing_key = key}));
  ASSERT_OK_AND_ASSIGN(const PullReport folded, trainer.PullTo(4, trusting));
  EXPECT_THAT(folded.applied, ElementsAre(4));
  trainer.ExpectAt(4);
}

// Each operation fails once: the store is then as it was, or the fold stands and that is told.
TEST_P(FoldTest, AFailureAnywhereLeavesNothingHalfMade) {
  Trainer trainer(GetParam());
  trainer.PublishUpTo(3);
  const std::string folder = trainer.store() + "/fold_v000001_v000003";
  std::size_t failures = 0;
  base::FaultyFileSystem faulty(files);
  for (const char* operation : {"open", "read", "write", "rename", "remove", "stat", "list",
                                "mkdir", "lock", "allocate", "map", "sync_directory"}) {
    for (std::size_t n = 0; true; ++n) {
      ASSERT_OK(files.RemoveAll(folder));
      bool hit = false;
      std::size_t left = n;
      faulty.SetRule([&](std::string_view asked, const std::string&) -> base::Status {
        if (hit || asked != operation || left-- > 0) return {};
        hit = true;
        return base::Fail(Code::kIo, "injected");
      });
      const auto made = trainer.MakeFold(1, 3, {}, faulty);
      faulty.SetRule(nullptr);
      if (!hit) break;
      ++failures;
      const bool stands = base::Exists(files, folder).value();
      // What only tidies up, or a lease, may fail unseen.
      EXPECT_TRUE(!made || stands) << operation << n;
      if (!made && stands) {
        EXPECT_THAT(made.error().message, testing::HasSubstr("stands")) << operation << n;
      }
      if (!stands) ASSERT_OK(trainer.MakeFold(1, 3));
      ASSERT_OK(Verify(files, trainer.store(), {}));
    }
  }
  EXPECT_GT(failures, 100U);
  ASSERT_OK(files.RemoveAll(folder));
  ASSERT_OK(files.RemoveAll(trainer.store() + "/.syncline/leases"));  // left by failures
  ASSERT_OK(trainer.MakeFold(1, 3));
  trainer.ExpectFolds({"fold_v000001_v000003"});
}

// Reading a fold fails at each operation: the reader ends at the old or the new version.
TEST_P(FoldTest, AFailureWhileAFoldIsReadLeavesOneVersionWhole) {
  Trainer trainer(GetParam());
  trainer.PublishUpTo(4);
  ASSERT_OK(trainer.MakeFold(1, 4));
  ASSERT_OK(trainer.PullTo(1));
  base::FaultyFileSystem faulty(files);
  std::size_t failures = 0;
  for (const char* operation : {"open", "read", "stat"}) {
    for (std::size_t n = 0; true; ++n) {
      bool hit = false;
      std::size_t left = n;
      faulty.SetRule([&](std::string_view asked, const std::string& path) -> base::Status {
        if (hit || asked != operation || !path.contains("fold_v") || left-- > 0) return {};
        hit = true;
        return base::Fail(Code::kIo, "injected");
      });
      const auto pulled = trainer.PullTo(4, {}, faulty);
      trainer.ExpectAt(pulled ? 4 : 1);
      if (!pulled) ASSERT_OK(trainer.PullTo(4));
      ASSERT_OK(Undo(files, trainer.replica(), {}));
      if (!hit) break;
      ++failures;
    }
  }
  EXPECT_GT(failures, 10U);
}

// Behind a server, and before a delta that is right: whatever is wrong with the fold, and when that
// is found.
TEST_P(FoldTest, ABadFoldThatIsFetchedIsLeftAlone) {
  Trainer trainer(GetParam());
  trainer.PublishUpTo(5);
  ASSERT_OK(trainer.MakeFold(1, 4));
  const objects::TestServer server(objects::ServeDirectory(trainer.store()));
  const std::string fold = trainer.FoldFile(1, 4);
  ASSERT_OK_AND_ASSIGN(const std::string right, base::ReadText(files, fold, 1 << 20));
  ASSERT_OK(trainer.PullTo(1));
  int looks = 0;  // one for each pull, and one for each time that something is waited for
  PullOptions options = {.version = 5, .threads = 2};
  options.source.wait_seconds = 0.5;
  options.source.before_read = [&](std::optional<std::uint64_t>) {
    ++looks;
    return base::Status();
  };
  const auto pull = [&] {
    looks = 0;
    return Pull(files, server.url(), trainer.replica(), options);
  };
  std::vector<std::optional<std::string>> wrong = {std::nullopt, right.substr(1), right + "x"};
  for (const std::size_t at :
       {std::size_t{0}, std::size_t{9}, right.size() / 2, right.size() - 1}) {
    wrong.emplace_back(right)->at(at) ^= 4;
  }
  for (const auto& text : wrong) {
    if (text) {
      ASSERT_OK(base::WriteTextAtomically(files, fold, *text, false));
    } else {
      ASSERT_OK(files.Remove(fold));
    }
    ASSERT_OK_AND_ASSIGN(const PullReport report, pull());
    EXPECT_EQ(looks, 1);
    EXPECT_THAT(report.applied, ElementsAre(2, 3, 4, 5));
    trainer.ExpectAt(5);
    ASSERT_OK(Undo(files, trainer.replica(), {}));
    // The same without a server.
    ASSERT_OK_AND_ASSIGN(const PullReport local, trainer.PullTo(5));
    EXPECT_THAT(local.applied, ElementsAre(2, 3, 4, 5));
    ASSERT_OK(Undo(files, trainer.replica(), {}));
    trainer.ExpectAt(1);
  }
  ASSERT_OK(base::WriteTextAtomically(files, fold, right, false));
  ASSERT_OK_AND_ASSIGN(const PullReport report, pull());
  EXPECT_THAT(report.applied, ElementsAre(4, 5));
  trainer.ExpectAt(5);
}

// A fold without digests, where the versions have them.
TEST(FoldsTest, AFoldThatCannotBeVerifiedAsAskedIsLeftAlone) {
  Trainer trainer(Encoding::kCompact);
  trainer.FoldOtherwise();
  trainer.PublishUpTo(4);
  ASSERT_OK(trainer.MakeFold(1, 4, {.encoding = Encoding::kXor}));
  ASSERT_OK(trainer.PullTo(1));
  ASSERT_OK_AND_ASSIGN(const PullReport plain, trainer.PullTo(4, {.verify = VerifyBy::kChained}));
  EXPECT_THAT(plain.applied, ElementsAre(2, 3, 4));
  ASSERT_OK(Undo(files, trainer.replica(), {}));
  ASSERT_OK(files.RemoveAll(trainer.store() + "/fold_v000001_v000004"));
  ASSERT_OK(trainer.MakeFold(1, 4, {.encoding = Encoding::kCompact}));
  ASSERT_OK_AND_ASSIGN(const PullReport folded, trainer.PullTo(4, {.verify = VerifyBy::kChained}));
  EXPECT_THAT(folded.applied, ElementsAre(4));
  trainer.ExpectAt(4);
}

// Whatever folds there are, a reader comes to what one delta after the other makes.
RC_GTEST_PROP(FoldProperty, LeadsWhereTheDeltasLead, ()) {
  const auto encoding = rc::gen::element(Encoding::kXor, Encoding::kOverwrite, Encoding::kCompact);
  Trainer trainer(*encoding, *rc::gen::inRange(0U, 1000U));
  trainer.FoldOtherwise();
  const bool seeded = *rc::gen::arbitrary<bool>();
  if (seeded) trainer.StartAtSeed();
  const auto last = *rc::gen::inRange<std::uint64_t>(4, 10);
  const auto held = *rc::gen::inRange<std::uint64_t>(0, last - 1);
  const auto target = *rc::gen::inRange<std::uint64_t>(held + 2, last + 1);
  for (std::uint64_t version = seeded ? 1 : 0; version <= last; ++version) {
    if (version > 1 && *rc::gen::inRange(0, 4) == 0) {
      trainer.TakeBackTo(version - 2);  // what changed comes back
    } else if (version > 0) {
      trainer.Step(0.5);
    }
    trainer.Publish(version > 0 && *rc::gen::inRange(0, 6) == 0);
  }
  const auto folds = *rc::gen::inRange(1, 4);
  for (int i = 0; i < folds; ++i) {
    const auto from = i == 0 ? held : *rc::gen::inRange<std::uint64_t>(0, last);
    const auto to = *rc::gen::inRange<std::uint64_t>(from + 1, (i == 0 ? target : last) + 1);
    std::string base;
    if (seeded) {
      base = trainer.other("base");
      RC_ASSERT(files.RemoveAll(base).has_value());
      RC_ASSERT(Pull(files, trainer.store(), base,
                     {.version = from, .seed = trainer.seed(), .threads = 1})
                    .has_value());
    }
    const auto made = trainer.MakeFold(from, to, {.base = base, .encoding = *encoding});
    RC_CLASSIFY(made.has_value(), "a fold");
    const bool fine = made || made.error().code == Code::kAlreadyExists ||
                      made.error().code == Code::kInvalidArgument;
    if (!fine) RC_FAIL(made.error().message);
  }
  for (const std::uint64_t version : {held, target}) {
    const auto pulled = trainer.PullTo(version, {.seed = seeded ? trainer.seed() : ""});
    if (!pulled) RC_FAIL(pulled.error().message);
    RC_CLASSIFY(version == target && !pulled->seeded && pulled->applied.size() < target - held,
                "by a fold");
    trainer.ExpectAt(version);
  }
  RC_ASSERT(Verify(files, trainer.store(), {}).has_value());
}

}  // namespace
}  // namespace syncline::replica
