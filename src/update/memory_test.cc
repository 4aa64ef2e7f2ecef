// Memory that is given back and taken again: the fake model as the target, and a model of all kinds
// of parameters as a stand-in for a draft.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <future>
#include <memory>

#include "base/faulty_file_system.h"
#include "base/result_matchers.h"
#include "base/temp_dir.h"
#include "base/wait_for.h"
#include "engine/engine_testing.h"
#include "update/messages.h"
#include "update/unit_model.h"
#include "update/weights.h"

namespace syncline::update {
namespace {

using base::Code;
using base::FileSystem;
using base::Result;
using base::Status;
using base::WaitFor;
using engine::Hold;
using engine::PauseMode;
using testing::IsEmpty;

constexpr MemoryParts kKvCache = {.kv_cache = true};
constexpr MemoryParts kWeights = {.weights = true};
constexpr MemoryParts kAll = {.kv_cache = true, .weights = true};

std::size_t ResidentPages(base::MutableByteSpan bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages((bytes.size() + page - 1) / page);
  EXPECT_EQ(mincore(bytes.data(), bytes.size(), pages.data()), 0);
  return static_cast<std::size_t>(
      std::ranges::count_if(pages, [](unsigned char flags) { return (flags & 1) != 0; }));
}

class MemoryTest : public engine::EngineTest {
 protected:
  void SetUp() override {
    Start();
    model_.SetWeights(1, 2);
    first_ = draft_.RandomWeights(1);
    second_ = draft_.RandomWeights(2);
    draft_.Load(first_);
  }
  void TearDown() override {
    engine_->Stop();
    weights_.reset();
    EngineTest::TearDown();
  }

  void Make(Weights::Options options = {}) {
    options.drafts = {{.role = "draft", .model = &draft_}};
    weights_ = Weights::Create(files_, *engine_, model_, std::move(options));
  }
  void MakeWithBackup() { Make({.backup_directory = directory_.path()}); }

  Status Release(MemoryParts parts) {
    return WaitFor<Status>([&](auto done) { weights_->ReleaseMemory(parts, std::move(done)); });
  }
  Status Resume(MemoryParts parts) {
    return WaitFor<Status>([&](auto done) { weights_->ResumeMemory(parts, std::move(done)); });
  }
  Status Begin() {
    return WaitFor<Status>([&](auto done) { weights_->Begin({}, std::move(done)); });
  }
  Result<UpdateReport> End(bool abort = false) {
    return WaitFor<Result<UpdateReport>>(
        [&](auto done) { weights_->End({.abort = abort}, std::move(done)); });
  }
  Result<UpdateReport> Send(std::vector<std::byte> message) {
    TensorUpdate update = {.payloads = {std::move(message)},
                           .format = payload::Format::kSafetensors};
    return WaitFor<Result<UpdateReport>>(
        [&](auto done) { weights_->FromTensors(std::move(update), std::move(done)); });
  }
  Result<UpdateReport> SendTarget(std::uint8_t a, std::uint8_t b) {
    const std::vector<std::byte> a_bytes(8, std::byte{a});
    const std::vector<std::byte> b_bytes(8, std::byte{b});
    const std::vector<tensor::TensorView> views = {{"a.weight", tensor::Dtype::kU8, {8}, a_bytes},
                                                   {"b.weight", tensor::Dtype::kU8, {8}, b_bytes}};
    return Send(MessageOf(views));
  }
  Result<UpdateReport> SendDraft(const std::vector<std::string>& names) {
    return Send(MessageOf(draft_, second_, names));
  }
  std::vector<std::string> DraftNames() const {
    std::vector<std::string> names;
    for (const auto& tensor : draft_.plan().tensors()) names.push_back(tensor.name);
    return names;
  }

