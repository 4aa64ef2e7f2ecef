// Trees of components (a diffusers pipeline) from the publisher to the replica.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <random>
#include <thread>

#include "base/faulty_file_system.h"
#include "base/result_matchers.h"
#include "base/temp_dir.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/index.h"
#include "checkpoint/writer.h"
#include "objects/test_server.h"
#include "replica/replica.h"
#include "replica/state.h"
#include "store/history.h"
#include "store/publisher.h"
#include "store/retention.h"

namespace syncline::replica {
namespace {

using base::Code;
using base::FileSystem;
using base::Result;
using base::Status;
using checkpoint::Checkpoint;
using tensor::Dtype;
using tensor::TensorView;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Not;
using testing::UnorderedElementsAre;

FileSystem& files = FileSystem::Posix();

const std::string kVae = "vae/diffusion_pytorch_model.safetensors";
const std::string kTransformerIndex = "transformer/diffusion_pytorch_model.safetensors.index.json";
const std::vector<std::string> kCompanions = {"model_index.json", "scheduler/scheduler_config.json",
                                              "tokenizer/vocab.json", "transformer/config.json",
                                              "vae/config.json"};

// A pipeline on disk (`source_`: transformer/ in two shards, the vae in one file, a text encoder
// under transformers' name), a store, and what each of its versions looked like.
class TreeTest : public testing::Test {
 protected:
  using Bytes = std::vector<std::vector<std::byte>>;

  TreeTest() {
    Add("text_encoder/embed.weight", Dtype::kBF16, {20, 8});
    Add("transformer/norm.weight", Dtype::kF32, {33});
    Add("transformer/proj.weight", Dtype::kBF16, {90, 70});
    Add("vae/bn.num_batches_tracked", Dtype::kI64, {});
    Add("vae/bn.running_mean", Dtype::kF32, {128});
    Add("vae/conv.weight", Dtype::kF16, {16, 3, 3, 3});
    WriteSource();
    Open(0);
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
      bytes[0] ^= std::byte{1};
    }
  }
  std::vector<TensorView> views() const {
    std::vector<TensorView> views = views_;
    for (std::size_t i = 0; i < views.size(); ++i) views[i].bytes = bytes_[i];
    return views;
  }
  void WriteSource() {
    base::ThreadPool pool(1);
    ASSERT_OK(files.MakeDirectories(source_));
    ASSERT_OK(
        checkpoint::WriteCheckpoint(files, source_, views(),
                                    {.max_file_bytes = 12'640,
                                     .durable = false,
                                     .components = {{"text_encoder", "model"},
                                                    {"transformer", "diffusion_pytorch_model"},
                                                    {"vae", "diffusion_pytorch_model"}}},
                                    pool, progress_, nullptr));
    for (const std::string& name : kCompanions) {
      const std::string path = base::JoinPath(source_, name);
      ASSERT_OK(files.MakeDirectories(path.substr(0, path.rfind('/'))));
      ASSERT_OK(base::WriteTextAtomically(files, path, CompanionText(name), false));
    }
    ASSERT_TRUE(files.Stat(base::JoinPath(source_, kTransformerIndex)));
  }
  // model_index.json names the components, as diffusers reads it.
  static std::string CompanionText(const std::string& name) {
    if (name != "model_index.json") return "{\"of\":\"" + name + "\"}";
    return R"({"_class_name":"P","text_encoder":["t","T"],"transformer":["d","D"],"vae":["d","V"],)"
           R"("../x":["d","X"]})";
  }
  void Open(double full_copy_ratio) {
    publisher_.reset();
    publisher_.emplace(store::Publisher::Open(files, store_, store::MakeMemoryBaseline(), false,
                                              {.companions_from = source_,
                                               .full_copy_ratio = full_copy_ratio,
                                               .durable = false,
                                               .threads = 2})
                           .value());
  }
  void Publish(double density, bool full = false) {
    if (!versions_.empty()) Step(density);
    ASSERT_OK(publisher_->Publish(std::nullopt, views(), full, progress_));
    versions_.push_back(bytes_);
  }
  Result<PullReport> PullWith(FileSystem& fs, PullOptions options = {}) {
    options.threads = 2;
    return Pull(fs, store_, into_, options);
  }
  Result<PullReport> PullTo(std::uint64_t version) { return PullWith(files, {.version = version}); }

