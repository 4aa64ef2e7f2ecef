// Several ranks as threads, each with a publisher of its own.
#include "store/rank_group.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <thread>

#include "base/faulty_file_system.h"
#include "base/result_matchers.h"
#include "base/temp_dir.h"
#include "checkpoint/checkpoint.h"
#include "store/publisher.h"
#include "store/version_digests.h"
#include "tensor/hash.h"

namespace syncline::store {
namespace {

using base::CancelToken;
using base::Code;
using base::FileSystem;
using base::Result;
using base::Status;
using tensor::Dtype;
using tensor::TensorView;

FileSystem& files = FileSystem::Posix();

struct Tensor {
  std::string name;
  std::vector<std::byte> bytes;
};

class RanksTest : public testing::TestWithParam<delta::Encoding> {
 protected:
  static constexpr std::uint64_t kWorld = 3;

  RanksTest() {
    for (std::uint64_t rank = 0; rank < kWorld; ++rank) {
      for (int i = 0; i < 3; ++i) Add(rank, fmt::format("r{}.{}", rank, i), 4000 + 7 * i);
      Add(rank, "shared", 500);  // all hold it
    }
    tensors_[2].push_back({"r1.1", tensors_[1][1].bytes});
  }
  void Add(std::uint64_t rank, std::string name, std::size_t size) {
    tensors_[rank].push_back({std::move(name), std::vector<std::byte>(size)});
  }
  // Changes some tensors, the same way wherever they are held.
  void Step() {
    ++step_;
    for (std::vector<Tensor>& held : tensors_) {
      for (Tensor& tensor : held) {
        const std::size_t mix = std::hash<std::string>()(tensor.name) + step_;
        if (mix % 3 != 0 || tensor.name.ends_with(".0"))
          tensor.bytes[mix % tensor.bytes.size()] ^= std::byte{1};
      }
    }
  }
  std::vector<TensorView> Views(std::uint64_t rank) const {
    std::vector<TensorView> views;
    for (const Tensor& tensor : tensors_[rank]) {
      views.push_back({tensor.name, Dtype::kU8, {tensor.bytes.size()}, tensor.bytes});
    }
    return views;
  }
  Result<Publisher> Open(std::uint64_t rank, double timeout = 20, FileSystem& fs = files) {
    PublisherOptions options{.encoding = GetParam(), .full_copy_ratio = ratio_, .threads = 1};
    options.ranks = {.rank = rank, .world = kWorld, .timeout_seconds = timeout};
    // What a resumed rank loads: `snapshot_`, the tensors of the last version that stood.
    options.load_baseline = [this](std::uint64_t version, std::span<const std::string> names,
                                   Baseline& baseline, const CancelToken*) -> Status {
      std::vector<TensorView> views;
      for (const std::string& name : names) {
        const auto found = snapshot_.find(name);
        if (found == snapshot_.end()) continue;
        views.push_back({name, Dtype::kU8, {found->second.size()}, found->second});
      }
      base::ThreadPool pool(1);
      return baseline.Advance(version, views, {}, pool);
    };
    return Publisher::Open(fs, dir_.path(), MakeMemoryBaseline(), false, std::move(options));
  }
  void OpenAll(double timeout = 20) {
    for (std::uint64_t rank = 0; rank < kWorld; ++rank) {
      auto publisher = Open(rank, timeout);
      ASSERT_OK(publisher);
      publishers_[rank] = *std::move(publisher);
    }
  }
  // Every rank in `ranks` publishes, at the same time.
  std::vector<Result<PublishReport>> PublishAll(std::vector<std::uint64_t> ranks = {0, 1, 2},
                                                bool full = false) {
    std::vector<std::optional<Result<PublishReport>>> results(ranks.size());
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      threads.emplace_back([&, i] {
        base::Progress progress;
        results[i] = publishers_[ranks[i]]->Publish({}, Views(ranks[i]), full, progress);
      });
    }
    for (std::thread& thread : threads) thread.join();
    std::vector<Result<PublishReport>> reports;
    for (auto& result : results) reports.push_back(*std::move(result));
    return reports;
  }
  void ExpectAll(const std::vector<Result<PublishReport>>& reports, std::uint64_t version) {
    for (const auto& report : reports) {
      ASSERT_OK(report);
      EXPECT_EQ(report->version, version);
      EXPECT_EQ(report->identity, reports[0]->identity);
      EXPECT_EQ(report->tensors, 10U);
    }
    CheckVersion(version);
    snapshot_.clear();
    for (const std::vector<Tensor>& held : tensors_) {
      for (const Tensor& tensor : held) snapshot_[tensor.name] = tensor.bytes;
    }
  }
  // A full version holds the tensors; a delta those that differ from the snapshot.
  void CheckVersion(std::uint64_t number) {
    ASSERT_OK_AND_ASSIGN(const Version version, ReadVersion(files, dir_.path(), number));
    ASSERT_OK_AND_ASSIGN(const auto manifest, ReadManifest(files, version.directory));
    base::ThreadPool pool(1);
    EXPECT_OK(
        CheckFiles(files, version.directory, manifest->manifest, Part::kAll, true, pool, nullptr));
    std::map<std::string, std::string> expected;
    for (const std::vector<Tensor>& held : tensors_) {
      for (const Tensor& tensor : held) {
        if (version.delta && snapshot_[tensor.name] == tensor.bytes) continue;
        expected[tensor.name] = HashHex(tensor::HashKind::kXxh3, tensor.bytes);
      }
    }
    std::map<std::string, std::string> found;
    for (const ManifestTensor& tensor : manifest->manifest.tensors) {
      found[tensor.name] = tensor.hash;
    }
    EXPECT_EQ(found, expected);
    CheckDigests(manifest->manifest);
    std::size_t listed = 0;
    ASSERT_OK_AND_ASSIGN(const auto names, files.List(version.directory));
    for (const std::string& name : names) listed += name.starts_with("syncline.") ? 0 : 1;
    std::size_t top = 0;
    for (const ManifestFile& file : manifest->manifest.files) {
      top += file.name.find('/') == std::string::npos ? 1 : 0;
    }
    EXPECT_EQ(listed - (HasFullCopy(manifest->manifest) ? 1 : 0), top);  // nothing else is there
    std::vector<std::string> whole;
    if (!version.delta) whole.push_back(version.directory);
    if (HasFullCopy(manifest->manifest)) whole.push_back(version.directory + "/full");
    for (const std::string& directory : whole) {
      ASSERT_OK_AND_ASSIGN(const auto mapped, checkpoint::MappedCheckpoint::Open(files, directory));
      EXPECT_EQ(mapped.checkpoint().tensors().size(), 10U);
      for (const std::vector<Tensor>& held : tensors_) {
        for (const Tensor& tensor : held) {
          EXPECT_TRUE(std::ranges::equal(mapped.Bytes(*mapped.checkpoint().Find(tensor.name)),
                                         tensor.bytes))
              << tensor.name;
        }
      }
    }
  }