  std::size_t Resident() {
    return ResidentPages(model_.parameters().live_bytes()) +
           ResidentPages(draft_.parameters().live_bytes());
  }
  std::size_t ResidentStaging() {
    const auto slots = draft_.parameters().Staging();
    EXPECT_OK(slots);
    const std::byte* begin = slots->front().data();
    const std::size_t size = draft_.parameters().bytes();
    return ResidentPages({const_cast<std::byte*>(begin), size});
  }
  bool IsServed(std::uint8_t a, std::uint8_t b, const UnitModel::Weights& draft) {
    UnitModel cold("d.");
    cold.Load(draft);
    engine::Client client;
    EXPECT_OK(engine_->Submit(MakeRequest("probe", {4, 5}, 4), client.sink()));
    return client.Wait().tokens == model::FakeModel::Continue({4, 5}, 4, {a, b}) &&
           draft_.State() == cold.State();
  }
  void ExpectRefused(const std::string& why) {
    engine::Client client;
    EXPECT_ERROR(engine_->Submit(MakeRequest("refused", {4, 5}, 3), client.sink()),
                 Code::kUnavailable, why);
  }

  UnitModel draft_{"d."};
  UnitModel::Weights first_;
  UnitModel::Weights second_;
  base::TempDir directory_;
  base::FaultyFileSystem files_{FileSystem::Posix()};
  std::unique_ptr<Weights> weights_;
};

TEST_F(MemoryTest, ReleasedWeightsHoldNoPageAndServeAgainOnceAllAreSent) {
  Make();
  ASSERT_OK(SendDraft(DraftNames()));  // the second arena has memory, too
  EXPECT_GT(Resident(), 10U);
  EXPECT_GT(ResidentStaging(), 10U);
  const auto addresses = draft_.Addresses();
  ASSERT_OK(Release(kWeights));
  EXPECT_EQ(Resident(), 0U);
  EXPECT_EQ(ResidentStaging(), 0U);
  ExpectRefused("the weights were released and not resumed yet");
  ASSERT_OK(Resume(kWeights));
  EXPECT_EQ(draft_.Addresses(), addresses);
  ExpectRefused("tensors must be sent again: a.weight, b.weight, draft.d.a");
  ASSERT_OK(SendTarget(5, 6));
  ASSERT_OK(SendDraft({"d.a", "d.b"}));
  ExpectRefused("tensors must be sent again: draft.d.c");
  ASSERT_TRUE(weights_->session().incomplete);
  ASSERT_OK(Begin());
  ASSERT_OK(SendDraft(DraftNames()));
  ASSERT_OK(End());
  EXPECT_FALSE(weights_->session().incomplete);
  EXPECT_TRUE(IsServed(5, 6, second_));
}

TEST_F(MemoryTest, UpdatesBringReleasedWeightsBackPieceByPiece) {
  for (const std::uint64_t undo_memory : {~std::uint64_t{0}, std::uint64_t{60'000}}) {
    weights_.reset();
    Make({.undo_memory = undo_memory});
    ASSERT_OK(Release(kAll));
    ASSERT_OK(Resume(kAll));
    ASSERT_OK(SendTarget(5, 6));
    // Backwards, the modules of a unit apart from each other.
    std::vector<std::string> names = DraftNames();
    while (!names.empty()) {
      EXPECT_TRUE(weights_->session().incomplete) << names.back();
      std::vector<std::string> module = {names.back()};
      names.pop_back();
      if (module[0].contains(".weight_scale")) {
        module.push_back(names.back());
        names.pop_back();
      }
      ASSERT_OK(SendDraft(module));
    }
    EXPECT_FALSE(weights_->session().incomplete);
    EXPECT_TRUE(IsServed(5, 6, second_));
  }
}

TEST_F(MemoryTest, NothingReadsOrWritesReleasedWeights) {
  Make();
  ASSERT_OK(Release(kWeights));
  const std::string why = "the memory of the weights is released";
  EXPECT_ERROR(SendTarget(3, 4), Code::kOutOfOrder, why);
  EXPECT_ERROR(Begin(), Code::kOutOfOrder, why);
  EXPECT_ERROR(WaitFor<Result<UpdateReport>>(
                   [&](auto done) { weights_->FromDisk({.path = "/x"}, std::move(done)); }),
               Code::kOutOfOrder, why);
  EXPECT_ERROR(
      WaitFor<Result<DigestReport>>([&](auto done) { weights_->Digests({}, std::move(done)); }),
      Code::kOutOfOrder, why);
  EXPECT_ERROR(WaitFor<Result<ExportedTensor>>(
                   [&](auto done) { weights_->Export("a.weight", std::move(done)); }),
               Code::kOutOfOrder, why);
  using Action = CheckRequest::Action;
  for (const Action action :
       {Action::kSnapshot, Action::kReset, Action::kCompare, Action::kChecksum}) {
    EXPECT_ERROR(WaitFor<Result<CheckReport>>([&](auto done) {
                   weights_->Check({.action = action, .options = {}}, std::move(done));
                 }),
                 Code::kOutOfOrder, why);
  }
  EXPECT_EQ(Resident(), 0U);
}

// BR-34: nor does another engine start from them.
TEST_F(MemoryTest, WeightsThatAreNotThereAreNoSeed) {
  const auto send = [&] {
    return WaitFor<Result<SeedReport>>(
        [&](auto done) { weights_->SendSeed("group", std::move(done)); });
  };
  Make();
  ASSERT_OK(Release(kWeights));
  EXPECT_ERROR(send(), Code::kOutOfOrder, "the weights were released and not resumed yet");
  ASSERT_OK(Resume(kWeights));
  EXPECT_ERROR(send(), Code::kOutOfOrder, "tensors must be sent again");
  weights_.reset();
  ASSERT_OK(SetHold(Hold::kNone, ""));
  MakeWithBackup();
  ASSERT_OK(Release(kWeights));
  EXPECT_ERROR(send(), Code::kOutOfOrder, "the memory of the weights is released");
  EXPECT_EQ(Resident(), 0U);
}

TEST_F(MemoryTest, WithoutItsCacheTheEngineLetsRequestsWait) {
  Make();
  ASSERT_OK(Release(kKvCache));
  EXPECT_TRUE(weights_->session().released.kv_cache);
  EXPECT_FALSE(weights_->session().released.weights);
  engine::Client client;
  ASSERT_OK(engine_->Submit(MakeRequest("a", {4, 5}, 3), client.sink()));
  ASSERT_OK(Pause(PauseMode::kRetract));
  ASSERT_OK(Continue());
  ASSERT_OK(SendTarget(5, 6));  // updates go on, and release nothing
  ASSERT_OK(Begin());
  ASSERT_OK(End(/*abort=*/true));
  EXPECT_EQ(model_.steps, 0U);
  EXPECT_EQ(engine_->stats().gated, 1U);
  ASSERT_OK(Resume(kWeights));  // another part
  EXPECT_EQ(engine_->stats().hold, Hold::kWait);
  ASSERT_OK(Resume(kKvCache));
  EXPECT_EQ(client.Wait().tokens, model::FakeModel::Continue({4, 5}, 3, {5, 6}));
}

TEST_F(MemoryTest, BothAreIdempotent) {
  Make();
  ASSERT_OK(Resume(kAll));
  ASSERT_OK(Release({}));
  EXPECT_TRUE(IsServed(1, 2, first_));
  ASSERT_OK(Release(kAll));
  ASSERT_OK(Release(kAll));
  ASSERT_OK(Release(kKvCache));
  ASSERT_OK(Resume(kWeights));
  ASSERT_OK(SendTarget(5, 6));
  ASSERT_OK(SendDraft(DraftNames()));
  ASSERT_OK(Resume(kWeights));  // takes nothing away
  ASSERT_OK(Resume(kAll));
  ASSERT_OK(Resume(kAll));
  EXPECT_TRUE(IsServed(5, 6, second_));
}

TEST_F(MemoryTest, RequestsThatNeedTheEngineKeepItsMemory) {
  Make();
  HoldSteps();
  engine::Client client;
  ASSERT_OK(engine_->Submit(MakeRequest("a", {4, 5}, 2000), client.sink()));
  WaitForHeldStep();
  for (const MemoryParts parts : {kKvCache, kWeights}) {
    std::promise<Status> done;
    weights_->ReleaseMemory(parts, [&](Status status) { done.set_value(std::move(status)); });
    std::future<Status> released = done.get_future();
    while (released.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) Allow(1);
    EXPECT_ERROR(released.get(), Code::kOutOfOrder, "not idle (running: 1, waiting: 0)");
    WaitForHeldStep();
  }
  PauseHeld(PauseMode::kInPlace);
  EXPECT_ERROR(Release(kWeights), Code::kOutOfOrder, "1 requests are paused in place");
  EXPECT_ERROR(Release(kAll), Code::kOutOfOrder, "1 requests are paused in place");
  EXPECT_FALSE(weights_->session().released.weights);
  ASSERT_OK(Continue());
  Allow(10'000);
  EXPECT_EQ(client.Wait().tokens, model::FakeModel::Continue({4, 5}, 2000, {1, 2}));
}

TEST_F(MemoryTest, RequestsThatWaitWhilePausedOutliveAReleaseOfAll) {
  Make();
  HoldSteps();
  engine::Client retracted;
  ASSERT_OK(engine_->Submit(MakeRequest("a", {4, 5}, 5), retracted.sink()));
  WaitForHeldStep();
  PauseHeld(PauseMode::kRetract);
  engine::Client gated;
  ASSERT_OK(engine_->Submit(MakeRequest("b", {6}, 2), gated.sink()));
  ASSERT_OK(Release(kAll));
  ExpectRefused("the weights were released");
  ASSERT_OK(Resume(kWeights));
  ASSERT_OK(Continue());  // changes nothing yet
  ASSERT_OK(SendTarget(5, 6));
  ASSERT_OK(SendDraft(DraftNames()));
  ASSERT_OK(Resume(kKvCache));
  Allow(100);
  EXPECT_EQ(gated.Wait().tokens, model::FakeModel::Continue({6}, 2, {5, 6}));
  EXPECT_EQ(retracted.Wait().finish->kind, engine::Finish::Kind::kLength);
}

TEST_F(MemoryTest, AnUpdateUnderWayKeepsTheMemory) {
  Make();
  ASSERT_OK(Begin());
  EXPECT_ERROR(Release(kKvCache), Code::kOutOfOrder, "a weight-update session is open");
  ASSERT_OK(End(/*abort=*/true));
  ASSERT_OK(SendDraft({"d.q.weight"}));
  EXPECT_ERROR(Release(kWeights), Code::kOutOfOrder, "d.q: weight has come without");
  ASSERT_OK(End(/*abort=*/true));
  EXPECT_TRUE(IsServed(1, 2, first_));
  ASSERT_OK(Release(kWeights));
}

TEST_F(MemoryTest, AReleaseComesAfterTheUpdateThatWaitsForTheEngine) {
  Make();
  HoldSteps();
  engine::Client client;
  ASSERT_OK(engine_->Submit(MakeRequest("a", {4, 5}, 3), client.sink()));
  WaitForHeldStep();
  // Not idle now, it will be when it is the release's turn.
  std::promise<Status> updated;
  std::promise<Status> released;
  weights_->FromTensors({.payloads = {MessageOf(draft_, second_, DraftNames())},
                         .format = payload::Format::kSafetensors},
                        [&](const Result<UpdateReport>& report) {
                          updated.set_value(report ? Status() : std::unexpected(report.error()));
                        });
  weights_->ReleaseMemory(kKvCache, [&](Status status) { released.set_value(std::move(status)); });
  Allow(100);
  ASSERT_OK(updated.get_future().get());
  ASSERT_OK(released.get_future().get());
  EXPECT_EQ(client.Wait().tokens, model::FakeModel::Continue({4, 5}, 3, {1, 2}));
}

// ---- with a backup ----

TEST_F(MemoryTest, ABackupBringsTheWeightsBack) {
  MakeWithBackup();
  ASSERT_OK(Release(kWeights));
  EXPECT_EQ(Resident(), 0U);
  ASSERT_OK_AND_ASSIGN(const auto left, FileSystem::Posix().List(directory_.path()));
  EXPECT_THAT(left, IsEmpty());  // the file has no name
  EXPECT_FALSE(weights_->session().incomplete);
  EXPECT_ERROR(SendTarget(5, 6), Code::kOutOfOrder, "released");
  engine::Client client;
  ASSERT_OK(engine_->Submit(MakeRequest("a", {4, 5}, 3), client.sink()));
  ASSERT_OK(Resume(kWeights));
  EXPECT_EQ(client.Wait().tokens, model::FakeModel::Continue({4, 5}, 3, {1, 2}));
  EXPECT_TRUE(IsServed(1, 2, first_));
}

TEST_F(MemoryTest, ABackupThatCannotBeWrittenChangesNothing) {
  MakeWithBackup();
  for (const char* operation : {"open", "allocate", "write"}) {
    files_.FailNth(operation, "syncline-weights", 0, {Code::kNoSpace, "the disk is full"});
    EXPECT_ERROR(Release(kAll), Code::kNoSpace, "the disk is full");
    EXPECT_FALSE(weights_->session().released.weights);
    EXPECT_FALSE(weights_->session().released.kv_cache);
    EXPECT_TRUE(IsServed(1, 2, first_));
  }
}

TEST_F(MemoryTest, ABackupThatCannotBeReadLeavesTheWeightsReleased) {
  MakeWithBackup();
  ASSERT_OK(Release(kAll));
  files_.FailNth("read", "syncline-weights", 1, {Code::kIo, "broken"});
  EXPECT_ERROR(Resume(kAll), Code::kIo, "the weights stay released: broken");
  EXPECT_TRUE(weights_->session().released.weights);
  EXPECT_TRUE(weights_->session().released.kv_cache);
  EXPECT_EQ(Resident(), 0U);
  ASSERT_OK(Resume(kAll));
  EXPECT_TRUE(IsServed(1, 2, first_));
}

// ---- memory that is not there ----

class ScarceModel : public model::FakeModel {
 public:
  Status ReserveKv(std::uint32_t blocks) override {
    asked.push_back(blocks);
    if (blocks > 0 && scarce) return base::Fail(Code::kLimitExceeded, "no memory");
    return FakeModel::ReserveKv(blocks);
  }
  bool scarce = false;
  std::vector<std::uint32_t> asked;
};

TEST(ScarceMemory, ACacheThatCannotBeTakenStaysReleased) {
  ScarceModel model;
  const text::Vocabulary vocabulary;
  ASSERT_OK_AND_ASSIGN(const auto engine, engine::Engine::Start({.kv_cache_bytes = 1 << 16}, model,
                                                                vocabulary, {}, "v"));
  const auto weights = Weights::Create(FileSystem::Posix(), *engine, model, {});
  const auto change = [&](bool release) {
    std::promise<Status> done;
    const auto tell = [&](Status status) { done.set_value(std::move(status)); };
    release ? weights->ReleaseMemory(kKvCache, tell) : weights->ResumeMemory(kKvCache, tell);
    return done.get_future().get();
  };
  ASSERT_OK(change(true));
  model.scarce = true;
  EXPECT_ERROR(change(false), Code::kLimitExceeded,
               "the key-value cache stays released: no memory");
  EXPECT_TRUE(weights->session().released.kv_cache);
  EXPECT_EQ(engine->stats().hold, Hold::kWait);
  model.scarce = false;
  ASSERT_OK(change(false));
  EXPECT_FALSE(weights->session().released.kv_cache);
  EXPECT_EQ(engine->stats().hold, Hold::kNone);
  EXPECT_THAT(model.asked, testing::ElementsAre(1024, 0, 1024, 0, 1024));
  engine->Stop();
}

}  // namespace
}  // namespace syncline::update
