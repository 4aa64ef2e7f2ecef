// Updates, exports and digests over several ranks, which are threads here: real connections, real
// files, a model without arithmetic.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <latch>
#include <memory>
#include <thread>
#include <tuple>

#include "base/faulty_file_system.h"
#include "base/progress.h"
#include "base/result_matchers.h"
#include "base/temp_dir.h"
#include "base/wait_for.h"
#include "checkpoint/writer.h"
#include "engine/engine_testing.h"
#include "engine/ranked_model.h"
#include "layout/shard_planner.h"
#include "store/baseline.h"
#include "store/publisher.h"
#include "tensor/digest.h"
#include "update/following_weights.h"
#include "update/messages.h"
#include "update/rank_protocol.h"
#include "update/weights.h"

namespace syncline::update {
namespace {

using base::Code;
using base::FileSystem;
using base::Result;
using base::Status;
using base::WaitFor;
using tensor::Dtype;

constexpr std::uint32_t kRanks = 4;
constexpr std::uint64_t kRows = 24;

// A part of a model: rows of "rows", columns of "columns", heads of which each is on two ranks, all
// of "whole", and a sum of its first bytes as a derived parameter. Steps do nothing but count.
class PartModel : public model::Model {
 public:
  explicit PartModel(std::uint32_t rank) {
    config_.vocabulary = 8;
    config_.max_positions = 64;
    layout::ShardPlanner planner({rank, kRanks}, [](std::string_view) { return Dtype::kU8; });
    planner.Columns("rows", kRows, {4});
    planner.Rows("columns", kRows, 8);
    planner.Columns("heads", {{"heads", 2, 3, true, "heads"}}, {5});
    planner.Replicated("whole", {6});
    planner.Derived("sum", Dtype::kU8, {1});
    plan_ = *std::move(planner).Build();
    parameters_.emplace(*model::Parameters::Create(plan_));
  }

  const model::ModelConfig& config() const override { return config_; }
  const layout::Plan& plan() const override { return plan_; }
  model::Parameters& parameters() override { return *parameters_; }
  std::uint64_t KvBytesPerToken() const override { return 4; }
  Status ReserveKv(std::uint32_t count) override {
    blocks = count;
    return {};
  }
  Status Derive(std::span<const base::MutableByteSpan> memory) override {
    std::byte sum{0};
    for (std::size_t i = 0; i + 1 < memory.size(); ++i) sum ^= memory[i][0];
    memory.back()[0] = sum;
    return {};
  }
  Status Forward(const model::Batch&, std::span<float> logits) override {
    std::ranges::fill(logits, 1.0F);
    ++steps;
    return {};
  }

  std::byte first(std::string_view parameter) const {
    return parameters_->live()[plan_.FindParameter(parameter)][0];
  }
  std::atomic<std::uint64_t> steps = 0;
  std::atomic<std::uint32_t> blocks = 0;