  // Of the manifest, and of the whole version by what its store says.
  void CheckDigests(const Manifest& manifest) {
    ASSERT_OK_AND_ASSIGN(const auto source, Source::Open(files, dir_.path(), {}));
    ASSERT_OK_AND_ASSIGN(const VersionDigests whole,
                         ReadVersionDigests(*source, manifest.version, nullptr));
    EXPECT_TRUE(whole.complete);
    std::map<std::string, std::optional<tensor::Digest>> expected;
    for (const std::vector<Tensor>& held : tensors_) {
      for (const Tensor& tensor : held) expected[tensor.name] = tensor::DigestOf(tensor.bytes, 1);
    }
    std::map<std::string, std::optional<tensor::Digest>> told;
    for (const TensorDigest& tensor : whole.tensors) told[tensor.name] = tensor.digest;
    EXPECT_EQ(told, expected);
    EXPECT_EQ(manifest.copy_tensors.size(), HasFullCopy(manifest) ? 10U : 0U);
    for (const auto* tensors : {&manifest.tensors, &manifest.copy_tensors}) {
      for (const ManifestTensor& tensor : *tensors) {
        EXPECT_EQ(tensor.digest, expected[tensor.name]) << tensor.name;
      }
    }
  }

  const base::TempDir dir_;
  std::array<std::vector<Tensor>, kWorld> tensors_;
  std::array<std::optional<Publisher>, kWorld> publishers_;
  std::map<std::string, std::vector<std::byte>> snapshot_;
  std::size_t step_ = 0;
  double ratio_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Encodings, RanksTest,
                         testing::Values(delta::Encoding::kXor, delta::Encoding::kOverwrite,
                                         delta::Encoding::kCompact),
                         [](const auto& tested) { return std::string(Name(tested.param)); });

TEST_P(RanksTest, EachPublishesItsPart) {
  OpenAll();
  for (std::uint64_t version = 0; version < 5; ++version) {
    ExpectAll(PublishAll({0, 1, 2}, version == 3), version);
    Step();
  }
  // A step that changes nothing.
  Step();
  ExpectAll(PublishAll(), 5);
  ExpectAll(PublishAll(), 6);
}

TEST_P(RanksTest, FullCopiesAreMadeTogether) {
  ratio_ = 0.01;
  OpenAll();
  std::size_t copies = 0;
  for (std::uint64_t version = 0; version < 4; ++version) {
    const auto reports = PublishAll();
    ExpectAll(reports, version);
    for (const auto& report : reports) copies += report->full_copy ? 1 : 0;
    Step();
  }
  EXPECT_GE(copies, 3U);
}

TEST_P(RanksTest, ReplicatedTensorsMustBeEqual) {
  OpenAll();
  ExpectAll(PublishAll(), 0);
  const std::vector<std::byte> good = tensors_[2][3].bytes;
  ASSERT_EQ(tensors_[2][3].name, "shared");
  tensors_[2][3].bytes[0] ^= std::byte{1};
  for (const auto& report : PublishAll()) {
    EXPECT_ERROR(report, Code::kInvalidArgument, "tensor shared differs between rank 0");
    EXPECT_THAT(report.error().message, testing::HasSubstr("and rank 2"));
  }
  tensors_[2][3].bytes = good;
  Step();
  ExpectAll(PublishAll(), 1);
  tensors_[2][3].bytes.push_back({});
  for (const auto& report : PublishAll({0, 1, 2}, true)) {
    EXPECT_ERROR(report, Code::kInvalidArgument, "tensor shared differs");
  }
}

TEST_P(RanksTest, AMissingRankIsNamedAndTheNextCallGoesOn) {
  OpenAll(0.3);
  for (const auto& report : PublishAll({0, 2})) {
    EXPECT_ERROR(report, Code::kTimeout, "ranks 1 of 3 have not contributed");
  }
  // It comes late, for a call that is over: its weights are not those of the next call.
  const auto late = PublishAll({1});
  EXPECT_ERROR(late[0], Code::kTimeout, "ranks 1 of 3 have not contributed");
  publishers_ = {};
  OpenAll();
  ExpectAll(PublishAll(), 0);
}

TEST_P(RanksTest, TheErrorOfOneIsTheErrorOfAll) {
  OpenAll();
  ExpectAll(PublishAll(), 0);
  base::FaultyFileSystem faulty(files);
  publishers_[1].reset();
  auto opened = Open(1, 20, faulty);
  ASSERT_OK(opened);
  publishers_[1] = *std::move(opened);
  for (const std::string operation : {"mkdir", "write", "allocate", "sync"}) {
    // The size of a compact file is not known before it is written.
    if (operation == "allocate" && GetParam() == delta::Encoding::kCompact) continue;
    Step();
    faulty.FailNth(operation, "staging", 0, {Code::kNoSpace, "full"});
    for (const auto& report : PublishAll()) {
      SCOPED_TRACE(operation);
      EXPECT_ERROR(report, Code::kNoSpace, "full");
    }
    faulty.SetRule(nullptr);
    EXPECT_EQ(publishers_[0]->last_version(), publishers_[1]->last_version());
    ExpectAll(PublishAll(), *publishers_[0]->last_version() + 1);
  }
  // Rank 0's own.
  const auto views = tensors_[0];
  tensors_[0].pop_back();
  for (const auto& report : PublishAll()) EXPECT_FALSE(report.has_value());
  tensors_[0] = views;
  ExpectAll(PublishAll(), *publishers_[0]->last_version() + 1);
}

TEST_P(RanksTest, RanksComeBack) {
  OpenAll();
  ExpectAll(PublishAll(), 0);
  for (std::uint64_t version = 1; version < 8; ++version) {
    Step();
    const std::uint64_t rank = version % (kWorld + 1);
    if (rank == kWorld) {
      publishers_ = {};
      OpenAll();
    } else {
      publishers_[rank].reset();
      auto opened = Open(rank);
      ASSERT_OK(opened);
      publishers_[rank] = *std::move(opened);
    }
    ExpectAll(PublishAll(), version);
  }
}

// Who takes a tensor over knows what became of it since.
TEST_P(RanksTest, ATensorPassesToAnotherRank) {
  OpenAll();
  ExpectAll(PublishAll(), 0);
  const auto change = [&] {
    for (std::vector<Tensor>& held : tensors_) {
      const auto shared = std::ranges::find(held, "shared", &Tensor::name);
      if (shared != held.end()) shared->bytes[7] ^= std::byte{5};
    }
  };
  change();
  ExpectAll(PublishAll(), 1);
  publishers_[0].reset();
  std::erase_if(tensors_[0], [](const Tensor& tensor) { return tensor.name == "shared"; });
  auto opened = Open(0);
  ASSERT_OK(opened);
  publishers_[0] = *std::move(opened);
  change();
  ExpectAll(PublishAll(), 2);
}

// A leader that dies while the others wait: they do their part again for the next one.
TEST_P(RanksTest, ANewLeaderTakesOverWhileTheOthersWait) {
  OpenAll();
  ExpectAll(PublishAll(), 0);
  Step();
  std::vector<std::optional<Result<PublishReport>>> results(2);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      base::Progress progress;
      results[i] = publishers_[i + 1]->Publish({}, Views(i + 1), false, progress);
    });
  }
  // Dies at its rename: the attempt is open, the parts are there.
  publishers_[0].reset();
  {
    base::FaultyFileSystem dying(files);
    bool dead = false;
    dying.SetRule([&](std::string_view operation, const std::string& path) -> Status {
      dead = dead || (operation == "rename" && path == dir_ / VersionName(1));
      return dead ? base::Fail(Code::kIo, "dead") : Status();
    });
    auto leader = Open(0, 20, dying);
    ASSERT_OK(leader);
    base::Progress progress;
    EXPECT_ERROR(leader->Publish({}, Views(0), false, progress), Code::kIo, "dead");
  }
  auto leader = Open(0);
  ASSERT_OK(leader);
  publishers_[0] = *std::move(leader);
  auto reports = PublishAll({0});
  for (std::thread& thread : threads) thread.join();
  for (auto& result : results) reports.push_back(*std::move(result));
  ExpectAll(reports, 1);
}

