// Sessions over one rank: the fake model as the target, and a model of all kinds of parameters as a
// stand-in for a draft.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <future>
#include <map>
#include <memory>
#include <thread>

#include "base/result_matchers.h"
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
using tensor::Dtype;
using tensor::TensorView;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kNotOpen =
    "no weight-update session is open; call begin_weight_update() first";
constexpr const char* kOpen =
    "a weight-update session is already open; call end_weight_update() first";
constexpr const char* kOutside =
    "update_weights_from_tensor must run between begin_weight_update() and end_weight_update()";

class SessionsTest : public engine::EngineTest {
 protected:
  void SetUp() override {
    Start();
    const base::MutableByteSpan ab = model_.parameters().live()[0];
    std::ranges::fill(ab.first(8), std::byte{1});
    std::ranges::fill(ab.subspan(8), std::byte{2});
    draft_.Load(draft_.RandomWeights(1));
  }
  void TearDown() override {
    engine_->Stop();
    weights_.reset();
    EngineTest::TearDown();
  }

  void Make(Weights::Options options = {}) {
    options.launch_path = "/launch";
    weights_ = Weights::Create(FileSystem::Posix(), *engine_, model_, std::move(options));
  }
  void MakeWithDraft(Weights::Options options = {}) {
    options.drafts = {{.role = "draft", .model = &draft_}};
    Make(std::move(options));
  }

  Status Begin(BeginRequest request = {}) {
    return WaitFor<Status>([&](auto done) { weights_->Begin(request, std::move(done)); });
  }
  Result<UpdateReport> End(bool abort = false) {
    return WaitFor<Result<UpdateReport>>(
        [&](auto done) { weights_->End({.abort = abort}, std::move(done)); });
  }
  Result<UpdateReport> Send(TensorUpdate update) {
    update.format = payload::Format::kSafetensors;
    return WaitFor<Result<UpdateReport>>(
        [&](auto done) { weights_->FromTensors(std::move(update), std::move(done)); });
  }
  Status SetVersion(const std::string& label) {
    return WaitFor<Status>([&](auto done) { weights_->SetVersion(label, std::move(done)); });
  }
  std::map<std::string, std::string> Digests() {
    const auto report =
        WaitFor<Result<DigestReport>>([&](auto done) { weights_->Digests({}, std::move(done)); });
    EXPECT_OK(report);
    std::map<std::string, std::string> digests = {{"derived", report->derived[0]}};
    for (const DigestReport::Tensor& tensor : report->tensors) {
      digests[tensor.name] = tensor.digest.Hex();
    }
    return digests;
  }
  Result<CheckReport> Check(CheckRequest::Action action, Selector selector = Selector::kAll) {
    return WaitFor<Result<CheckReport>>([&](auto done) {
      weights_->Check({.action = action, .selector = selector, .options = {}}, std::move(done));
    });
  }

  // A tensor of the target whose bytes are all `value`.
  static TensorUpdate One(const std::string& name, std::uint8_t value, std::size_t size = 8) {
    const std::vector<std::byte> bytes(size, std::byte{value});
    const TensorView view = {name, Dtype::kU8, {size}, bytes};
    TensorUpdate update;
    update.payloads = {MessageOf({&view, 1})};
    return update;
  }
  TensorUpdate OfDraft(const std::vector<std::string>& names, std::uint64_t seed) const {
    TensorUpdate update;
    update.payloads = {MessageOf(draft_, draft_.RandomWeights(seed), names)};
    return update;
  }
  std::vector<std::string> DraftNames() const {
    std::vector<std::string> names;
    for (const auto& tensor : draft_.plan().tensors()) names.push_back(tensor.name);
    return names;
  }
  std::vector<std::vector<std::byte>> ColdDraft(std::uint64_t seed) const {
    UnitModel model("d.");
    model.Load(model.RandomWeights(seed));
    return model.State();
  }

  std::byte Live(std::size_t offset) { return model_.parameters().live()[0][offset]; }
  void ExpectServed(std::uint8_t a, std::uint8_t b, const std::string& version) {
    EXPECT_EQ(Live(0), std::byte{a});
    EXPECT_EQ(Live(8), std::byte{b});
    EXPECT_EQ(engine_->stats().weight_version, version);
    EXPECT_EQ(Generate(4), model::FakeModel::Continue({4, 5}, 4, {a, b}));
  }
  std::vector<engine::TokenId> Generate(std::uint32_t count) {
    engine::Client client;
    EXPECT_OK(engine_->Submit(MakeRequest("probe" + std::to_string(++probes_), {4, 5}, count),
                              client.sink()));
    return client.Wait().tokens;
  }