 private:
  model::ModelConfig config_;
  layout::Plan plan_;
  std::optional<model::Parameters> parameters_;
};

// Bytes of each tensor of version `version`.
std::map<std::string, std::vector<std::byte>> TensorsOf(std::uint8_t version) {
  std::map<std::string, std::vector<std::byte>> tensors = {
      {"rows", {}}, {"columns", {}}, {"heads", {}}, {"whole", {}}};
  const std::map<std::string, std::size_t> sizes = {
      {"rows", kRows * 4}, {"columns", kRows * 8}, {"heads", 30}, {"whole", 6}};
  for (auto& [name, bytes] : tensors) {
    for (std::size_t i = 0; i < sizes.at(name); ++i) {
      bytes.push_back(static_cast<std::byte>(i * 7 + version * 31 + name.size()));
    }
  }
  return tensors;
}

std::vector<tensor::TensorView> Views(
    const std::map<std::string, std::vector<std::byte>>& tensors) {
  const std::map<std::string, std::vector<std::uint64_t>> shapes = {
      {"rows", {kRows, 4}}, {"columns", {kRows, 8}}, {"heads", {6, 5}}, {"whole", {6}}};
  std::vector<tensor::TensorView> views;
  for (const auto& [name, bytes] : tensors) {
    views.push_back({name, Dtype::kU8, shapes.at(name), bytes});
  }
  return views;
}

// One of the ranks that follow.
class Rank {
 public:
  Rank(std::uint32_t rank, std::uint16_t port, const std::string& launch,
       const std::string& backup = "")
      : files(FileSystem::Posix()), model(rank) {
    thread_ = std::thread([this, rank, port, launch, backup] {
      auto joined = ranks::Follower::Join(
          {.leader = {"127.0.0.1", port},
           .group = {.rank = rank, .size = kRanks, .node_rank = rank / 2, .nodes = 2}});
      ASSERT_OK(joined);
      follower_ = *std::move(joined);
      auto weights = FollowingWeights::Create(
          files, {{.role = "", .model = &model}}, *follower_,
          {.launch_path = launch, .rank = rank, .backup_directory = backup},
          std::chrono::seconds(20));
      joined_.count_down();
      // Why it ended is what the tests look at on rank 0.
      std::ignore = engine::FollowCommands(*follower_, model, [&](ranks::Message message) {
        ++messages;
        weights->OnCommand(std::move(message));
      });
    });
  }
  ~Rank() { thread_.join(); }

  // As if the process had died.
  void Die() {
    joined_.wait();
    follower_->GiveUp({Code::kInternal, "killed"});
  }

  base::FaultyFileSystem files;
  PartModel model;
  std::atomic<std::uint64_t> messages = 0;  // commands that were not the engine's

 private:
  std::latch joined_{1};
  std::unique_ptr<ranks::Follower> follower_;
  std::thread thread_;
};

class RanksTest : public testing::Test {
 protected:
  void SetUp() override {
    WriteVersion("v1", 1);
    WriteVersion("v2", 2);
    ASSERT_OK_AND_ASSIGN(
        leader_, ranks::Leader::Listen({.listen = {"127.0.0.1", 0}, .size = kRanks, .nodes = 2}));
    for (std::uint32_t rank = 1; rank < kRanks; ++rank) {
      ranks_.push_back(std::make_unique<Rank>(rank, leader_->port(), Path("v1"), backup_));
    }
    ASSERT_OK(leader_->Join());
    auto own = std::make_unique<PartModel>(0);
    own_ = own.get();
    model_ = engine::MakeRankedModel(std::move(own), *leader_);
    ASSERT_OK_AND_ASSIGN(
        engine_, engine::Engine::Start({.kv_cache_bytes = 1 << 16}, *model_, vocabulary_, {}, "v"));
    weights_ = Weights::Create(FileSystem::Posix(), *engine_, *model_,
                               {.launch_path = Path("v1"),
                                .leader = leader_.get(),
                                .host = "node0",
                                .backup_directory = backup_});
    ASSERT_OK(Update("v1"));
  }

  void TearDown() override {
    engine_->Stop();
    weights_.reset();
    engine_.reset();
    model_.reset();
    leader_->Shutdown();
    ranks_.clear();
  }

  std::string Path(const std::string& name) const { return directory_ / name; }

  void WriteVersion(const std::string& name, std::uint8_t version) {
    ASSERT_OK(FileSystem::Posix().MakeDirectories(Path(name)));
    base::ThreadPool pool(1);
    base::Progress progress;
    const auto tensors = TensorsOf(version);
    ASSERT_OK(checkpoint::WriteCheckpoint(FileSystem::Posix(), Path(name), Views(tensors),
                                          {.durable = false}, pool, progress, nullptr));
  }