TEST_P(RanksTest, OneProcessIsARank) {
  OpenAll();
  EXPECT_ERROR(Open(0), Code::kLocked, "another publisher is at work");
  EXPECT_ERROR(Open(2), Code::kLocked, "another process is rank 2");
  EXPECT_ERROR(Open(3), Code::kInvalidArgument, "rank 3 of 3");
}

TEST(RankFilesTest, RoundTripAndFaults) {
  RankPart part;
  part.token = "t";
  part.attempt = 3;
  part.tensors = {{"a", Dtype::kBF16, {2, 3}, std::string(32, 'a'), tensor::Digest{7, 8}}};
  part.copy_tensors = {{"a", Dtype::kBF16, {2, 3}, {}, tensor::Digest{7, 8}},
                       {"b", Dtype::kU8, {}, {}}};
  part.weight_map = {{"a", "model-r00001-00000.safetensors"}};
  part.files = {{"model-r00001-00000.safetensors", 9, std::string(64, 'b')}};
  const std::string text = RankPartText(part);
  ASSERT_OK_AND_ASSIGN(const RankPart read, ParseRankPart(text));
  EXPECT_EQ(RankPartText(read), text);
  EXPECT_EQ(read.copy_tensors[0].digest, (tensor::Digest{7, 8}));
  std::string bad_digest = text;
  bad_digest.replace(bad_digest.find("\"digest\":\"") + 10, 1, "X");
  EXPECT_ERROR(ParseRankPart(bad_digest), Code::kCorrupt, "tensor a has the digest X");
  part.files[0].name = "../x";
  EXPECT_ERROR(ParseRankPart(RankPartText(part)), Code::kCorrupt, "../x");
  Announcement announcement;
  announcement.state = Announcement::State::kFailed;
  announcement.error = {Code::kNoSpace, "full"};
  announcement.skip = {{1, {"a", "b"}}};
  announcement.components = {{"vae", "diffusion_pytorch_model"}, {"text_encoder", "model"}};
  const std::string said = AnnouncementText(announcement);
  ASSERT_OK_AND_ASSIGN(const Announcement heard, ParseAnnouncement(said));
  EXPECT_EQ(AnnouncementText(heard), said);
  for (std::size_t i = 0; i < text.size(); ++i) (void)ParseRankPart(text.substr(0, i));
  EXPECT_EQ(heard.components, announcement.components);
  for (const auto& [folder, stem] : checkpoint::Stems{{"../x", "model"}, {"vae", "../x"}}) {
    Announcement bad = announcement;
    bad.components = {{folder, stem}};
    EXPECT_ERROR(ParseAnnouncement(AnnouncementText(bad)), Code::kCorrupt, "component " + folder);
  }
  for (std::size_t i = 0; i < said.size(); ++i) (void)ParseAnnouncement(said.substr(0, i));
}

}  // namespace
}  // namespace syncline::store