  void ExpectTensors(const std::string& path, std::uint64_t version) {
    ASSERT_OK_AND_ASSIGN(const auto mapped, checkpoint::MappedCheckpoint::Open(files, path));
    EXPECT_EQ(mapped.checkpoint().tensors().size(), views_.size());
    for (std::size_t i = 0; i < views_.size(); ++i) {
      const auto* tensor = mapped.checkpoint().Find(views_[i].name);
      ASSERT_NE(tensor, nullptr) << views_[i].name;
      EXPECT_TRUE(std::ranges::equal(mapped.Bytes(*tensor), versions_[version][i]))
          << views_[i].name << " of version " << version;
    }
  }
  void ExpectCompanions(const std::string& path) {
    for (const std::string& name : kCompanions) {
      const auto text = base::ReadText(files, base::JoinPath(path, name), 1000);
      ASSERT_OK(text);
      EXPECT_EQ(*text, CompanionText(name));
    }
  }
  void ExpectAt(std::uint64_t version) {
    const auto marker = ReplicaState(files, into_).ReadMarker();
    ASSERT_OK(marker);
    ASSERT_TRUE(*marker);
    EXPECT_EQ((*marker)->version, version);
    ExpectTensors(into_, version);
    ExpectCompanions(into_);
    EXPECT_OK(Verify(files, into_, {.threads = 2}));
  }
  static std::vector<std::string> WeightFiles(const std::string& path) {
    const auto checkpoint = Checkpoint::Open(files, path);
    EXPECT_OK(checkpoint);
    std::vector<std::string> names;
    if (checkpoint) {
      for (const auto& file : checkpoint->files()) names.push_back(file.name);
    }
    return names;
  }
  void FlipByte(const std::string& path, std::uint64_t offset) {
    ASSERT_OK_AND_ASSIGN(const auto file, files.Open(path, base::OpenMode::kReadWrite));
    std::array<std::byte, 1> byte;
    ASSERT_OK(base::ReadExactly(*file, byte, offset));
    byte[0] ^= std::byte{1};
    ASSERT_OK(file->WriteAt(byte, offset));
  }
  std::string VersionPath(std::uint64_t version) const {
    return base::JoinPath(store_, store::VersionName(version));
  }
  std::string Replica(const std::string& name) const { return base::JoinPath(into_, name); }