  // Calls `start` with a callback, and waits for what it is called with.
  Result<UpdateReport> Update(const std::string& name) {
    return WaitFor<Result<UpdateReport>>([&](auto done) {
      weights_->FromDisk({.path = Path(name), .weight_version = name}, std::move(done));
    });
  }
  Status Begin() {
    return WaitFor<Status>([&](auto done) { weights_->Begin({}, std::move(done)); });
  }
  Result<UpdateReport> End() {
    return WaitFor<Result<UpdateReport>>([&](auto done) { weights_->End({}, std::move(done)); });
  }
  Result<UpdateReport> Send(TensorUpdate update) {
    return WaitFor<Result<UpdateReport>>(
        [&](auto done) { weights_->FromTensors(std::move(update), std::move(done)); });
  }
  Status Release(MemoryParts parts) {
    return WaitFor<Status>([&](auto done) { weights_->ReleaseMemory(parts, std::move(done)); });
  }
  Status Resume(MemoryParts parts) {
    return WaitFor<Status>([&](auto done) { weights_->ResumeMemory(parts, std::move(done)); });
  }
  Result<CheckReport> Check(CheckRequest::Action action) {
    return WaitFor<Result<CheckReport>>(
        [&](auto done) { weights_->Check({.action = action, .options = {}}, std::move(done)); });
  }
  Result<ExportedTensor> Export(const std::string& name) {
    return WaitFor<Result<ExportedTensor>>(
        [&](auto done) { weights_->Export(name, std::move(done)); });
  }
  Result<DigestReport> Digests(DigestRequest request = {}) {
    return WaitFor<Result<DigestReport>>(
        [&](auto done) { weights_->Digests(std::move(request), std::move(done)); });
  }
  std::vector<HostPull> Pull(PullRequest request) {
    return WaitFor<std::vector<HostPull>>(
        [&](auto done) { weights_->Pull(std::move(request), std::move(done)); });
  }

  // All events of a request for so many tokens, as one.
  engine::Event Generate(std::uint32_t tokens) {
    engine::Client client;
    engine::Request request;
    request.id = "r";
    request.input_ids = {1, 2, 3};
    request.sampling.max_new_tokens = tokens;
    EXPECT_OK(engine_->Submit(std::move(request), client.sink()));
    return client.Wait();
  }

  // A rank's next read of version 2's weights sets `reached`, and waits for `go_on`.
  static void HoldNextRead(Rank& rank, std::promise<void>& reached,
                           std::shared_future<void> go_on) {
    rank.files.SetRule([&reached, go_on = std::move(go_on), first = true](
                           std::string_view operation, const std::string& path) mutable -> Status {
      if (operation != "read" || !first || !path.contains("v2/model")) return {};
      first = false;
      reached.set_value();
      go_on.wait();
      return {};
    });
  }

  void ExpectServed(std::uint8_t version) {
    for (const auto& [name, bytes] : TensorsOf(version)) {
      const auto exported = Export(name);
      ASSERT_OK(exported);
      EXPECT_EQ(exported->bytes, bytes) << name;
    }
    // Derived parameters follow on every rank.
    const std::byte sum =
        own_->first("rows") ^ own_->first("columns") ^ own_->first("heads") ^ own_->first("whole");
    EXPECT_EQ(own_->first("sum"), sum);
  }