  UnitModel draft_{"d."};
  int probes_ = 0;
  std::unique_ptr<Weights> weights_;
};

TEST_F(SessionsTest, WhatCameBecomesLiveAtTheEndAtOnceWithItsVersion) {
  Make();
  ASSERT_OK(Begin());
  TensorUpdate first = One("a.weight", 3);
  first.weight_version = "two";
  ASSERT_OK(Send(std::move(first)));
  // Generation goes on with the old weights, whole.
  ExpectServed(1, 2, "v0");
  ASSERT_OK(Send(One("b.weight", 4)));
  ExpectServed(1, 2, "v0");
  EXPECT_TRUE(weights_->session().open);
  EXPECT_TRUE(weights_->session().loaded);
  EXPECT_EQ(weights_->session().weight_version, "two");
  ASSERT_OK_AND_ASSIGN(const UpdateReport report, End());
  EXPECT_TRUE(report.undoable);
  EXPECT_FALSE(report.unchanged);
  ExpectServed(3, 4, "two");
  EXPECT_FALSE(weights_->session().open);
}

TEST_F(SessionsTest, HalfOfAFusedParameterLeavesTheOtherHalf) {
  Make();
  ASSERT_OK(Begin());
  ASSERT_OK(Send(One("b.weight", 9)));
  ASSERT_OK(End());
  ExpectServed(1, 9, "v0");
}

TEST_F(SessionsTest, NothingSentChangesNothing) {
  MakeWithDraft();
  const auto before = draft_.State();
  ASSERT_OK(Begin());
  ASSERT_OK(End());
  ExpectServed(1, 2, "v0");
  EXPECT_EQ(draft_.State(), before);
}

// Who writes straight into parameters sends no update: the end derives anew.
TEST_F(SessionsTest, NothingSentDerivesWhatIsDerived) {
  MakeWithDraft();
  const auto before = draft_.State();
  const std::size_t derived = draft_.plan().FindParameter("d.absorbed");
  std::ranges::fill(draft_.parameters().live()[derived], std::byte{7});
  ASSERT_OK(Begin());
  EXPECT_NE(draft_.State(), before);
  ASSERT_OK(End());
  EXPECT_EQ(draft_.State(), before);
}

TEST_F(SessionsTest, OutOfOrder) {
  Make();
  EXPECT_ERROR(End(), Code::kOutOfOrder, kNotOpen);
  EXPECT_ERROR(End(/*abort=*/true), Code::kOutOfOrder, kNotOpen);
  ASSERT_OK(Begin({.selector = Selector::kTarget}));
  EXPECT_ERROR(Begin(), Code::kOutOfOrder, kOpen);
  EXPECT_ERROR(Begin({.selector = Selector::kTarget, .sync_base = false}), Code::kOutOfOrder,
               kOpen);
  EXPECT_TRUE(weights_->session().open);
  ASSERT_OK(End());
  EXPECT_ERROR(End(), Code::kOutOfOrder, kNotOpen);
  ExpectServed(1, 2, "v0");
}

// A trainer that died and came back.
TEST_F(SessionsTest, TheSameBeginAgainStartsAnew) {
  Make();
  ASSERT_OK(Begin());
  TensorUpdate lost = One("a.weight", 3);
  lost.weight_version = "lost";
  ASSERT_OK(Send(std::move(lost)));
  ASSERT_OK(Begin());
  EXPECT_FALSE(weights_->session().loaded);
  EXPECT_EQ(weights_->session().weight_version, std::nullopt);
  ASSERT_OK(Send(One("b.weight", 4)));
  ASSERT_OK(End());
  ExpectServed(1, 4, "v0");
}

TEST_F(SessionsTest, AbortLeavesNoTrace) {
  Make();
  ASSERT_OK(Begin());
  TensorUpdate update = One("a.weight", 3);
  update.weight_version = "two";
  ASSERT_OK(Send(std::move(update)));
  ASSERT_OK(End(/*abort=*/true));
  ExpectServed(1, 2, "v0");
  ASSERT_OK(Begin());
  ASSERT_OK(Send(One("b.weight", 5)));
  ASSERT_OK(End());
  ExpectServed(1, 5, "v0");
}