  const base::TempDir dir_{base::TempDir::MemoryFolder()};
  const std::string source_ = dir_ / "source";
  const std::string store_ = dir_ / "store";
  const std::string into_ = dir_ / "replica";
  std::mt19937 random_{7};
  std::vector<TensorView> views_;
  Bytes bytes_;
  std::vector<Bytes> versions_;
  base::Progress progress_;
  std::optional<store::Publisher> publisher_;
};

TEST_F(TreeTest, FullVersionsAndCopiesAreTreesAgain) {
  Open(0.0001);
  Publish(0);
  Publish(0.001);
  ASSERT_TRUE(files.Stat(VersionPath(1) + "/full"));
  for (const std::string& path : {VersionPath(0), VersionPath(1) + "/full"}) {
    EXPECT_THAT(WeightFiles(path),
                ElementsAre("text_encoder/model.safetensors",
                            "transformer/diffusion_pytorch_model.safetensors", kVae));
    // The source's transformer has shards and their index, ours has one file.
    EXPECT_FALSE(base::Exists(files, base::JoinPath(path, kTransformerIndex)).value());
    ExpectCompanions(path);
    ASSERT_OK_AND_ASSIGN(const Checkpoint vae, Checkpoint::Open(files, path + "/vae"));
    EXPECT_NE(vae.Find("bn.running_mean"), nullptr);
  }
  ExpectTensors(VersionPath(0), 0);
  ExpectTensors(VersionPath(1) + "/full", 1);
  EXPECT_OK(Verify(files, store_, {.threads = 1}));
  ASSERT_OK_AND_ASSIGN(const auto source, store::Source::Open(files, store_, {}));
  ASSERT_OK_AND_ASSIGN(const auto history, store::ReadHistory(*source));
  for (const store::VersionSummary& version : history) EXPECT_EQ(version.fault, "");
  EXPECT_EQ(history.at(0).tensors, views_.size());
}

TEST_F(TreeTest, TheLayoutIsThatOfTheCompanions) {
  const auto written = [&](const std::vector<std::string>& names, const std::string& companions) {
    (void)files.RemoveAll(store_);
    auto publisher = store::Publisher::Open(files, store_, store::MakeNoBaseline(), false,
                                            {.companions_from = companions, .durable = false});
    EXPECT_OK(publisher);
    std::vector<TensorView> tensors;
    for (const std::string& name : names) {
      tensors.push_back({name, Dtype::kU8, {3}, base::AsBytes("abc")});
    }
    EXPECT_OK(publisher->Publish({}, tensors, false, progress_));
    return WeightFiles(VersionPath(0));
  };
  // Without companions: the usual names.
  EXPECT_THAT(
      written({"unet/x", "text_encoder_2/x", "image_encoder/x", "safety_checker/x"}, ""),
      ElementsAre("image_encoder/model.safetensors", "safety_checker/model.safetensors",
                  "text_encoder_2/model.safetensors", "unet/diffusion_pytorch_model.safetensors"));
  EXPECT_THAT(written({"a/x", "y"}, ""), ElementsAre("model.safetensors"));
  EXPECT_THAT(written({"../x", "a/y"}, ""), ElementsAre("model.safetensors"));
  EXPECT_THAT(written({"full/x"}, ""), ElementsAre("model.safetensors"));
  // A checkpoint of one folder stays one, whatever its tensors are called.
  EXPECT_THAT(written({"a/x", "b/y"}, source_ + "/vae"), ElementsAre("model.safetensors"));
  // Another stem than the usual one.
  ASSERT_OK(files.Rename(base::JoinPath(source_, kVae), source_ + "/vae/model.safetensors"));
  EXPECT_THAT(written({"vae/x", "unet/x"}, source_),
              ElementsAre("unet/diffusion_pytorch_model.safetensors", "vae/model.safetensors"));
  (void)files.RemoveAll(store_);
  ASSERT_OK_AND_ASSIGN(auto publisher,
                       store::Publisher::Open(files, store_, store::MakeNoBaseline(), false,
                                              {.companions_from = source_, .durable = false}));
  const std::vector<TensorView> mixed = {{"vae/x", Dtype::kU8, {3}, base::AsBytes("abc")},
                                         {"y", Dtype::kU8, {3}, base::AsBytes("abc")}};
  EXPECT_ERROR(publisher.Publish({}, mixed, false, progress_), Code::kInvalidArgument,
               "tensor y belongs to no component");
}

TEST_F(TreeTest, ReplicasFollowAndGoBack) {
  for (int i = 0; i < 4; ++i) Publish(0.01, i == 3);
  ASSERT_OK(PullTo(1));
  ExpectAt(1);
  ASSERT_OK(PullTo(2));
  ExpectAt(2);
  ASSERT_OK_AND_ASSIGN(const UndoReport undone, Undo(files, into_, {}));
  EXPECT_EQ(undone.version, 1U);
  ExpectAt(1);
  ASSERT_OK_AND_ASSIGN(const PullReport report, PullTo(3));
  EXPECT_EQ(report.seeded_from, 3U);
  ExpectAt(3);
  ASSERT_OK(Undo(files, into_, {}));
  ExpectAt(1);
}

TEST_F(TreeTest, AFullCopyIsASeedToo) {
  Publish(0);
  Open(0);
  versions_.clear();
  ASSERT_OK(files.RemoveAll(store_));
  Open(0.5);
  Publish(0);
  Publish(0.5);
  Publish(0.001);
  ASSERT_TRUE(files.Stat(VersionPath(1) + "/full"));
  ASSERT_OK_AND_ASSIGN(const PullReport report, PullTo(2));
  EXPECT_EQ(report.seeded_from, 1U);
  EXPECT_THAT(report.applied, ElementsAre(2));
  ExpectAt(2);
}

// BR-20: a snapshot in a Hugging Face cache is made of links.
TEST_F(TreeTest, BR20_ASeedOfLinksIsNotWrittenThrough) {
  const std::string snapshot = dir_ / "snapshot";
  std::map<std::string, std::string> blobs;
  std::vector<std::string> names = kCompanions;
  for (const std::string& name : WeightFiles(source_)) names.push_back(name);
  names.push_back(kTransformerIndex);
  for (const std::string& name : names) {
    const std::string blob = dir_ / fmt::format("blob{}", blobs.size());
    const std::string link = base::JoinPath(snapshot, name);
    ASSERT_OK(files.Rename(base::JoinPath(source_, name), blob));
    ASSERT_OK(files.MakeDirectories(link.substr(0, link.rfind('/'))));
    ASSERT_EQ(symlink(blob.c_str(), link.c_str()), 0);
    blobs[blob] = base::ReadText(files, blob, 1 << 20).value();
  }
  auto baseline = store::MakeMemoryBaseline();
  base::ThreadPool pool(1);
  ASSERT_OK(baseline->Advance(0, views(), {}, pool));
  publisher_.reset();
  publisher_.emplace(store::Publisher::Open(files, store_, std::move(baseline), true,
                                            {.companions_from = snapshot, .durable = false})
                         .value());
  versions_.push_back(bytes_);
  Publish(0.01);
  Publish(0.01, true);
  ASSERT_OK(PullWith(files, {.version = 1, .seed = snapshot}));
  ExpectAt(1);
  // The seed's own layout: shards, and their index.
  EXPECT_THAT(WeightFiles(into_),
              Contains("transformer/diffusion_pytorch_model-00002-of-00002.safetensors"));
  for (const auto& [blob, text] : blobs) {
    EXPECT_TRUE(base::ReadText(files, blob, 1 << 20).value() == text) << blob;
  }
  ExpectCompanions(VersionPath(2));
  EXPECT_FALSE(files.IsShared(VersionPath(2) + "/vae/config.json").value());
  // A link in the replica is cut before it is written to.
  ASSERT_OK(PullTo(2));
  const std::string moved = dir_ / "moved";
  ASSERT_OK(files.Rename(Replica(kVae), moved));
  ASSERT_EQ(symlink(moved.c_str(), Replica(kVae).c_str()), 0);
  const std::string before = base::ReadText(files, moved, 1 << 20).value();
  Publish(0.01);
  ASSERT_OK(PullTo(3));
  ExpectAt(3);
  EXPECT_TRUE(base::ReadText(files, moved, 1 << 20).value() == before);
}

// What was seeded from shards is healed from the seed's own files.
TEST_F(TreeTest, DamageInAnyComponentIsHealed) {
  auto baseline = store::MakeMemoryBaseline();
  base::ThreadPool pool(1);
  ASSERT_OK(baseline->Advance(0, views(), {}, pool));
  publisher_.reset();
  publisher_.emplace(
      store::Publisher::Open(files, store_, std::move(baseline), true, {.durable = false}).value());
  versions_.push_back(bytes_);
  Publish(0.01);
  Publish(0.01);
  ASSERT_OK(PullWith(files, {.version = 2, .seed = source_}));
  ExpectAt(2);
  ASSERT_OK_AND_ASSIGN(const Checkpoint held, Checkpoint::Open(files, into_));
  const auto* proj = held.Find("transformer/proj.weight");
  ASSERT_NE(proj, nullptr);
  const std::map<std::string, std::function<void()>> damages = {
      {"length of a header", [&] { FlipByte(Replica(kVae), 1); }},
      {"text of a header", [&] { FlipByte(Replica(kVae), 20); }},
      {"data", [&] { FlipByte(held.FilePath(proj->file), proj->offset + 100); }},
      {"an index", [&] { FlipByte(Replica(kTransformerIndex), 3); }},
      {"no index", [&] { ASSERT_OK(files.Remove(Replica(kTransformerIndex))); }},
      {"no shard", [&] { ASSERT_OK(files.Remove(held.FilePath(proj->file))); }},
      {"no weights in a component", [&] { ASSERT_OK(files.Remove(Replica(kVae))); }},
      {"a companion", [&] { FlipByte(Replica("vae/config.json"), 3); }},
      {"no companion",
       [&] { ASSERT_OK(files.Remove(Replica("scheduler/scheduler_config.json"))); }},
      {"two components",
       [&] {
         ASSERT_OK(files.RemoveAll(Replica("text_encoder")));
         ASSERT_OK(files.Remove(Replica(kTransformerIndex)));
         FlipByte(Replica(kVae), 20);
         FlipByte(held.FilePath(proj->file), proj->offset + 100);
       }},
      {"an empty file", [&] {
         ASSERT_OK(files.Remove(Replica(kVae)));
         ASSERT_OK(base::WriteTextAtomically(files, Replica(kVae), "", false));
       }}};
  for (const auto& [what, damage] : damages) {
    SCOPED_TRACE(what);
    damage();
    ASSERT_OK(Verify(files, into_, {.repair = true, .threads = 1}));
    ExpectAt(2);
  }
  // A pull heals what it meets.
  FlipByte(held.FilePath(proj->file), proj->offset + 100);
  Publish(0.01);
  ASSERT_OK(PullTo(3));
  ExpectAt(3);
}

TEST_F(TreeTest, AHeaderIsHealedFromAFullVersion) {
  Publish(0);
  Publish(0.01);
  ASSERT_OK(PullTo(1));
  FlipByte(Replica(kVae), 20);
  EXPECT_ERROR(Verify(files, into_, {}), Code::kCorrupt, "vae");
  ASSERT_OK(Verify(files, into_, {.repair = true}));
  ExpectAt(1);
  // Without repair a lost component is named, not overlooked.
  ASSERT_OK(files.RemoveAll(Replica("text_encoder")));
  EXPECT_ERROR(Verify(files, into_, {}), Code::kCorrupt, "text_encoder/model.safetensors");
  ASSERT_OK(Verify(files, into_, {.repair = true}));
  ExpectAt(1);
}

// A model that is one folder takes the place of a tree, and the other way round.
TEST_F(TreeTest, LayoutsMayChangePlaces) {
  Publish(0);
  const auto tree = std::pair(views_, bytes_);
  views_ = {{"w", Dtype::kU8, {100}, {}}};
  bytes_ = {std::vector<std::byte>(100)};
  ASSERT_OK(publisher_->Publish(std::nullopt, views(), true, progress_));
  versions_.push_back(bytes_);
  std::tie(views_, bytes_) = tree;
  Publish(0.01, true);
  ASSERT_OK(PullTo(0));
  ExpectAt(0);
  ASSERT_OK(PullTo(1));
  EXPECT_THAT(WeightFiles(into_), ElementsAre("model.safetensors"));
  EXPECT_FALSE(base::Exists(files, Replica(kVae)).value());
  EXPECT_OK(Verify(files, into_, {}));
  ASSERT_OK(Undo(files, into_, {}));
  ExpectAt(0);
  EXPECT_FALSE(base::Exists(files, Replica("model.safetensors")).value());
  ASSERT_OK(PullTo(2));
  ExpectAt(2);
}

// BR-05, for the seed too: each operation of the pull fails once.
TEST_F(TreeTest, BR05_AFailureAnywhereLeavesOneVersionWhole) {
  Publish(0);
  Publish(0.01);
  Publish(0.01, true);
  base::FaultyFileSystem faulty(files);
  std::size_t failures = 0;
  for (const char* operation : {"open", "read", "write", "rename", "remove", "mkdir", "list"}) {
    for (const std::uint64_t target : {1, 2}) {
      for (std::size_t n = 0; true; n += 3) {
        ASSERT_OK(PullTo(0));
        faulty.FailNth(operation, "", n, {Code::kIo, "injected"});
        const auto report = PullWith(faulty, {.version = target});
        if (report) break;
        ++failures;
        EXPECT_THAT(report.error().message, HasSubstr("injected"));
        ASSERT_OK(PullTo(target));
        ExpectAt(target);
      }
    }
  }
  EXPECT_GT(failures, 50U);
}

TEST_F(TreeTest, RetentionKnowsAFullTree) {
  Publish(0);
  Publish(0.01);
  Publish(0.01, true);
  Publish(0.01);
  ASSERT_OK_AND_ASSIGN(const auto objects, objects::Open(files, store_, {}));
  ASSERT_OK_AND_ASSIGN(const store::GcReport report,
                       store::Collect(*objects, {.keep = 1, .grace_seconds = 0}));
  EXPECT_THAT(report.kept, ElementsAre(2, 3));
  EXPECT_THAT(report.removed, ElementsAre(0, 1));
  ASSERT_OK(PullTo(3));
  ExpectAt(3);
}

// A server that cannot be listed: what is in a version stands in its manifest, and the components
// in model_index.json.
TEST_F(TreeTest, IsPulledAndHealedByHttp) {
  Publish(0);
  Publish(0.01);
  const objects::TestServer server(objects::ServeDirectory(store_));
  const std::string url = server.url();
  ASSERT_OK(Pull(files, url, into_, {.version = 1, .threads = 2}));
  ExpectAt(1);
  EXPECT_OK(Verify(files, url, {.threads = 2}));
  FlipByte(Replica(kVae), 20);
  ASSERT_OK(Verify(files, into_, {.repair = true, .threads = 2}));
  ExpectAt(1);
}

// A version that another program laid there has no manifest.
TEST_F(TreeTest, AForeignTreeIsAFullVersion) {
  ASSERT_OK(files.MakeDirectories(store_));
  publisher_.reset();
  ASSERT_OK(files.RemoveAll(store_));
  ASSERT_OK(files.MakeDirectories(store_));
  ASSERT_OK(files.Rename(source_, VersionPath(0)));
  versions_.push_back(bytes_);
  ASSERT_OK(PullTo(0));
  ExpectAt(0);
  ASSERT_OK(files.RemoveAll(into_));
  const objects::TestServer server(objects::ServeDirectory(store_));
  ASSERT_OK_AND_ASSIGN(const auto names,
                       store::ListForeignFiles(files, VersionPath(0), false, true));
  EXPECT_THAT(names, IsSupersetOf(kCompanions));
  EXPECT_THAT(names, IsSupersetOf(WeightFiles(VersionPath(0))));
  EXPECT_THAT(names, Contains(kTransformerIndex));
  ASSERT_OK(Pull(files, server.url(), into_, {.version = 0, .threads = 2}));
  ExpectTensors(into_, 0);
  EXPECT_OK(Verify(files, into_, {}));
  // Without any sign that it is whole it is no version.
  ASSERT_OK(files.Remove(VersionPath(0) + "/model_index.json"));
  EXPECT_ERROR(store::ReadVersion(files, store_, 0), Code::kCorrupt, "index missing");
}

TEST_F(TreeTest, SeveralRanksMakeATree) {
  publisher_.reset();
  ASSERT_OK(files.RemoveAll(store_));
  std::vector<std::optional<store::Publisher>> ranks(2);
  const auto open = [&](std::uint64_t rank) {
    ranks[rank].emplace(
        store::Publisher::Open(files, store_, store::MakeMemoryBaseline(), false,
                               {.companions_from = rank == 0 ? source_ : "",
                                .full_copy_ratio = 0.001,
                                .ranks = {.rank = rank, .world = 2, .timeout_seconds = 60},
                                .threads = 1})
            .value());
  };
  open(0);
  open(1);
  for (int version = 0; version < 3; ++version) {
    if (version > 0) Step(0.01);
    std::vector<std::vector<TensorView>> parts(2);  // both have a part of the vae
    const std::vector<TensorView> all = views();
    for (std::size_t i = 0; i < all.size(); ++i) parts[i % 2].push_back(all[i]);
    Status second;
    std::thread other([&] {
      base::Progress progress;
      const auto report = ranks[1]->Publish({}, parts[1], false, progress);
      if (!report) second = std::unexpected(report.error());
    });
    const auto report = ranks[0]->Publish({}, parts[0], false, progress_);
    other.join();
    ASSERT_OK(report);
    ASSERT_OK(second);
    versions_.push_back(bytes_);
  }
  ASSERT_TRUE(files.Stat(VersionPath(2) + "/full"));
  for (const std::string& path : {VersionPath(0), VersionPath(2) + "/full"}) {
    EXPECT_THAT(WeightFiles(path),
                UnorderedElementsAre("text_encoder/model-r00000-00000.safetensors",
                                     "transformer/model-r00000-00000.safetensors",
                                     "transformer/model-r00001-00000.safetensors",
                                     "vae/model-r00000-00000.safetensors",
                                     "vae/model-r00001-00000.safetensors"));
    EXPECT_TRUE(base::Exists(files, base::JoinPath(path, kTransformerIndex)).value());
    ASSERT_OK_AND_ASSIGN(
        const std::string text,
        base::ReadText(files, path + "/text_encoder/model.safetensors.index.json", 1 << 20));
    ASSERT_OK_AND_ASSIGN(const checkpoint::Index index, checkpoint::ParseIndex(text));
    EXPECT_THAT(index.weight_map,
                ElementsAre(testing::Pair("embed.weight", "model-r00000-00000.safetensors")));
    EXPECT_EQ(*index.metadata.at(0).second.unsigned_integer(), 320U);
    ExpectCompanions(path);
    ExpectTensors(path, path == VersionPath(0) ? 0 : 2);
  }
  EXPECT_OK(Verify(files, store_, {.threads = 1}));
  ASSERT_OK(PullTo(2));
  ExpectAt(2);
}

}  // namespace
}  // namespace syncline::replica
