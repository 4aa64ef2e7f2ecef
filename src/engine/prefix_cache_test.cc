// What requests share of the same beginning, and never of other weights. The fake model's tokens
// depend on the weights under which each token was written to the cache.
#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include "engine/engine.h"
#include "engine/engine_testing.h"

namespace syncline::engine {
namespace {

using model::FakeModel;
using model::kKvBlock;
using testing::IsEmpty;
using Tokens = std::vector<TokenId>;

Tokens Numbers(std::size_t count, int first = 0) {
  Tokens tokens(count);
  for (std::size_t i = 0; i < count; ++i) {
    tokens[i] = static_cast<TokenId>((static_cast<std::size_t>(first) + i * i) % 60);
  }
  return tokens;
}

class PrefixCacheTest : public EngineTest {
 protected:
  Event Generate(Tokens prompt, std::uint32_t count, const std::string& partition = "") {
    Request request = MakeRequest(std::to_string(next_++), std::move(prompt), count);
    request.cache_partition = partition;
    Client client;
    EXPECT_OK(engine_->Submit(std::move(request), client.sink()));
    return client.Wait();
  }

  // All forms of a change of the weights that bring no label.
  base::Status ChangeWeights(std::uint8_t a, std::uint8_t b) {
    return SetWeights(a, b, {.flush = false});
  }