// BR-34: a failed chunk neither leaves a mix nor blocks who comes next.
TEST_F(SessionsTest, BR34AFailedUpdateIsUndoneAtTheEnd) {
  Make();
  for (const TensorUpdate& wrong :
       {One("c.weight", 1), One("b.weight", 1, 9),
        TensorUpdate{.payloads = {std::vector<std::byte>(3, std::byte{1})}}}) {
    ASSERT_OK(Begin());
    ASSERT_OK(Send(One("a.weight", 3)));
    const auto failed = Send(wrong);
    ASSERT_FALSE(failed);
    EXPECT_TRUE(weights_->session().failure);
    EXPECT_ERROR(Send(One("b.weight", 4)), Code::kOutOfOrder, failed.error().message);
    EXPECT_ERROR(End(), Code::kOutOfOrder, failed.error().message);
    EXPECT_FALSE(weights_->session().open);
    ExpectServed(1, 2, "v0");
  }
  ASSERT_OK(Begin());
  TensorUpdate update = One("a.weight", 3);
  update.weight_version = "two";
  ASSERT_OK(Send(std::move(update)));
  ASSERT_OK(End());
  ExpectServed(3, 2, "two");
}

TEST_F(SessionsTest, AMessageIsTakenAsAWholeOrNotAtAll) {
  Make();
  const std::vector<std::byte> good(8, std::byte{3});
  const std::vector<TensorView> views = {{"a.weight", Dtype::kU8, {8}, good},
                                         {"b.weight", Dtype::kU8, {4, 2}, good}};
  TensorUpdate update;
  update.payloads = {MessageOf(views)};
  EXPECT_ERROR(Send(std::move(update)), Code::kInvalidArgument, "shape [4, 2], expected [8]");
  ExpectServed(1, 2, "v0");
}

TEST_F(SessionsTest, LabelsWaitForTheEnd) {
  Make();
  ASSERT_OK(SetVersion("before"));
  EXPECT_EQ(engine_->stats().weight_version, "before");
  ASSERT_OK(Begin());
  ASSERT_OK(SetVersion("pending"));
  EXPECT_EQ(engine_->stats().weight_version, "before");
  EXPECT_EQ(weights_->session().weight_version, "pending");
  ASSERT_OK(End());
  EXPECT_EQ(engine_->stats().weight_version, "pending");
  ASSERT_OK(Begin());
  ASSERT_OK(SetVersion("never"));
  ASSERT_OK(End(/*abort=*/true));
  EXPECT_EQ(engine_->stats().weight_version, "pending");
}

TEST_F(SessionsTest, Rules) {
  Make({.sessions = SessionRule::kRequired});
  EXPECT_ERROR(Send(One("a.weight", 3)), Code::kOutOfOrder, kOutside);
  ASSERT_OK(Begin());
  ASSERT_OK(Send(One("a.weight", 3)));
  ASSERT_OK(End());
  ExpectServed(3, 2, "v0");
  weights_.reset();
  Make({.sessions = SessionRule::kIgnored});
  ASSERT_OK(Begin());
  ASSERT_OK(Begin({.selector = Selector::kTarget}));
  ASSERT_OK(Send(One("a.weight", 5)));
  ExpectServed(5, 2, "v0");
  ASSERT_OK(End());
  ASSERT_OK(End());
}

TEST_F(SessionsTest, AnAdapterSessionRefusesBaseTensors) {
  Make();
  ASSERT_OK(Begin({.sync_base = false}));
  EXPECT_ERROR(Send(One("a.weight", 3)), Code::kOutOfOrder,
               "base tensors arrived in a sync_base=False weight-update session");
  ASSERT_OK(End());
  ExpectServed(1, 2, "v0");
}

TEST_F(SessionsTest, ASessionThatIsLeftAloneIsUndone) {
  Make({.session_timeout = std::chrono::milliseconds(60)});
  ASSERT_OK(Begin());
  ASSERT_OK(Send(One("a.weight", 3)));
  while (weights_->session().open) std::this_thread::yield();
  EXPECT_ERROR(End(), Code::kOutOfOrder, kNotOpen);
  ExpectServed(1, 2, "v0");
  ASSERT_OK(Begin({.selector = Selector::kTarget}));
}