  base::TempDir directory_;
  std::string backup_;  // where ranks keep released weights; empty: nowhere
  text::Vocabulary vocabulary_;
  std::unique_ptr<ranks::Leader> leader_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  PartModel* own_ = nullptr;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<Weights> weights_;
};

TEST_F(RanksTest, AllRanksServeTheSameVersion) {
  ExpectServed(1);
  ASSERT_OK_AND_ASSIGN(const UpdateReport report, Update("v2"));
  EXPECT_EQ(report.tensors, 4U);
  // Heads are on two ranks each, "whole" is on all four.
  EXPECT_EQ(report.bytes, kRows * 4 + kRows * 8 + 2 * 30 + 4 * 6);
  ExpectServed(2);
  EXPECT_EQ(engine_->stats().weight_version, "v2");
}

TEST_F(RanksTest, StepsAreComputedOnAllRanks) {
  EXPECT_EQ(Generate(5).tokens.size(), 5U);
  ASSERT_OK(Export("whole"));  // is in the same order of commands
  EXPECT_EQ(own_->steps, 5U);
  for (const auto& rank : ranks_) EXPECT_EQ(rank->model.steps, 5U);
}

// BR-36: no rank takes the new weights before all are ready, and no step runs with both.
TEST_F(RanksTest, BR36TheSlowRankDelaysEverybody) {
  std::promise<void> reading;
  std::promise<void> go_on;
  HoldNextRead(*ranks_[2], reading, go_on.get_future().share());
  std::future<Result<UpdateReport>> update =
      std::async(std::launch::async, [&] { return Update("v2"); });
  reading.get_future().wait();
  // Generation goes on meanwhile, with the old weights on all ranks.
  EXPECT_EQ(Generate(3).weight_versions.back().version, "v1");
  ExpectServed(1);
  EXPECT_EQ(engine_->stats().weight_version, "v1");
  go_on.set_value();
  ASSERT_OK(update.get());
  ExpectServed(2);
}

TEST_F(RanksTest, ReleasedMemoryComesBackOnAllRanks) {
  constexpr MemoryParts kAll = {.kv_cache = true, .weights = true};
  ASSERT_OK(Release(kAll));
  for (const auto& rank : ranks_) EXPECT_EQ(rank->model.blocks, 0U);
  EXPECT_ERROR(Digests(), Code::kOutOfOrder, "released");
  EXPECT_ERROR(Update("v2"), Code::kOutOfOrder, "released");
  ASSERT_OK(Resume(kAll));
  for (const auto& rank : ranks_) EXPECT_GT(rank->model.blocks, 0U);
  ASSERT_TRUE(weights_->session().incomplete);
  EXPECT_THAT(*weights_->session().incomplete,
              testing::HasSubstr("4 tensors must be sent again: columns, heads, rows"));
  for (const auto& rank : ranks_) EXPECT_EQ(rank->model.first("rows"), std::byte{0});
  ASSERT_OK(Update("v2"));
  ExpectServed(2);
  EXPECT_EQ(Generate(5).tokens.size(), 5U);
}

class RanksWithBackupTest : public RanksTest {
 protected:
  void SetUp() override {
    backup_ = directory_.path();
    RanksTest::SetUp();
  }
};

TEST_F(RanksWithBackupTest, WhereOneRankFailsToReleaseNoneHas) {
  ranks_[1]->files.FailNth("write", "syncline-weights", 0, {Code::kNoSpace, "the disk is full"});
  const Status failed = Release({.weights = true});
  EXPECT_ERROR(failed, Code::kNoSpace, "rank 2 (host 127.0.0.1");
  EXPECT_ERROR(failed, Code::kNoSpace, "the disk is full");
  EXPECT_FALSE(weights_->session().released.weights);
  ExpectServed(1);
  EXPECT_EQ(Generate(5).tokens.size(), 5U);
}

TEST_F(RanksWithBackupTest, WhereOneRankFailsToResumeAllStayReleased) {
  ASSERT_OK(Release({.weights = true}));
  ranks_[1]->files.FailNth("read", "syncline-weights", 0, {Code::kIo, "the disk is broken"});
  EXPECT_ERROR(Resume({.weights = true}), Code::kIo, "rank 2 (host 127.0.0.1");
  EXPECT_TRUE(weights_->session().released.weights);
  for (const auto& rank : ranks_) EXPECT_EQ(rank->model.first("rows"), std::byte{0});
  ASSERT_OK(Resume({.weights = true}));
  EXPECT_FALSE(weights_->session().incomplete);
  ExpectServed(1);
  EXPECT_EQ(Generate(5).tokens.size(), 5U);
}

// BR-42: round trips do not grow with the number of tensors.
TEST_F(RanksTest, BR42AnUpdateIsTwoRoundTrips) {
  std::uint64_t before = 0;
  std::uint64_t after = 0;
  for (const auto& rank : ranks_) before += rank->messages;
  ASSERT_OK(Update("v2"));
  for (const auto& rank : ranks_) after += rank->messages;
  EXPECT_EQ(after - before, (kRanks - 1) * 1U) << "commands; staging is one work message each";
}

// BR-37: the rank that failed is named with its own words, nothing has changed anywhere, nobody
// waits, and the next update works.
TEST_F(RanksTest, BR37OneRankThatFailsFailsTheUpdateForAll) {
  ranks_[0]->files.FailNth("read", "v2/model", 1, {Code::kIo, "the disk of one host is broken"});
  const auto failed = Update("v2");
  EXPECT_ERROR(failed, Code::kIo, "rank 1 (host 127.0.0.1");
  EXPECT_ERROR(failed, Code::kIo, "the disk of one host is broken");
  ExpectServed(1);
  EXPECT_EQ(engine_->stats().weight_version, "v1");
  EXPECT_EQ(weights_->model_path(), Path("v1"));
  ASSERT_OK(Update("v2"));
  ExpectServed(2);
}

TEST_F(RanksTest, BR37ARankThatIsGoneEndsTheWaitOfAll) {
  // It dies while it reads; the others have read everything by then or soon will.
  std::promise<void> reading;
  std::promise<void> dead;
  HoldNextRead(*ranks_[1], reading, dead.get_future().share());
  std::thread killer([&] {
    reading.get_future().wait();
    ranks_[1]->Die();
  });
  const auto failed = Update("v2");
  EXPECT_ERROR(failed, Code::kUnavailable, "rank 2 (host 127.0.0.1");
  EXPECT_ERROR(failed, Code::kUnavailable, "killed");
  dead.set_value();
  killer.join();
  // Requests are told the same, and do not hang.
  const engine::Event event = Generate(1);
  EXPECT_EQ(event.finish->http_status, 503);
  EXPECT_THAT(event.finish->message, testing::HasSubstr("rank 2"));
  EXPECT_ERROR(Export("rows"), Code::kUnavailable, "rank 2");
  EXPECT_ERROR(Digests(), Code::kUnavailable, "rank 2");
}

// ---- sessions ----

// A message of tensors for each rank.
TensorUpdate MessagesOf(const std::vector<std::vector<std::uint8_t>>& versions) {
  TensorUpdate update;
  update.format = payload::Format::kSafetensors;
  for (const std::vector<std::uint8_t>& version : versions) {
    const auto tensors = TensorsOf(version.empty() ? 0 : version[0]);
    std::vector<tensor::TensorView> views;
    if (!version.empty()) views = Views(tensors);
    update.payloads.push_back(MessageOf(views));
  }
  return update;
}
TensorUpdate MessagesOf(std::uint8_t version) {
  return MessagesOf({{version}, {version}, {version}, {version}});
}

TEST_F(RanksTest, ASessionBecomesLiveOnAllRanksAtOnce) {
  ASSERT_OK(Begin());
  TensorUpdate update = MessagesOf(2);
  update.weight_version = "v2";
  ASSERT_OK_AND_ASSIGN(UpdateReport report, Send(std::move(update)));
  EXPECT_EQ(report.tensors, 4U);
  ExpectServed(1);
  ASSERT_OK(End());
  ExpectServed(2);
  EXPECT_EQ(engine_->stats().weight_version, "v2");
  // One file for all ranks will do where bytes come along.
  ASSERT_OK(Send(MessagesOf({{1}})));
  ExpectServed(1);
}

TEST_F(RanksTest, EachRankHasItsOwnMessage) {
  EXPECT_ERROR(Send(MessagesOf({{2}, {2}})), Code::kInvalidArgument,
               "2 elements, expected one for each of the engine's 4 ranks");
  // A rank with nothing to do gets an empty one.
  ASSERT_OK(Begin());
  ASSERT_OK(Send(MessagesOf({{2}, {}, {2}, {}})));
  ASSERT_OK(Send(MessagesOf({{}, {2}, {}, {2}})));
  ASSERT_OK(End());
  ExpectServed(2);
}

TEST_F(RanksTest, BR37OneRankThatCannotTakeItsMessageUndoesTheSession) {
  ASSERT_OK(Begin());
  ASSERT_OK(Send(MessagesOf(2)));
  TensorUpdate broken = MessagesOf(2);
  broken.payloads[2].resize(40);
  const auto failed = Send(std::move(broken));
  EXPECT_ERROR(failed, Code::kInvalidArgument, "rank 2 (host 127.0.0.1");
  EXPECT_ERROR(End(), Code::kOutOfOrder, failed.error().message);
  ExpectServed(1);
  EXPECT_EQ(engine_->stats().weight_version, "v1");
  ASSERT_OK(Begin());
  ASSERT_OK(Send(MessagesOf(2)));
  ASSERT_OK(End());
  ExpectServed(2);
}

TEST_F(RanksTest, BR37ARankThatIsGoneEndsTheSession) {
  ASSERT_OK(Begin());
  ASSERT_OK(Send(MessagesOf(2)));
  ranks_[1]->Die();
  EXPECT_FALSE(End());
  EXPECT_FALSE(weights_->session().open);
  EXPECT_EQ(Generate(1).finish->http_status, 503);
}

// A rank that an update leaves out holds other weights than it should, and is named.
TEST_F(RanksTest, ARankThatIsLeftOutIsReported) {
  using Action = CheckRequest::Action;
  ASSERT_OK(Update("v2"));
  ASSERT_OK(Check(Action::kSnapshot));
  ASSERT_OK(Update("v1"));
  ASSERT_OK(Send(MessagesOf({{2}, {2}, {}, {2}})));
  ASSERT_OK_AND_ASSIGN(const CheckReport report, Check(Action::kCompare));
  EXPECT_THAT(report.message, testing::StartsWith("check tensor equality failed:\nrank 2: name="));
  EXPECT_THAT(report.message, testing::HasSubstr("name=rows "));
  EXPECT_THAT(report.message, testing::Not(testing::HasSubstr("rank 1")));
  ASSERT_OK_AND_ASSIGN(const CheckReport hashes, Check(Action::kChecksum));
  ASSERT_EQ(hashes.ranks.size(), kRanks);
  const auto hash_of_whole = [&](std::size_t rank) {
    for (const checker::NamedHash& hash : hashes.ranks[rank][0].checksums.tensors) {
      if (hash.name == "whole") return hash.hash;
    }
    return std::string();
  };
  EXPECT_EQ(hash_of_whole(0), hash_of_whole(1));
  EXPECT_NE(hash_of_whole(0), hash_of_whole(2));
}

TEST_F(RanksTest, ResetReachesAllRanksAndIsPutBackOnAll) {
  using Action = CheckRequest::Action;
  ASSERT_OK(Check(Action::kSnapshot));
  ASSERT_OK(Check(Action::kReset));
  ASSERT_OK_AND_ASSIGN(CheckReport report, Check(Action::kCompare));
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_THAT(report.message, testing::HasSubstr("rank " + std::to_string(rank) + ": "));
  }
  EXPECT_FALSE(report.put_back.empty());
  ExpectServed(1);
  ASSERT_OK_AND_ASSIGN(report, Check(Action::kCompare));
  EXPECT_EQ(report.message, "");
}

TEST_F(RanksTest, DigestsOfAllRanksAddUp) {
  for (const std::uint8_t version : {std::uint8_t{1}, std::uint8_t{2}}) {
    ASSERT_OK(Update("v" + std::to_string(version)));
    ASSERT_OK_AND_ASSIGN(const DigestReport report, Digests());
    EXPECT_EQ(report.weight_version, "v" + std::to_string(version));
    const auto expected = TensorsOf(version);
    ASSERT_EQ(report.tensors.size(), expected.size());
    for (const DigestReport::Tensor& tensor : report.tensors) {
      EXPECT_EQ(tensor.digest, tensor::DigestOf(expected.at(tensor.name), 1)) << tensor.name;
    }
    ASSERT_EQ(report.derived.size(), kRanks);
    EXPECT_EQ(report.derived[0].size(), 32U);
    EXPECT_FALSE(report.comparison.has_value());
  }
}

TEST_F(RanksTest, DerivedParametersHaveADigestToo) {
  ASSERT_OK_AND_ASSIGN(const DigestReport before, Digests());
  own_->parameters().live().back()[0] ^= std::byte{1};
  ASSERT_OK_AND_ASSIGN(const DigestReport after, Digests());
  EXPECT_NE(before.derived[0], after.derived[0]);
  EXPECT_EQ(before.derived[1], after.derived[1]);
}

TEST_F(RanksTest, PullsReachEveryHostOnce) {
  // A store with one full version.
  ASSERT_OK_AND_ASSIGN(auto publisher, store::Publisher::Open(FileSystem::Posix(), Path("store"),
                                                              store::MakeNoBaseline(), false,
                                                              {.durable = false, .threads = 1}));
  base::Progress progress;
  const auto two = TensorsOf(2);
  ASSERT_OK(publisher.Publish(1, Views(two), true, progress));
  const std::vector<HostPull> pulls =
      Pull({.source = Path("store"), .replica = Path("replica"), .version = 1});
  ASSERT_EQ(pulls.size(), 2U);
  EXPECT_EQ(pulls[0].host, "node0");
  EXPECT_EQ(pulls[1].host, "127.0.0.1");
  EXPECT_EQ(pulls[1].node_rank, 1U);
  for (const HostPull& pull : pulls) {
    EXPECT_OK(pull.outcome.status);
    EXPECT_EQ(pull.outcome.held, 1U);
  }
  ASSERT_OK(Update("replica"));
  ExpectServed(2);
  ASSERT_OK_AND_ASSIGN(DigestReport report, Digests({.version = 1, .source = ""}));
  ASSERT_TRUE(report.comparison.has_value());
  EXPECT_EQ(report.comparison->equal, 4U);
  EXPECT_THAT(report.comparison->different, testing::IsEmpty());
  EXPECT_EQ(report.comparison->source, Path("store"));
  // Not the same weights any more: one tensor differs, on a rank that is not the first.
  ranks_[2]->model.parameters().live()[0][0] ^= std::byte{1};
  ASSERT_OK_AND_ASSIGN(report, Digests({.version = 1, .source = Path("store")}));
  EXPECT_EQ(report.comparison->equal, 3U);
  EXPECT_THAT(report.comparison->different, testing::ElementsAre("rows"));
  EXPECT_ERROR(Digests({.version = 9, .source = Path("store")}), Code::kNotFound, "9");
}

TEST_F(RanksTest, APullThatFailsOnOneHostIsThatHostsFailure) {
  const std::vector<HostPull> before =
      Pull({.source = Path("nowhere"), .replica = Path("replica"), .version = 3});
  ASSERT_EQ(before.size(), 2U);
  for (const HostPull& pull : before) EXPECT_FALSE(pull.outcome.status);
  ranks_[1]->files.SetRule([](std::string_view, const std::string& path) -> Status {
    if (!path.contains("replica")) return {};
    return base::Fail(Code::kIo, "this host's disk is full of holes");
  });
  const std::vector<HostPull> pulls =
      Pull({.source = Path("v1"), .replica = Path("replica"), .version = 0});
  EXPECT_OK(pulls[0].outcome.status);
  EXPECT_EQ(pulls[0].outcome.held, 0U);
  EXPECT_ERROR(pulls[1].outcome.status, Code::kIo, "full of holes");
  EXPECT_FALSE(pulls[1].outcome.held);
}

TEST_F(RanksTest, DigestsWithoutAStoreToCompareWith) {
  EXPECT_ERROR(Digests({.version = 1, .source = ""}), Code::kInvalidArgument, "source");
}

}  // namespace
}  // namespace syncline::update
