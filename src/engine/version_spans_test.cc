// What requests say of the versions that computed them, by the items of the acceptance list of
// SGLang's test of weight-version spans. Items 17, 18, 20, 21 and 23, of the prefix cache, are in
// prefix_cache_test.cc; 4 is the OpenAI routes' (serve/openai_test.cc); 12 is none; 13 to 16 and 22
// are of data parallelism and speculation, which this engine has not.
#include <gmock/gmock.h>

#include "engine/engine.h"
#include "engine/engine_testing.h"

namespace syncline::engine {
namespace {

using model::FakeModel;
using testing::IsEmpty;
using Tokens = std::vector<TokenId>;
using SpanList = std::vector<std::tuple<std::string, int, int>>;

SpanList Spans(const std::vector<VersionSpan>& spans) {
  SpanList result;
  for (const VersionSpan& span : spans) result.emplace_back(span.version, span.start, span.end);
  return result;
}

class VersionSpansTest : public EngineTest {
 protected:
  // A request of 10 tokens that has told `tokens` of them, the engine waiting before its next step.
  void StartAt(std::size_t tokens) {
    HoldSteps();
    Start();
    ASSERT_OK(engine_->Submit(MakeRequest("a", {7, 8, 9}, 10), client_.sink()));
    Allow(tokens);
    client_.WaitForTokens(tokens);
    WaitForHeldStep();
  }
  // One more token is computed before the pause holds.
  void Update(PauseMode mode, std::optional<std::string> label) {
    PauseHeld(mode);
    ASSERT_OK(SetWeights(1, 1, {.label = std::move(label)}));
    ASSERT_OK(Continue());
  }
  Event Finish() {
    Allow(1000);
    return client_.Wait();
  }

  Client client_;
};

TEST_F(VersionSpansTest, Item1UntouchedRequestHasOneSpan) {
  StartAt(1);
  const Event event = Finish();
  EXPECT_EQ(Spans(event.weight_versions), (SpanList{{"v0", 0, 10}}));
  EXPECT_EQ(Spans(event.prefill_weight_versions), (SpanList{{"v0", 0, 3}}));
}

TEST_F(VersionSpansTest, Item2LaterRequestsHaveOnlyTheNewVersion) {
  Start();
  ASSERT_OK(Wait([&](Engine::Done done) { engine_->SetVersion("v1", std::move(done)); }));
  ASSERT_OK(engine_->Submit(MakeRequest("a", {7}, 4), client_.sink()));
  const Event event = client_.Wait();
  EXPECT_EQ(Spans(event.weight_versions), (SpanList{{"v1", 0, 4}}));
  EXPECT_EQ(Spans(event.prefill_weight_versions), (SpanList{{"v1", 0, 1}}));
}

TEST_F(VersionSpansTest, Item3RetractedPromptIsOfTheLastVersion) {
  StartAt(2);
  Update(PauseMode::kRetract, "v1");
  const Event event = Finish();
  EXPECT_EQ(Spans(event.weight_versions), (SpanList{{"v0", 0, 3}, {"v1", 3, 10}}));
  EXPECT_EQ(Spans(event.prefill_weight_versions), (SpanList{{"v1", 0, 3}}));
}

TEST_F(VersionSpansTest, Item5AbortedWhileRetractedStillReports) {
  StartAt(2);
  PauseHeld(PauseMode::kRetract);
  ASSERT_OK(SetWeights(1, 1, {.label = "v1"}));
  engine_->Abort("a", Engine::AbortMatch::kExact, "gone");
  const Event event = client_.Wait();
  EXPECT_EQ(event.retractions, 1U);
  EXPECT_EQ(event.weight_version, "v0");
  EXPECT_EQ(Spans(event.weight_versions), (SpanList{{"v0", 0, 3}}));
  EXPECT_EQ(Spans(event.prefill_weight_versions), (SpanList{{"v0", 0, 3}}))
      << "what its tokens followed from";
}

TEST_F(VersionSpansTest, Item6InPlaceSplitsWithoutAbortAndKeepsThePrompts) {
  StartAt(4);
  Update(PauseMode::kInPlace, "v1");
  const Event event = Finish();
  EXPECT_EQ(Spans(event.weight_versions), (SpanList{{"v0", 0, 5}, {"v1", 5, 10}}));
  EXPECT_EQ(Spans(event.prefill_weight_versions), (SpanList{{"v0", 0, 3}}));
}

TEST_F(VersionSpansTest, Item7UpdateWithoutVersionDoesNotSplit) {
  StartAt(4);
  Update(PauseMode::kInPlace, std::nullopt);
  EXPECT_EQ(Spans(Finish().weight_versions), (SpanList{{"v0", 0, 10}}));
}

TEST_F(VersionSpansTest, Item8TheSameVersionAgainDoesNotSplit) {
  StartAt(4);
  Update(PauseMode::kInPlace, "v0");
  EXPECT_EQ(Spans(Finish().weight_versions), (SpanList{{"v0", 0, 10}}));
}

TEST_F(VersionSpansTest, Item9TwoUpdatesMakeThreeSpans) {
  StartAt(2);
  Update(PauseMode::kInPlace, "v1");
  Allow(2);
  client_.WaitForTokens(5);
  WaitForHeldStep();
  Update(PauseMode::kInPlace, "v2");
  const Event event = Finish();
  EXPECT_EQ(Spans(event.weight_versions), (SpanList{{"v0", 0, 3}, {"v1", 3, 6}, {"v2", 6, 10}}));
  EXPECT_EQ(event.weight_version, "v2");
}

TEST_F(VersionSpansTest, Item10AbortBeforeTheFirstTokenHasOneEmptySpan) {
  Start();
  ASSERT_OK(Pause(PauseMode::kInPlace));
  ASSERT_OK(engine_->Submit(MakeRequest("a", {7}, 4), client_.sink()));
  engine_->Abort("a", Engine::AbortMatch::kExact, "gone");
  const Event event = client_.Wait();
  EXPECT_EQ(Spans(event.weight_versions), (SpanList{{"v0", 0, 0}}));
  EXPECT_THAT(event.prefill_weight_versions, IsEmpty());
}

TEST_F(VersionSpansTest, Item11StreamsCarrySpansAtTheirEndAndTheVersionAlways) {
  StartAt(2);
  Update(PauseMode::kInPlace, "v1");
  Finish();
  const std::vector<Event> events = client_.events();
  ASSERT_EQ(events.size(), 10U);
  for (std::size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i].weight_version, i < 3 ? "v0" : "v1");
    EXPECT_EQ(events[i].weight_versions.empty(), i + 1 < events.size());
  }
}

TEST_F(VersionSpansTest, Item19AbortedMidDecodeKeepsBoth) {
  StartAt(2);
  Update(PauseMode::kInPlace, "v1");
  Allow(2);
  client_.WaitForTokens(5);
  WaitForHeldStep();
  engine_->Abort("a", Engine::AbortMatch::kExact, "gone");
  Allow(1);
  const Event event = client_.Wait();
  EXPECT_EQ(event.finish->kind, Finish::Kind::kAbort);
  EXPECT_EQ(Spans(event.weight_versions), (SpanList{{"v0", 0, 3}, {"v1", 3, 6}}));
}

}  // namespace
}  // namespace syncline::engine