  int next_ = 0;
};

TEST_F(PrefixCacheTest, FullBlocksOfTheSameBeginningAreComputedOnce) {
  Start();
  const Tokens prompt = Numbers(50);
  EXPECT_EQ(Generate(prompt, 5).cached_tokens, 0U);
  const Event again = Generate(prompt, 5);
  EXPECT_EQ(again.cached_tokens, 48U);
  EXPECT_EQ(again.tokens, FakeModel::Continue(prompt, 5));
  Tokens other = prompt;
  other[20] = 60;
  const Event half = Generate(other, 5);
  EXPECT_EQ(half.cached_tokens, 16U);
  EXPECT_EQ(half.tokens, FakeModel::Continue(other, 5));
  ASSERT_OK(Continue());
  EXPECT_EQ(engine_->stats().cached_tokens, 64U);
  EXPECT_EQ(engine_->stats().prompt_tokens, 50U + 2 + 34);
  EXPECT_EQ(engine_->stats().kv_tokens_used, 0U) << "what nobody holds is free";
}

TEST_F(PrefixCacheTest, TheLastPromptTokenIsAlwaysComputed) {
  Start();
  const Tokens prompt = Numbers(32);
  Generate(prompt, 1);
  EXPECT_EQ(Generate(prompt, 1).cached_tokens, 16U);
}

TEST_F(PrefixCacheTest, ARepliesTokensAreReusedByTheNextTurn) {
  Start();
  Tokens turn = Numbers(20);
  const Event reply = Generate(turn, 30);
  turn.insert(turn.end(), reply.tokens.begin(), reply.tokens.end());
  turn.push_back(7);
  const Event next = Generate(turn, 3);
  EXPECT_EQ(next.cached_tokens, 48U);
  EXPECT_EQ(next.tokens, FakeModel::Continue(turn, 3));
}

TEST_F(PrefixCacheTest, SamplesOfOnePromptComputeItOnce) {
  HoldSteps();
  Start();
  const Tokens prompt = Numbers(40);
  std::vector<Client> clients(8);
  ASSERT_OK(Pause(PauseMode::kRetract));
  for (std::size_t i = 0; i < clients.size(); ++i) {
    ASSERT_OK(engine_->Submit(MakeRequest(std::to_string(i), prompt, 4), clients[i].sink()));
  }
  // Not held up by those before it, though they wait for each other.
  Client other;
  ASSERT_OK(engine_->Submit(MakeRequest("other", Numbers(20, 9), 1), other.sink()));
  ASSERT_OK(Continue());
  Allow(1);
  EXPECT_EQ(other.Wait().tokens, FakeModel::Continue(Numbers(20, 9), 1));
  Allow(100);
  for (Client& client : clients) EXPECT_EQ(client.Wait().tokens, FakeModel::Continue(prompt, 4));
  ASSERT_OK(Pause(PauseMode::kRetract));
  EXPECT_EQ(engine_->stats().prompt_tokens, 40U + 7 * 8 + 20);
}

// BR-33
TEST_F(PrefixCacheTest, NothingIsReusedAcrossAnUpdateWithoutLabelOrFlush) {
  Start();
  const Tokens prompt = Numbers(64);
  Generate(prompt, 2);
  ASSERT_OK(ChangeWeights(3, 4));
  const Event after = Generate(prompt, 9);
  EXPECT_EQ(after.cached_tokens, 0U);
  EXPECT_EQ(after.tokens, FakeModel::Continue(prompt, 9, {3, 4}));
  EXPECT_EQ(Generate(prompt, 9).cached_tokens, 48U) << "of the new weights it is";
}

TEST_F(PrefixCacheTest, ANewLabelAloneLeavesTheCache) {
  Start();
  const Tokens prompt = Numbers(40);
  Generate(prompt, 2);
  ASSERT_OK(Wait([&](Engine::Done done) { engine_->SetVersion("v1", std::move(done)); }));
  const Event after = Generate(prompt, 2);
  EXPECT_EQ(after.cached_tokens, 32U);
  ASSERT_EQ(after.prefill_weight_versions.size(), 2U);
  EXPECT_EQ(after.prefill_weight_versions[0].version, "v0");
  EXPECT_EQ(after.prefill_weight_versions[0].end, 32U);
  EXPECT_EQ(after.prefill_weight_versions[1].version, "v1");
  EXPECT_EQ(after.prefill_weight_versions[1].end, 40U);
}

TEST_F(PrefixCacheTest, NothingIsReusedAcrossAHoldInWhichWeightsAreWrittenInPlace) {
  Start();
  const Tokens prompt = Numbers(40);
  Generate(prompt, 2);
  ASSERT_OK(SetHold(Hold::kWait, ""));
  model_.SetWeights(5, 6);
  ASSERT_OK(SetHold(Hold::kNone, ""));
  const Event after = Generate(prompt, 4);
  EXPECT_EQ(after.cached_tokens, 0U);
  EXPECT_EQ(after.tokens, FakeModel::Continue(prompt, 4, {5, 6}));
}

// A request that was paused in place goes on with what old weights computed, and gives none of it
// away: not what it had, not what it computes over it, and not to those who wait for the same.
TEST_F(PrefixCacheTest, NothingOfARequestThatRunsThroughAnUpdateIsReused) {
  HoldSteps();
  Start();
  const Tokens prompt = Numbers(40);
  Client old;
  ASSERT_OK(engine_->Submit(MakeRequest("old", prompt, 60), old.sink()));
  Allow(3);
  old.WaitForTokens(3);
  WaitForHeldStep();
  PauseHeld(PauseMode::kInPlace);
  ASSERT_OK(SetWeights(3, 4, {.flush = false, .label = "v1"}));
  ASSERT_OK(Continue());
  Allow(1000);
  const Event before = old.Wait();
  EXPECT_EQ(before.tokens.size(), 60U);
  const Event fresh = Generate(prompt, 5);
  EXPECT_EQ(fresh.cached_tokens, 0U);
  EXPECT_EQ(fresh.tokens, FakeModel::Continue(prompt, 5, {3, 4}));
  Tokens turn = prompt;
  turn.insert(turn.end(), before.tokens.begin(), before.tokens.end());
  const Event next = Generate(turn, 5);
  EXPECT_EQ(next.cached_tokens, 32U) << "only the second request's";
  EXPECT_EQ(next.tokens, FakeModel::Continue(turn, 5, {3, 4}));
}

TEST_F(PrefixCacheTest, FlushForgetsAll) {
  Start();
  const Tokens prompt = Numbers(40);
  Generate(prompt, 2);
  ASSERT_OK(Continue());  // a turn later, so that nothing runs any more
  ASSERT_OK(Flush());
  EXPECT_EQ(Generate(prompt, 2).cached_tokens, 0U);
  EXPECT_EQ(Generate(prompt, 2).cached_tokens, 32U);
  ASSERT_OK(Continue());
  ASSERT_OK(Flush(1000));
  EXPECT_EQ(Generate(prompt, 2).cached_tokens, 0U);
}

// Acceptance item 23.
TEST_F(PrefixCacheTest, PartitionsShareNothing) {
  Start();
  const Tokens prompt = Numbers(40);
  Generate(prompt, 2, "tenant a");
  EXPECT_EQ(Generate(prompt, 2, "tenant b").cached_tokens, 0U);
  EXPECT_EQ(Generate(prompt, 2).cached_tokens, 0U);
  EXPECT_EQ(Generate(prompt, 2, "tenant a").cached_tokens, 32U);
}

TEST_F(PrefixCacheTest, PromptLogprobsAreComputedNotReused) {
  Start();
  const Tokens prompt = Numbers(70);
  Generate(prompt, 1);
  const auto score = [&](std::int64_t start) {
    Request request = MakeRequest("score" + std::to_string(start), prompt, 0);
    request.logprobs = {.enabled = true, .start = start};
    Client client;
    EXPECT_OK(engine_->Submit(request, client.sink()));
    return client.Wait();
  };
  const Event all = score(0);
  EXPECT_EQ(all.cached_tokens, 0U);
  ASSERT_EQ(all.input_logprobs->tokens.size(), 70U);
  const Event some = score(40);
  EXPECT_EQ(some.cached_tokens, 32U);
  ASSERT_EQ(some.input_logprobs->tokens.size(), 30U);
  for (std::size_t i = 1; i < 30; ++i) {
    EXPECT_EQ(some.input_logprobs->tokens[i].logprob, all.input_logprobs->tokens[40 + i].logprob);
  }
  EXPECT_EQ(score(-1).cached_tokens, 64U);
  EXPECT_EQ(score(64).cached_tokens, 64U);
  EXPECT_EQ(score(63).cached_tokens, 48U) << "position 63 tells of token 64";
}

TEST_F(PrefixCacheTest, TurnedOffItSharesNothing) {
  Start({.prefix_cache = false});
  const Tokens prompt = Numbers(40);
  Generate(prompt, 2);
  const Event again = Generate(prompt, 2);
  EXPECT_EQ(again.cached_tokens, 0U);
  EXPECT_EQ(again.tokens, FakeModel::Continue(prompt, 2));
}

// A retraction without an update: its own blocks are there, and what it says of its prompt is true.
TEST_F(PrefixCacheTest, ARetractedRequestFindsItsOwnBlocks) {
  HoldSteps();
  Start();
  Client client;
  const Tokens prompt = Numbers(40);
  ASSERT_OK(engine_->Submit(MakeRequest("a", prompt, 30), client.sink()));
  Allow(12);
  client.WaitForTokens(12);
  WaitForHeldStep();
  PauseHeld(PauseMode::kRetract);
  EXPECT_EQ(engine_->stats().kv_tokens_used, 0U);
  ASSERT_OK(Continue());
  Allow(100);
  const Event event = client.Wait();
  EXPECT_EQ(event.retractions, 1U);
  EXPECT_EQ(event.cached_tokens, 0U) << "it had computed them itself";
  EXPECT_EQ(event.tokens, FakeModel::Continue(prompt, 30));
  ASSERT_EQ(event.prefill_weight_versions.size(), 1U);
  EXPECT_EQ(event.prefill_weight_versions[0].end, 40U);
  EXPECT_EQ(engine_->stats().cached_tokens, 48U);
}

// Acceptance items 17, 20 and 21: what is reused keeps the version that computed it.
TEST_F(PrefixCacheTest, AcrossVersionsOnDemandAndThenSpansSaySo) {
  Start({.prefix_cache_across_versions = true});
  const auto update = [&](std::uint8_t a, const std::string& label) {
    ASSERT_OK(SetWeights(a, 0, {.flush = false, .label = label}));
  };
  Tokens turn = Numbers(40);
  Generate(turn, 1);
  update(1, "v1");
  const Event second = Generate(turn, 30);
  EXPECT_EQ(second.cached_tokens, 32U);
  ASSERT_EQ(second.prefill_weight_versions.size(), 2U);
  EXPECT_EQ(second.prefill_weight_versions[0].version, "v0");
  EXPECT_EQ(second.prefill_weight_versions[0].end, second.cached_tokens);
  EXPECT_EQ(second.prefill_weight_versions[1].version, "v1");
  turn.insert(turn.end(), second.tokens.begin(), second.tokens.end());
  update(2, "v2");
  const Event third = Generate(turn, 2);
  EXPECT_EQ(third.cached_tokens, 64U);
  ASSERT_EQ(third.prefill_weight_versions.size(), 3U);
  EXPECT_EQ(third.prefill_weight_versions[1].start, 32U);
  EXPECT_EQ(third.prefill_weight_versions[1].end, 64U);
  EXPECT_EQ(third.prefill_weight_versions[2].version, "v2");
  EXPECT_EQ(third.prefill_weight_versions[2].end, 70U);
  // The first token follows from keys of three versions.
  std::vector<FakeModel::Weights> weights(70, {.a = 2, .b = 0});
  std::fill_n(weights.begin(), 64, FakeModel::Weights{.a = 1, .b = 0});
  std::fill_n(weights.begin(), 32, FakeModel::Weights{});
  EXPECT_EQ(third.tokens[0], FakeModel::Next(turn, weights));
  // 18: a flush ends that.
  ASSERT_OK(Continue());
  ASSERT_OK(Flush());
  const Event flushed = Generate(turn, 2);
  EXPECT_EQ(flushed.cached_tokens, 0U);
  ASSERT_EQ(flushed.prefill_weight_versions.size(), 1U);
  EXPECT_EQ(flushed.prefill_weight_versions[0].version, "v2");
}

TEST_F(PrefixCacheTest, MemoryThatWasReleasedHoldsNothingThatIsReused) {
  Start({.prefix_cache_across_versions = true});
  const Tokens prompt = Numbers(40);
  Generate(prompt, 2);
  const auto change = [&](Engine::ExclusiveOptions options) {
    return Wait([&](Engine::Done done) {
      engine_->Exclusive(std::move(options), []() -> base::Status { return {}; }, std::move(done));
    });
  };
  ASSERT_OK(change({.hold = Hold::kWait, .kv = KvMemory::kRelease}));
  ASSERT_OK(change({.hold = Hold::kNone, .kv = KvMemory::kTake}));
  const Event after = Generate(prompt, 5);
  EXPECT_EQ(after.cached_tokens, 0U);
  EXPECT_EQ(after.tokens, FakeModel::Continue(prompt, 5));
}

// Many requests with common beginnings in a small cache, with retractions, pauses and updates: each
// that began and ended under one version has that version's tokens.
TEST_F(PrefixCacheTest, NoTokenIsOfOtherWeightsThanItsSpansSay) {
  Start({.kv_cache_bytes = 4 * kKvBlock * 24, .prefill_tokens = 40});
  std::mt19937 random(7);  // NOLINT(cert-msc51-cpp): the same each time
  const auto below = [&](std::uint32_t bound) {
    return static_cast<std::uint32_t>(random() % bound);
  };
  std::vector<Client> clients(300);
  std::vector<Tokens> prompts;
  std::uint8_t version = 0;
  for (std::size_t i = 0; i < clients.size(); ++i) {
    Tokens prompt = Numbers(1 + below(120), static_cast<int>(below(3)));
    if (below(2) == 0) prompt.push_back(static_cast<TokenId>(below(60)));
    prompts.push_back(prompt);
    ASSERT_OK(
        engine_->Submit(MakeRequest(std::to_string(i), prompt, 1 + below(60)), clients[i].sink()));
    if (below(10) > 0) continue;
    ASSERT_OK(Pause(below(2) == 0 ? PauseMode::kRetract : PauseMode::kInPlace));
    if (below(3) > 0) {
      ++version;
      ASSERT_OK(SetWeights(version, version, {.label = std::to_string(version)}));
    }
    ASSERT_OK(Continue());
  }
  std::uint32_t retractions = 0;
  std::uint32_t cached = 0;
  for (std::size_t i = 0; i < clients.size(); ++i) {
    const Event event = clients[i].Wait();
    retractions += event.retractions;
    cached += event.cached_tokens;
    ASSERT_EQ(event.prefill_weight_versions.back().end, prompts[i].size());
    if (event.weight_versions.size() > 1) continue;
    const std::string& label = event.weight_versions[0].version;
    ASSERT_EQ(event.prefill_weight_versions.size(), 1U);
    if (event.prefill_weight_versions[0].version != label) continue;  // paused before its first
    const auto weights = static_cast<std::uint8_t>(label == "v0" ? 0 : std::stoi(label));
    EXPECT_EQ(event.tokens,
              FakeModel::Continue(prompts[i], static_cast<std::uint32_t>(event.tokens.size()),
                                  {weights, weights}))
        << "request " << i;
  }
  EXPECT_GT(retractions, 0U);
  EXPECT_GT(cached, 1000U);
  ASSERT_OK(Continue());
  EXPECT_EQ(engine_->stats().kv_tokens_used, 0U);
}

}  // namespace
}  // namespace syncline::engine