TEST_F(SessionsTest, ACheckpointDropsWhatCameInTheSession) {
  Make();
  ASSERT_OK(Begin());
  ASSERT_OK(Send(One("a.weight", 3)));
  const auto missing = WaitFor<Result<UpdateReport>>(
      [&](auto done) { weights_->FromDisk({.path = "/nowhere"}, std::move(done)); });
  EXPECT_FALSE(missing);
  EXPECT_TRUE(weights_->session().open);
  // What came before is gone, so the session cannot be what was meant.
  EXPECT_ERROR(End(), Code::kOutOfOrder, "dropped for an update from disk");
  ExpectServed(1, 2, "v0");
}

// ---- several runners ----

TEST_F(SessionsTest, OneMessageFeedsAllRunnersThatKnowItsTensors) {
  MakeWithDraft();
  ASSERT_OK(Begin());
  ASSERT_OK(Send(One("a.weight", 3)));
  ASSERT_OK(Send(OfDraft(DraftNames(), 5)));
  EXPECT_EQ(draft_.State(), ColdDraft(1));
  ASSERT_OK(End());
  ExpectServed(3, 2, "v0");
  EXPECT_EQ(draft_.State(), ColdDraft(5));
  EXPECT_ERROR(Send(One("e.weight", 1)), Code::kNotFound, "e.weight");
}

TEST_F(SessionsTest, SelectorsChooseRunners) {
  MakeWithDraft();
  ASSERT_OK(Begin({.selector = Selector::kTarget}));
  EXPECT_ERROR(Send(OfDraft({"d.plain"}, 5)), Code::kNotFound, "d.plain");
  EXPECT_FALSE(End());
  ASSERT_OK(Begin({.selector = Selector::kTarget}));
  TensorUpdate draft = OfDraft({"d.plain"}, 5);
  draft.selector = Selector::kDraft;
  EXPECT_ERROR(Send(std::move(draft)), Code::kInvalidArgument, "selector=draft");
  // Refused, not failed.
  ASSERT_OK(Send(One("a.weight", 3)));
  ASSERT_OK(End());
  EXPECT_EQ(draft_.State(), ColdDraft(1));
  ASSERT_OK(Begin({.selector = Selector::kDraft}));
  ASSERT_OK(Send(OfDraft(DraftNames(), 6)));
  ASSERT_OK(End());
  ExpectServed(3, 2, "v0");
  EXPECT_EQ(draft_.State(), ColdDraft(6));
}

TEST_F(SessionsTest, DraftsOfAnEngineThatHasNone) {
  Make();
  ASSERT_OK(Begin({.selector = Selector::kDraft}));
  ASSERT_OK(Send(One("a.weight", 3)));
  ASSERT_OK(End());
  ExpectServed(1, 2, "v0");
}

// BR-30: a draft that is to be updated, and gets nothing.
TEST_F(SessionsTest, BR30ADraftThatGotNothingIsNamed) {
  MakeWithDraft();
  ASSERT_OK(Begin());
  ASSERT_OK(Send(One("a.weight", 3)));
  EXPECT_ERROR(End(), Code::kNotFound, "the runner draft");
  ExpectServed(1, 2, "v0");
  ASSERT_OK(Begin({.selector = Selector::kTarget}));
  ASSERT_OK(Send(One("a.weight", 3)));
  ASSERT_OK(End());
  ExpectServed(3, 2, "v0");
}

// ---- pairs ----

// BR-21: what is missing when the session ends is named, and nothing of it stays.
TEST_F(SessionsTest, BR21AWeightWithoutItsScaleFailsTheEnd) {
  MakeWithDraft();
  ASSERT_OK(Begin());
  ASSERT_OK(Send(OfDraft({"d.q.weight", "d.plain"}, 5)));
  EXPECT_ERROR(End(), Code::kOutOfOrder, "d.q: weight has come without weight_scale_inv");
  EXPECT_EQ(draft_.State(), ColdDraft(1));
}

