// Pauses, aborts, flushes, exclusive commands and versions, with requests in every state.
#include <fmt/core.h>
#include <gmock/gmock.h>

#include <array>

#include "engine/engine.h"
#include "engine/engine_testing.h"

namespace syncline::engine {
namespace {

using model::FakeModel;
using testing::IsEmpty;
using Tokens = std::vector<TokenId>;

std::vector<std::tuple<std::string, int, int>> Spans(const std::vector<VersionSpan>& spans) {
  std::vector<std::tuple<std::string, int, int>> result;
  for (const VersionSpan& span : spans) result.emplace_back(span.version, span.start, span.end);
  return result;
}
using SpanList = std::vector<std::tuple<std::string, int, int>>;

class EngineControlTest : public EngineTest {
 protected:
  // A request that has told exactly `tokens` tokens, the engine waiting before its next step.
  void StartAt(std::size_t tokens, Client& client, std::uint32_t count) {
    HoldSteps();
    Start();
    ASSERT_OK(engine_->Submit(MakeRequest("a", {7, 8}, count), client.sink()));
    Allow(tokens);
    client.WaitForTokens(tokens);
    WaitForHeldStep();
  }
};

// The tokens of {7, 8} where the weights (a, b) hold for output tokens of each span, and what the
// cache holds is as the mode says.
Tokens Expected(const std::vector<VersionSpan>& spans, bool keeps_cache, FakeModel::Weights later) {
  Tokens tokens = {7, 8};
  std::vector<FakeModel::Weights> weights(2);
  for (const VersionSpan& span : spans) {
    const bool first = span.start == 0;
    if (!first && !keeps_cache) weights.assign(weights.size(), later);
    for (std::uint32_t i = span.start; i < span.end; ++i) {
      const FakeModel::Weights now = first ? FakeModel::Weights{} : later;
      // The newest token is written to the cache in the step that reads it.
      weights.back() = now;
      tokens.push_back(FakeModel::Next(tokens, weights));
      weights.push_back(now);
    }
  }
  return {tokens.begin() + 2, tokens.end()};
}

TEST_F(EngineControlTest, RetractedRequestIsComputedAgainUnderTheNewWeights) {
  Client client;
  StartAt(5, client, 20);
  PauseHeld(PauseMode::kRetract);
  EXPECT_EQ(engine_->stats().kv_tokens_used, 0U);
  ASSERT_OK(Flush());
  ASSERT_OK(SetWeights(3, 4, {.flush = true, .label = "v1"}));
  ASSERT_OK(Continue());
  Allow(100);
  const Event event = client.Wait();
  EXPECT_EQ(event.retractions, 1U);
  EXPECT_EQ(Spans(event.weight_versions), (SpanList{{"v0", 0, 6}, {"v1", 6, 20}}));
  EXPECT_EQ(Spans(event.prefill_weight_versions), (SpanList{{"v1", 0, 2}}));
  EXPECT_EQ(event.weight_version, "v1");
  EXPECT_EQ(event.tokens, Expected(event.weight_versions, false, {3, 4}));
}

TEST_F(EngineControlTest, RequestPausedInPlaceKeepsItsCache) {
  Client client;
  StartAt(5, client, 20);
  PauseHeld(PauseMode::kInPlace);
  EXPECT_GT(engine_->stats().kv_tokens_used, 0U);
  ASSERT_OK(SetWeights(3, 4, {.flush = false, .label = "v1"}));
  ASSERT_OK(Continue());
  Allow(100);
  const Event event = client.Wait();
  EXPECT_EQ(event.retractions, 0U);
  EXPECT_EQ(Spans(event.weight_versions), (SpanList{{"v0", 0, 6}, {"v1", 6, 20}}));
  EXPECT_EQ(Spans(event.prefill_weight_versions), (SpanList{{"v0", 0, 2}}));
  EXPECT_EQ(event.tokens, Expected(event.weight_versions, true, {3, 4}));
}

TEST_F(EngineControlTest, FlushOverRequestsPausedInPlaceIsRefusedBeforeTheWeightsChange) {
  Client client;
  StartAt(2, client, 20);
  PauseHeld(PauseMode::kInPlace);
  EXPECT_ERROR(Flush(), base::Code::kOutOfOrder, "Running: 1");
  EXPECT_ERROR(SetWeights(3, 4, {.flush = true, .label = "v1"}), base::Code::kOutOfOrder,
               "paused in place");
  EXPECT_EQ(engine_->stats().weight_version, "v0");
  ASSERT_OK(Continue());
  Allow(100);
  EXPECT_EQ(client.Wait().tokens, FakeModel::Continue({7, 8}, 20));
}

TEST_F(EngineControlTest, AbortingPauseEndsWhatRunsAndGatesWhatComes) {
  Client client;
  StartAt(3, client, 20);
  PauseHeld(PauseMode::kAbort);
  const Event event = client.Wait();
  EXPECT_EQ(event.finish->kind, Finish::Kind::kAbort);
  EXPECT_EQ(event.finish->http_status, 0);
  EXPECT_EQ(event.tokens.size(), 4U);
  Client gated;
  ASSERT_OK(engine_->Submit(MakeRequest("b", {1}, 3), gated.sink()));
  Allow(100);
  ASSERT_OK(SetWeights(1, 1, {.flush = true, .label = "v1"}));
  EXPECT_EQ(engine_->stats().gated, 1U);
  EXPECT_THAT(gated.events(), IsEmpty());
  ASSERT_OK(Continue());
  EXPECT_EQ(gated.Wait().tokens, FakeModel::Continue({1}, 3, {1, 1}));
}

TEST_F(EngineControlTest, PausingTwiceTakesTheStrongerEffect) {
  Client client;
  StartAt(3, client, 20);
  PauseHeld(PauseMode::kInPlace);
  ASSERT_OK(Pause(PauseMode::kRetract));
  EXPECT_EQ(engine_->stats().kv_tokens_used, 0U);
  ASSERT_OK(Pause(PauseMode::kInPlace));
  EXPECT_EQ(engine_->stats().waiting, 1U);
  ASSERT_OK(Pause(PauseMode::kAbort));
  EXPECT_EQ(client.Wait().finish->kind, Finish::Kind::kAbort);
  ASSERT_OK(Continue());
  ASSERT_OK(Continue());
}

TEST_F(EngineControlTest, ExclusiveCommandWaitsForRequestsThatCameBefore) {
  Client before;
  StartAt(2, before, 6);
  auto done = std::make_shared<std::promise<base::Status>>();
  engine_->Exclusive(
      {.label = "v1"},
      [&]() -> base::Status {
        model_.SetWeights(9, 9);
        return {};
      },
      [done](base::Status status) { done->set_value(std::move(status)); });
  Client after;
  ASSERT_OK(engine_->Submit(MakeRequest("b", {1, 2}, 5), after.sink()));
  Allow(100);
  ASSERT_OK(done->get_future().get());
  const Event first = before.Wait();
  const Event second = after.Wait();
  EXPECT_EQ(first.tokens, FakeModel::Continue({7, 8}, 6));
  EXPECT_EQ(Spans(first.weight_versions), (SpanList{{"v0", 0, 6}}));
  EXPECT_EQ(second.tokens, FakeModel::Continue({1, 2}, 5, {9, 9}));
  EXPECT_EQ(Spans(second.weight_versions), (SpanList{{"v1", 0, 5}}));
}

TEST_F(EngineControlTest, PauseLetsAWaitingExclusiveCommandRun) {
  Client client;
  StartAt(2, client, 1000);
  auto done = std::make_shared<std::promise<base::Status>>();
  engine_->Exclusive(
      {.label = "v1"}, []() -> base::Status { return {}; },
      [done](base::Status status) { done->set_value(std::move(status)); });
  PauseHeld(PauseMode::kInPlace);
  ASSERT_OK(done->get_future().get());
  EXPECT_EQ(engine_->stats().running, 1U);
  engine_->Abort("", Engine::AbortMatch::kAll, "enough");
  EXPECT_EQ(client.Wait().finish->message, "enough");
}

// Whatever comes together: the update is done when generation goes on, and what was gated meanwhile
// sees the new weights only.
TEST_F(EngineControlTest, AContinueBehindAnExclusiveCommandDoesNotOvertakeIt) {
  Client resident;
  StartAt(2, resident, 20);
  PauseHeld(PauseMode::kInPlace);
  const std::uint64_t steps = model_.steps;
  auto go_on = std::make_shared<std::promise<void>>();
  engine_->BetweenSteps([go_on] { go_on->get_future().wait(); });
  Client gated;
  ASSERT_OK(engine_->Submit(MakeRequest("b", {1, 2}, 5), gated.sink()));
  std::vector<std::string> order;  // of the engine's thread
  const auto note = [&](const std::string& what) {
    return [&order, what](const base::Status& status) {
      order.push_back(status ? what : status.error().message);
    };
  };
  const auto update = [&](std::uint8_t weights, const std::string& label) {
    engine_->Exclusive(
        {.label = label},
        [&, weights]() -> base::Status {
          EXPECT_EQ(model_.steps, steps) << "a step between the pause and the update";
          model_.SetWeights(weights, weights);
          return {};
        },
        note(label));
  };
  update(1, "one");
  update(2, "two");  // another client's
  engine_->Continue(note("continue"));
  go_on->set_value();
  Allow(100);
  EXPECT_EQ(gated.Wait().tokens, FakeModel::Continue({1, 2}, 5, {2, 2}));
  EXPECT_EQ(Spans(resident.Wait().weight_versions), (SpanList{{"v0", 0, 3}, {"two", 3, 20}}));
  EXPECT_EQ(order, (std::vector<std::string>{"one", "two", "continue"}));
}

// A continue behind a pause that a waiting command needs: the command runs between them.
TEST_F(EngineControlTest, APauseAndItsEndAtOnceStillLetAWaitingCommandRun) {
  Client client;
  StartAt(2, client, 20);
  auto updated = std::make_shared<std::promise<base::Status>>();
  engine_->Exclusive(
      {.label = "v1"}, []() -> base::Status { return {}; },
      [updated](base::Status status) { updated->set_value(std::move(status)); });
  engine_->Pause(PauseMode::kRetract, [](const base::Status&) {});
  engine_->Continue([](const base::Status&) {});
  Allow(100);
  ASSERT_OK(updated->get_future().get());
  EXPECT_EQ(Spans(client.Wait().weight_versions), (SpanList{{"v0", 0, 3}, {"v1", 3, 20}}));
}

TEST_F(EngineControlTest, HeldEngineComputesNothingAndGatesWhatComesUntilItIsReleased) {
  Start();
  ASSERT_OK(SetWeights(0, 0, {.hold = Hold::kWait}));
  Client client;
  ASSERT_OK(engine_->Submit(MakeRequest("a", {7, 8}, 3), client.sink()));
  // An exclusive command does not wait for what is gated, nor does a pause change anything.
  ASSERT_OK(SetWeights(5, 6, {.label = "next"}));
  ASSERT_OK(Pause(PauseMode::kRetract));
  ASSERT_OK(Continue());
  EXPECT_EQ(engine_->stats().hold, Hold::kWait);
  EXPECT_EQ(engine_->stats().gated, 1U);
  EXPECT_EQ(model_.steps, 0U);
  ASSERT_OK(SetHold(Hold::kNone, ""));
  EXPECT_EQ(client.Wait().tokens, FakeModel::Continue({7, 8}, 3, {5, 6}));
}

TEST_F(EngineControlTest, AShutHoldRefusesWhatComesAndLetsWait) {
  Start();
  ASSERT_OK(Pause(PauseMode::kRetract));
  Client gated;
  ASSERT_OK(engine_->Submit(MakeRequest("a", {7, 8}, 3), gated.sink()));
  ASSERT_OK(SetHold(Hold::kShut, "released"));
  Client refused;
  EXPECT_ERROR(engine_->Submit(MakeRequest("b", {7, 8}, 3), refused.sink()),
               base::Code::kUnavailable, "released");
  ASSERT_OK(Continue());
  EXPECT_EQ(engine_->stats().gated, 1U);
  EXPECT_EQ(model_.steps, 0U);
  ASSERT_OK(SetHold(Hold::kNone, ""));
  EXPECT_EQ(gated.Wait().tokens, FakeModel::Continue({7, 8}, 3));
}

// What an exclusive command waits for makes one that wants an idle engine fail.
TEST_F(EngineControlTest, AnExclusiveCommandForAnIdleEngineWaitsForNobody) {
  Client client;
  StartAt(5, client, 20);
  PauseHeld(PauseMode::kInPlace);
  EXPECT_ERROR(SetWeights(3, 4, {.idle = true}), base::Code::kOutOfOrder,
               "1 requests are paused in place");
  ASSERT_OK(Pause(PauseMode::kRetract));
  ASSERT_OK(SetWeights(3, 4, {.idle = true}));
  ASSERT_OK(Continue());
  Allow(100);
  client.Wait();
  ASSERT_OK(SetWeights(5, 6, {.idle = true}));
}

TEST_F(EngineControlTest, RefusingHoldEndsWhatRunsAndSaysWhyToWhatComes) {
  Start();
  ASSERT_OK(SetHold(Hold::kWait, ""));
  Client gated;
  ASSERT_OK(engine_->Submit(MakeRequest("a", {7, 8}, 3), gated.sink()));
  ASSERT_OK(SetHold(Hold::kRefuse, "incomplete update"));
  const Event event = gated.Wait();
  EXPECT_EQ(event.finish->kind, Finish::Kind::kAbort);
  EXPECT_EQ(event.finish->message, "incomplete update");
  EXPECT_EQ(event.finish->http_status, 503);
  Client refused;
  EXPECT_ERROR(engine_->Submit(MakeRequest("b", {7, 8}, 3), refused.sink()),
               base::Code::kUnavailable, "incomplete update");
  ASSERT_OK(SetHold(Hold::kNone, ""));
  Client client;
  ASSERT_OK(engine_->Submit(MakeRequest("c", {7, 8}, 3), client.sink()));
  EXPECT_EQ(client.Wait().tokens, FakeModel::Continue({7, 8}, 3));
}

// What runs does not count; what a pause holds up does, like all that waits.
TEST_F(EngineControlTest, OnlySoManyRequestsMayWait) {
  HoldSteps();
  Start({.max_queued = 2});
  std::array<Client, 6> clients;
  const auto submit = [&](std::size_t i) {
    return engine_->Submit(MakeRequest(fmt::format("r{}", i), {7, 8}, 5), clients.at(i).sink());
  };
  ASSERT_OK(submit(0));
  Allow(2);
  clients[0].WaitForTokens(2);
  WaitForHeldStep();
  ASSERT_OK(submit(1));
  ASSERT_OK(submit(2));
  EXPECT_ERROR(submit(3), base::Code::kLimitExceeded, "2 requests wait already");
  Allow(100);
  for (std::size_t i = 0; i < 3; ++i) clients.at(i).Wait();
  ASSERT_OK(Pause(PauseMode::kRetract));
  ASSERT_OK(submit(3));
  ASSERT_OK(submit(4));
  EXPECT_ERROR(submit(5), base::Code::kLimitExceeded, "2 requests wait already");
  engine_->Abort("r4", Engine::AbortMatch::kExact, "");
  clients[4].Wait();
  ASSERT_OK(submit(5));
  ASSERT_OK(Continue());
  Allow(100);
  for (const std::size_t i : {3, 5}) EXPECT_EQ(clients.at(i).Wait().tokens.size(), 5U);
}

TEST_F(EngineControlTest, FailedWorkLeavesTheLabel) {
  Start();
  const auto status = Wait([&](Engine::Done done) {
    engine_->Exclusive(
        {.label = "v9"}, []() -> base::Status { throw std::runtime_error("went wrong"); },
        std::move(done));
  });
  EXPECT_ERROR(status, base::Code::kInternal, "went wrong");
  EXPECT_EQ(engine_->stats().weight_version, "v0");
}

TEST_F(EngineControlTest, SameVersionAgainIsNoNewSpan) {
  Client client;
  StartAt(2, client, 8);
  PauseHeld(PauseMode::kInPlace);
  ASSERT_OK(Wait([&](Engine::Done done) { engine_->SetVersion("v0", std::move(done)); }));
  ASSERT_OK(Continue());
  Allow(100);
  EXPECT_EQ(Spans(client.Wait().weight_versions), (SpanList{{"v0", 0, 8}}));
}

TEST_F(EngineControlTest, AbortBeforeTheFirstTokenHasOneEmptySpan) {
  Start();
  ASSERT_OK(Pause(PauseMode::kRetract));
  Client client;
  ASSERT_OK(engine_->Submit(MakeRequest("a", {1}, 8), client.sink()));
  engine_->Abort("a", Engine::AbortMatch::kExact, "gone");
  const Event event = client.Wait();
  EXPECT_EQ(Spans(event.weight_versions), (SpanList{{"v0", 0, 0}}));
  EXPECT_THAT(event.prefill_weight_versions, IsEmpty());
}

TEST_F(EngineControlTest, AbortChoosesByIdAndPrefix) {
  Start();
  ASSERT_OK(Pause(PauseMode::kRetract));
  std::vector<Client> clients(4);
  const std::vector<std::string> ids = {"x::1", "x::2", "x", "y"};
  for (std::size_t i = 0; i < 4; ++i) {
    ASSERT_OK(engine_->Submit(MakeRequest(ids[i], {1}, 3), clients[i].sink()));
  }
  engine_->Abort("x", Engine::AbortMatch::kExact, "one");
  EXPECT_EQ(clients[2].Wait().finish->message, "one");
  engine_->Abort("x::", Engine::AbortMatch::kPrefix, "some");
  EXPECT_EQ(clients[0].Wait().finish->message, "some");
  EXPECT_EQ(clients[1].Wait().finish->message, "some");
  ASSERT_OK(Pause(PauseMode::kRetract));  // so that the figures have followed the last event
  EXPECT_EQ(engine_->stats().gated, 1U);
  ASSERT_OK(Continue());
  EXPECT_EQ(clients[3].Wait().finish->kind, Finish::Kind::kLength);
}

TEST_F(EngineControlTest, FlushWaitsForTheEndOfRequests) {
  Client client;
  StartAt(2, client, 5);
  auto done = std::make_shared<std::promise<base::Status>>();
  engine_->Flush(std::chrono::seconds(100),
                 [done](base::Status status) { done->set_value(std::move(status)); });
  Allow(1);
  client.WaitForTokens(3);
  auto second = std::make_shared<std::promise<base::Status>>();
  engine_->Flush(std::chrono::seconds(100),
                 [second](base::Status status) { second->set_value(std::move(status)); });
  Allow(100);
  EXPECT_ERROR(second->get_future().get(), base::Code::kLocked, "already in progress");
  ASSERT_OK(done->get_future().get());
  EXPECT_EQ(client.Wait().tokens.size(), 5U);
}

TEST_F(EngineControlTest, FlushGivesUpAtItsTime) {
  Start();
  ASSERT_OK(Pause(PauseMode::kRetract));
  ASSERT_OK(Continue());
  Client client;
  HoldSteps();
  ASSERT_OK(engine_->Submit(MakeRequest("a", {1}, 1000), client.sink()));
  Allow(1);
  client.WaitForTokens(1);
  PauseHeld(PauseMode::kInPlace);
  EXPECT_ERROR(Flush(20), base::Code::kTimeout, "Timed out waiting for idle state.");
  engine_->Abort("a", Engine::AbortMatch::kExact, "enough");
  client.Wait();
}

}  // namespace
}  // namespace syncline::engine