// Outside a session the half waits, and nothing is generated until the rest is there.
TEST_F(SessionsTest, APairMayComeInTwoUpdates) {
  MakeWithDraft();
  ASSERT_OK_AND_ASSIGN(UpdateReport report, Send(OfDraft({"d.q.weight"}, 5)));
  EXPECT_THAT(report.pending, ElementsAre("draft.d.q: weight has come without weight_scale_inv"));
  EXPECT_EQ(weights_->session().pending, report.pending);
  EXPECT_EQ(engine_->stats().hold, Hold::kWait);
  engine::Client client;
  ASSERT_OK(engine_->Submit(MakeRequest("waits", {4, 5}, 3), client.sink()));
  EXPECT_EQ(draft_.State(), ColdDraft(1));
  ASSERT_OK_AND_ASSIGN(report, Send(OfDraft({"d.q.weight_scale_inv"}, 5)));
  EXPECT_TRUE(report.pending.empty());
  EXPECT_NE(draft_.State(), ColdDraft(1));
  EXPECT_EQ(client.Wait().tokens, model::FakeModel::Continue({4, 5}, 3, {1, 2}));
  // Nobody comes back for the rest: whoever aborts, or begins, frees the engine.
  const auto before = draft_.State();
  ASSERT_OK(Send(OfDraft({"d.k.weight"}, 6)));
  EXPECT_EQ(engine_->stats().hold, Hold::kWait);
  ASSERT_OK(End(/*abort=*/true));
  EXPECT_EQ(engine_->stats().hold, Hold::kNone);
  EXPECT_EQ(draft_.State(), before);
}

// An update of other runners does not let the engine go on meanwhile.
TEST_F(SessionsTest, AHalfOfARunnerThatIsNotSelectedGoesOnWaiting) {
  MakeWithDraft({.undo_memory = 0});
  ASSERT_OK_AND_ASSIGN(UpdateReport report, Send(OfDraft({"d.q.weight"}, 5)));
  ASSERT_EQ(report.pending.size(), 1U);
  TensorUpdate other = One("a.weight", 3);
  other.selector = Selector::kTarget;
  ASSERT_OK_AND_ASSIGN(report, Send(std::move(other)));
  EXPECT_THAT(report.pending, ElementsAre("draft.d.q: weight has come without weight_scale_inv"));
  EXPECT_EQ(weights_->session().pending, report.pending);
  EXPECT_EQ(engine_->stats().hold, Hold::kWait);
  ASSERT_OK_AND_ASSIGN(report, Send(OfDraft({"d.q.weight_scale_inv"}, 5)));
  EXPECT_EQ(engine_->stats().hold, Hold::kNone);
  ExpectServed(3, 2, "v0");
}

// ---- failures ----

// At every tensor of an update: the old bytes and version stay, of all runners, and the next update
// works.
TEST_F(SessionsTest, AFailureAtAnyTensorLeavesNoTraceInAnyRunner) {
  MakeWithDraft();
  const auto before = Digests();
  EXPECT_TRUE(before.contains("ab.weight") || before.contains("a.weight"));
  EXPECT_TRUE(before.contains("draft.d.q.weight"));
  const UnitModel::Weights next = draft_.RandomWeights(5);
  const auto& tensors = draft_.plan().tensors();
  for (std::size_t wrong = 0; wrong < tensors.size(); ++wrong) {
    ASSERT_OK(Begin());
    ASSERT_OK(Send(One("a.weight", 3)));
    bool failed = false;
    for (std::size_t i = 0; i < tensors.size() && !failed; ++i) {
      TensorView view = {tensors[i].name, tensors[i].dtype, tensors[i].shape, next[i]};
      if (i == wrong) view.shape.push_back(1);
      TensorUpdate update;
      update.payloads = {MessageOf({&view, 1})};
      if (i == wrong && wrong % 2 == 1) update.payloads[0].pop_back();
      failed = !Send(std::move(update));
      EXPECT_EQ(failed, i == wrong) << tensors[i].name;
    }
    EXPECT_FALSE(End());
    ASSERT_EQ(Digests(), before) << tensors[wrong].name;
  }
  ASSERT_OK(Begin());
  TensorUpdate update = OfDraft(DraftNames(), 5);
  update.weight_version = "two";
  ASSERT_OK(Send(std::move(update)));
  ASSERT_OK(Send(One("a.weight", 3)));
  ASSERT_OK(End());
  EXPECT_EQ(draft_.State(), ColdDraft(5));
  ExpectServed(3, 2, "two");
}

// The memory for what is staged is a file, so that this limit stands for a machine that has no more.
TEST_F(SessionsTest, NoMemoryForWhatIsStagedIsAnError) {
  MakeWithDraft();
  const auto before = Digests();
  signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  rlimit little = limit;
  little.rlim_cur = 4096;
  ASSERT_OK(Begin());
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &little), 0);
  const auto refused = Send(OfDraft(DraftNames(), 5));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("syncline-staging"));
  EXPECT_ERROR(End(), Code::kOutOfOrder, "syncline-staging");
  EXPECT_EQ(Digests(), before);
  ASSERT_OK(Begin({.selector = Selector::kDraft}));
  ASSERT_OK(Send(OfDraft(DraftNames(), 5)));
  ASSERT_OK(End());
  EXPECT_EQ(draft_.State(), ColdDraft(5));
}

// ---- without undo ----

TEST_F(SessionsTest, InPlaceNothingIsGeneratedFromBeginToEnd) {
  Make({.undo_memory = 0});
  ASSERT_OK(Begin());
  EXPECT_EQ(engine_->stats().hold, Hold::kWait);
  engine::Client client;
  ASSERT_OK(engine_->Submit(MakeRequest("waits", {4, 5}, 3), client.sink()));
  ASSERT_OK_AND_ASSIGN(const UpdateReport report, Send(One("a.weight", 3)));
  EXPECT_FALSE(report.undoable);
  EXPECT_EQ(Live(0), std::byte{3});
  EXPECT_EQ(model_.steps, 0U);
  ASSERT_OK(End());
  EXPECT_EQ(client.Wait().tokens, model::FakeModel::Continue({4, 5}, 3, {3, 2}));
}

// BR-34: it never serves a mix.
TEST_F(SessionsTest, BR34AFailureInPlaceRefusesToGenerateUntilAllHasComeAnew) {
  Make({.undo_memory = 0});
  ASSERT_OK(Begin());
  ASSERT_OK(Send(One("a.weight", 3)));
  ASSERT_OK(End(/*abort=*/true));
  ASSERT_TRUE(weights_->session().incomplete);
  EXPECT_THAT(*weights_->session().incomplete, HasSubstr("a.weight, b.weight"));
  engine::Client client;
  EXPECT_ERROR(engine_->Submit(MakeRequest("refused", {4, 5}, 3), client.sink()),
               Code::kUnavailable, "incomplete update");
  ASSERT_OK(Send(One("a.weight", 5)));
  EXPECT_TRUE(weights_->session().incomplete);  // b.weight may be of any version
  ASSERT_OK(Begin());
  ASSERT_OK(Send(One("a.weight", 6)));
  ASSERT_OK(Send(One("b.weight", 7)));
  ASSERT_OK(End());
  EXPECT_FALSE(weights_->session().incomplete);
  ExpectServed(6, 7, "v0");
}

TEST_F(SessionsTest, InPlaceAWrongMessageThatWroteNothingLosesNothing) {
  Make({.undo_memory = 0});
  EXPECT_ERROR(Send(One("c.weight", 1)), Code::kNotFound, "c.weight");
  ExpectServed(1, 2, "v0");
  ASSERT_OK(Send(One("a.weight", 3)));
  ExpectServed(3, 2, "v0");
}

// ---- flush ----

TEST_F(SessionsTest, AFlushOverResidentRequestsIsRefusedBeforeAnythingIsDone) {
  Make();
  HoldSteps();
  engine::Client client;
  ASSERT_OK(engine_->Submit(MakeRequest("a", {7}, 8), client.sink()));
  Allow(2);
  client.WaitForTokens(2);
  WaitForHeldStep();
  PauseHeld(engine::PauseMode::kInPlace);
  ASSERT_OK(Begin());
  EXPECT_ERROR(Send(One("a.weight", 3)), Code::kOutOfOrder, "flush_cache=false");
  TensorUpdate update = One("a.weight", 3);
  update.flush_cache = false;
  ASSERT_OK(Send(std::move(update)));
  ASSERT_OK(End());
  EXPECT_EQ(Live(0), std::byte{3});
  Allow(1000);
  ASSERT_OK(Continue());
  EXPECT_EQ(client.Wait().tokens.size(), 8U);
}

// Generation has been continued since, but a half holds the engine.
TEST_F(SessionsTest, AFlushOverRequestsThatAHalfHoldsUpDropsNothing) {
  MakeWithDraft();
  HoldSteps();
  engine::Client client;
  ASSERT_OK(engine_->Submit(MakeRequest("a", {7}, 8), client.sink()));
  Allow(2);
  client.WaitForTokens(2);
  WaitForHeldStep();
  PauseHeld(engine::PauseMode::kInPlace);
  TensorUpdate half = OfDraft({"d.q.weight"}, 5);
  half.flush_cache = false;
  ASSERT_OK(Send(std::move(half)));
  ASSERT_OK(Continue());
  EXPECT_ERROR(Send(OfDraft({"d.q.weight_scale_inv"}, 5)), Code::kOutOfOrder, "flush_cache=false");
  EXPECT_EQ(weights_->session().pending.size(), 1U);
  TensorUpdate rest = OfDraft({"d.q.weight_scale_inv"}, 5);
  rest.flush_cache = false;
  Allow(1000);
  ASSERT_OK(Send(std::move(rest)));
  EXPECT_EQ(client.Wait().tokens.size(), 8U);
}

// ---- checks ----

TEST_F(SessionsTest, ChecksNameWhatDiffersInEachRunner) {
  MakeWithDraft();
  using Action = CheckRequest::Action;
  EXPECT_ERROR(Check(Action::kCompare), Code::kOutOfOrder, "snapshot");
  ASSERT_OK(Check(Action::kSnapshot));
  ASSERT_OK_AND_ASSIGN(CheckReport report, Check(Action::kCompare));
  EXPECT_EQ(report.message, "");
  EXPECT_GT(report.compared, 5U);
  ASSERT_OK(Begin());
  ASSERT_OK(Send(One("a.weight", 3)));
  ASSERT_OK(Send(OfDraft({"d.plain"}, 5)));
  ASSERT_OK(End());
  ASSERT_OK_AND_ASSIGN(report, Check(Action::kCompare));
  EXPECT_THAT(report.message, HasSubstr("name=ab.weight"));
  EXPECT_THAT(report.message, HasSubstr("[draft] name=d.plain"));
  EXPECT_THAT(report.message, HasSubstr("name=d.plain"));
  EXPECT_THAT(report.put_back, testing::IsEmpty());
  ASSERT_OK_AND_ASSIGN(report, Check(Action::kChecksum));
  ASSERT_EQ(report.ranks.size(), 1U);
  ASSERT_EQ(report.ranks[0].size(), 2U);
  EXPECT_EQ(report.ranks[0][0].role, "target");
  EXPECT_EQ(report.ranks[0][0].checksums.tensors[0].name, "ab.weight");
  EXPECT_EQ(report.ranks[0][1].role, "draft");
  EXPECT_THAT(report.ranks[0][1].checksums.tensors[0].name, HasSubstr("draft.d.abc"));
  EXPECT_EQ(report.ranks[0][1].checksums.derived[0].name, "draft.d.absorbed");
}

// BR-44: noise that no update has overwritten does not stay.
TEST_F(SessionsTest, BR44AFailedCheckPutsBackWhatNoUpdateHasWritten) {
  MakeWithDraft();
  using Action = CheckRequest::Action;
  ASSERT_OK(Check(Action::kSnapshot));
  ASSERT_OK(Check(Action::kReset));
  EXPECT_NE(draft_.State(), ColdDraft(1));
  ASSERT_OK(Begin({.selector = Selector::kDraft}));
  ASSERT_OK(Send(OfDraft(DraftNames(), 5)));
  ASSERT_OK(End());
  ASSERT_OK_AND_ASSIGN(const CheckReport report, Check(Action::kCompare));
  EXPECT_THAT(report.message, HasSubstr("name=ab.weight"));
  EXPECT_THAT(report.put_back, ElementsAre("ab.weight"));
  ExpectServed(1, 2, "v0");
  EXPECT_EQ(draft_.State(), ColdDraft(5));
}

TEST_F(SessionsTest, ResetThenAFullUpdateThenCompare) {
  MakeWithDraft();
  using Action = CheckRequest::Action;
  ASSERT_OK(Check(Action::kSnapshot));
  ASSERT_OK(Check(Action::kReset));
  ASSERT_OK(Begin());
  ASSERT_OK(Send(One("a.weight", 1)));
  ASSERT_OK(Send(One("b.weight", 2)));
  ASSERT_OK(Send(OfDraft(DraftNames(), 1)));
  ASSERT_OK(End());
  ASSERT_OK_AND_ASSIGN(const CheckReport report, Check(Action::kCompare));
  EXPECT_EQ(report.message, "");
  EXPECT_EQ(draft_.State(), ColdDraft(1));
}

}  // namespace
}  // namespace syncline::update
