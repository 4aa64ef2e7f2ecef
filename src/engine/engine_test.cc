// What requests get: tokens, ends, log-probabilities, under batching, small caches and pieces of
// prompts.
#include "engine/engine.h"

#include <gmock/gmock.h>

#include <cmath>

#include "engine/engine_testing.h"

namespace syncline::engine {
namespace {

using model::FakeModel;
using Tokens = std::vector<TokenId>;

TEST_F(EngineTest, GreedyTokensAreTheModels) {
  Start();
  Client client;
  ASSERT_OK(engine_->Submit(MakeRequest("a", {5, 6, 7}, 40), client.sink()));
  const Event event = client.Wait();
  EXPECT_EQ(event.tokens, FakeModel::Continue({5, 6, 7}, 40));
  EXPECT_EQ(event.finish->kind, Finish::Kind::kLength);
  EXPECT_EQ(event.finish->length, 40U);
  EXPECT_EQ(event.retractions, 0U);
}

TEST_F(EngineTest, StreamingTellsEachTokenAndTheLastEventOnlyOnce) {
  Start();
  Client streamed;
  Client whole;
  ASSERT_OK(engine_->Submit(MakeRequest("a", {5}, 9), streamed.sink()));
  Request request = MakeRequest("b", {5}, 9);
  request.stream = false;
  ASSERT_OK(engine_->Submit(request, whole.sink()));
  EXPECT_EQ(streamed.Wait().tokens, whole.Wait().tokens);
  EXPECT_EQ(streamed.events().size(), 9U);
  EXPECT_EQ(whole.events().size(), 1U);
}

// 40 requests of different lengths in a cache for about three of them: most are retracted, some
// often.
TEST_F(EngineTest, SmallCacheChangesNothingButTheOrder) {
  Start({.kv_cache_bytes = 4 * model::kKvBlock * 12, .prefill_tokens = 20});
  std::vector<Client> clients(40);
  std::vector<Tokens> prompts;
  for (int i = 0; i < 40; ++i) {
    Tokens prompt;
    for (int k = 0; k < 1 + (i * 7) % 50; ++k) prompt.push_back((i + k * k) % 60);
    prompts.push_back(prompt);
    ASSERT_OK(
        engine_->Submit(MakeRequest(std::to_string(i), prompt, 30 + i % 40), clients[i].sink()));
  }
  std::uint32_t retractions = 0;
  for (int i = 0; i < 40; ++i) {
    const Event event = clients[i].Wait();
    EXPECT_EQ(event.tokens, FakeModel::Continue(prompts[i], 30 + i % 40)) << "request " << i;
    retractions += event.retractions;
  }
  EXPECT_GT(retractions, 0U) << "the test is meant to retract";
  ASSERT_OK(Continue());  // a turn later, so that the figures have followed the last event
  EXPECT_EQ(engine_->stats().kv_tokens_used, 0U);
}

TEST_F(EngineTest, PromptsAreComputedInPieces) {
  Start({.prefill_tokens = 7});
  Client client;
  Tokens prompt(100, 3);
  ASSERT_OK(engine_->Submit(MakeRequest("a", prompt, 5), client.sink()));
  EXPECT_EQ(client.Wait().tokens, FakeModel::Continue(prompt, 5));
  EXPECT_EQ(model_.largest_step, 7U);
}

TEST_F(EngineTest, EndTokenEndsUnlessIgnored) {
  const Tokens expected = FakeModel::Continue({1, 2}, 20);
  Start({}, {expected[4]});
  Client client;
  Client ignoring;
  ASSERT_OK(engine_->Submit(MakeRequest("a", {1, 2}, 20), client.sink()));
  Request request = MakeRequest("b", {1, 2}, 20);
  request.sampling.ignore_eos = true;
  request.sampling.stop_token_ids = {expected[2]};
  ASSERT_OK(engine_->Submit(request, ignoring.sink()));
  const Event event = client.Wait();
  const auto first = std::ranges::find(expected, expected[4]) + 1;
  EXPECT_EQ(event.tokens, Tokens(expected.begin(), first));
  EXPECT_EQ(event.finish->kind, Finish::Kind::kStopToken);
  EXPECT_EQ(event.finish->matched_token, expected[4]);
  EXPECT_EQ(ignoring.Wait().tokens, expected);
}

TEST_F(EngineTest, StopTokenOfARequest) {
  const Tokens expected = FakeModel::Continue({9}, 20);
  Start();
  Client client;
  Request request = MakeRequest("a", {9}, 20);
  request.sampling.stop_token_ids = {expected[6]};
  ASSERT_OK(engine_->Submit(request, client.sink()));
  const Event event = client.Wait();
  EXPECT_EQ(event.finish->matched_token, expected[6]);
  EXPECT_EQ(event.tokens.back(), expected[6]);
}

TEST_F(EngineTest, EndTokenIsNotChosenBeforeTheMinimum) {
  const Tokens expected = FakeModel::Continue({9}, 1);
  Start({}, {expected[0]});
  Client client;
  Request request = MakeRequest("a", {9}, 20);
  request.sampling.min_new_tokens = 3;
  ASSERT_OK(engine_->Submit(request, client.sink()));
  const Event event = client.Wait();
  EXPECT_GE(event.tokens.size(), 3U);
  EXPECT_NE(event.tokens[0], expected[0]);
}

// Scoring: no output, log-probabilities of the prompt.
TEST_F(EngineTest, InputLogprobsInPieces) {
  Start({.prefill_tokens = 5});
  const Tokens prompt = {5, 9, 14, 3, 3, 8, 60, 2, 1, 0, 44, 7, 7};
  Client client;
  Request request = MakeRequest("a", prompt, 0);
  request.logprobs = {.enabled = true, .start = 2, .top = 2, .tokens = {4, 5}};
  ASSERT_OK(engine_->Submit(request, client.sink()));
  const Event event = client.Wait();
  EXPECT_TRUE(event.tokens.empty());
  EXPECT_EQ(event.finish->kind, Finish::Kind::kLength);
  ASSERT_TRUE(event.input_logprobs);
  const Logprobs& logprobs = *event.input_logprobs;
  ASSERT_EQ(logprobs.tokens.size(), prompt.size() - 2);
  ASSERT_EQ(logprobs.top.size(), prompt.size() - 2);
  EXPECT_EQ(logprobs.tokens[0].token, prompt[2]);
  EXPECT_FALSE(logprobs.tokens[0].logprob);
  for (std::size_t i = 1; i < logprobs.tokens.size(); ++i) {
    const Tokens before(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(i) + 2);
    const auto next = static_cast<std::uint32_t>(
        FakeModel::Next(before, std::vector<FakeModel::Weights>(before.size())));
    double sum = 0;
    for (std::uint32_t v = 0; v < FakeModel::kVocabulary; ++v) {
      sum += std::exp(FakeModel::Logit(v, next));
    }
    const auto token = static_cast<std::uint32_t>(prompt[i + 2]);
    EXPECT_EQ(logprobs.tokens[i].token, prompt[i + 2]);
    EXPECT_NEAR(*logprobs.tokens[i].logprob, FakeModel::Logit(token, next) - std::log(sum), 1e-5);
    EXPECT_EQ(logprobs.top[i][0].token, static_cast<TokenId>(next));
    EXPECT_EQ(logprobs.chosen[i][1].token, 5);
  }
}

// Of each token but the last, from the position that was asked for, whatever the step it was in, and
// once for a token that was computed twice.
TEST_F(EngineTest, ExpertsOfComputedTokens) {
  model_.AddExperts();
  Start({.kv_cache_bytes = 4 * model::kKvBlock * 12, .prefill_tokens = 7});
  const Tokens prompt(40, 3);
  Client first;
  ASSERT_OK(engine_->Submit(MakeRequest("first", prompt, 5), first.sink()));
  first.Wait();
  Client big;  // makes the others be retracted
  ASSERT_OK(engine_->Submit(MakeRequest("big", Tokens(100, 1), 60), big.sink()));
  std::vector<Client> clients(3);
  const std::vector<std::uint32_t> starts = {0, 21, 40};
  for (std::size_t i = 0; i < clients.size(); ++i) {
    Request request = MakeRequest(std::to_string(i), prompt, 50);
    request.experts_from = starts[i];
    ASSERT_OK(engine_->Submit(request, clients[i].sink()));
  }
  std::uint32_t retractions = 0;
  for (std::size_t i = 0; i < clients.size(); ++i) {
    const Event event = clients[i].Wait();
    retractions += event.retractions;
    Tokens all = prompt;
    all.insert(all.end(), event.tokens.begin(), event.tokens.end());
    std::vector<std::int32_t> expected;
    for (std::size_t k = starts[i]; k + 1 < all.size(); ++k) {
      expected.push_back(all[k] * 3);
      expected.push_back(static_cast<std::int32_t>(k));
    }
    EXPECT_EQ(event.experts, expected) << "from " << starts[i];
    EXPECT_LE(event.cached_tokens, starts[i]);
  }
  EXPECT_GT(retractions, 0U) << "the test is meant to retract";
  Client plain;
  ASSERT_OK(engine_->Submit(MakeRequest("plain", prompt, 5), plain.sink()));
  EXPECT_TRUE(plain.Wait().experts.empty());
}

TEST_F(EngineTest, ExpertsOfADenseModelOrBeyondThePromptAreRefused) {
  Start();
  Client client;
  Request request = MakeRequest("a", {1, 2}, 5);
  request.experts_from = 0;
  EXPECT_ERROR(engine_->Submit(request, client.sink()), base::Code::kInvalidArgument,
               "return_routed_experts: expected a model with a mixture of experts");
  engine_.reset();
  model_.AddExperts();
  Start();
  request.experts_from = 3;
  EXPECT_ERROR(engine_->Submit(request, client.sink()), base::Code::kInvalidArgument,
               "routed_experts_start_len: expected at most the prompt's length (2), found 3");
}

TEST_F(EngineTest, ContextBoundsTheOutput) {
  Start({.max_context = 12});
  Client client;
  ASSERT_OK(engine_->Submit(MakeRequest("a", {1, 2, 3, 4}, 1000), client.sink()));
  EXPECT_EQ(client.Wait().tokens.size(), 8U);
  Client other;
  EXPECT_ERROR(engine_->Submit(MakeRequest("b", Tokens(12, 1), 5), other.sink()),
               base::Code::kInvalidArgument, "at most 11 tokens");
}

TEST_F(EngineTest, BadRequestsNameTheField) {
  Start();
  const auto refuse = [&](auto change, const char* text) {
    Request request = MakeRequest("a", {1, 2}, 5);
    change(request);
    Client client;
    EXPECT_ERROR(engine_->Submit(request, client.sink()), base::Code::kInvalidArgument, text);
  };
  refuse([](Request& r) { r.input_ids = {}; }, "input_ids");
  refuse([](Request& r) { r.input_ids = {61}; }, "token ids below 61, found 61");
  refuse([](Request& r) { r.input_ids = {-1}; }, "found -1");
  refuse([](Request& r) { r.sampling.temperature = -1; }, "temperature");
  refuse([](Request& r) { r.sampling.temperature = NAN; }, "temperature");
  refuse([](Request& r) { r.sampling.top_p = 0; }, "top_p");
  refuse([](Request& r) { r.sampling.top_k = 0; }, "top_k");
  refuse([](Request& r) { r.sampling.min_p = 1.5; }, "min_p");
  refuse([](Request& r) { r.sampling.repetition_penalty = 0; }, "repetition_penalty");
  refuse([](Request& r) { r.sampling.stop_token_ids = {100}; }, "stop_token_ids");
  refuse([](Request& r) { r.sampling.logit_bias = {{1, 1e9}}; }, "logit_bias");
  refuse([](Request& r) { r.sampling.min_new_tokens = 6; }, "min_new_tokens");
  refuse([](Request& r) { r.logprobs.start = 2; }, "logprob_start_len");
  refuse([](Request& r) { r.logprobs.tokens = {99}; }, "token_ids_logprob");
}

TEST_F(EngineTest, IdInUseIsRefusedUntilItsRequestEnds) {
  HoldSteps();
  Start();
  Client first;
  Client second;
  ASSERT_OK(engine_->Submit(MakeRequest("a", {1}, 2), first.sink()));
  EXPECT_ERROR(engine_->Submit(MakeRequest("a", {1}, 2), second.sink()), base::Code::kAlreadyExists,
               "\"a\"");
  Allow(2);
  first.Wait();
  ASSERT_OK(engine_->Submit(MakeRequest("a", {1}, 2), second.sink()));
  Allow(2);
  EXPECT_EQ(second.Wait().tokens.size(), 2U);
}

TEST_F(EngineTest, FailedStepEndsItsRequestsAndTheEngineGoesOn) {
  bool fail = true;
  model_.before_step = [&](const model::Batch&) -> base::Status {
    if (std::exchange(fail, false)) return base::Fail(base::Code::kInternal, "broken tensor");
    return {};
  };
  Start();
  Client client;
  ASSERT_OK(engine_->Submit(MakeRequest("a", {1}, 4), client.sink()));
  const Event event = client.Wait();
  EXPECT_EQ(event.finish->kind, Finish::Kind::kAbort);
  EXPECT_EQ(event.finish->http_status, 500);
  EXPECT_EQ(event.finish->message, "broken tensor");
  Client next;
  ASSERT_OK(engine_->Submit(MakeRequest("b", {1}, 4), next.sink()));
  EXPECT_EQ(next.Wait().tokens, FakeModel::Continue({1}, 4));
}

TEST_F(EngineTest, SeededSamplesDoNotDependOnTheBatch) {
  Start();
  const auto sample = [&](const std::string& id, Client& client) {
    Request request = MakeRequest(id, {4, 5}, 30);
    request.sampling.temperature = 30;  // nearly uniform
    request.sampling.seed = 77;
    return engine_->Submit(request, client.sink());
  };
  Client alone;
  ASSERT_OK(sample("a", alone));
  const Tokens expected = alone.Wait().tokens;
  std::vector<Client> others(20);
  for (int i = 0; i < 20; ++i) {
    ASSERT_OK(engine_->Submit(MakeRequest(std::to_string(i), {i}, 50), others[i].sink()));
  }
  Client among;
  ASSERT_OK(sample("b", among));
  EXPECT_EQ(among.Wait().tokens, expected);
  for (Client& other : others) other.Wait();
}

TEST_F(EngineTest, EndOfTheEngineEndsItsRequests) {
  HoldSteps();
  Start();
  Client client;
  ASSERT_OK(engine_->Submit(MakeRequest("a", {1}, 1000), client.sink()));
  Allow(3);
  client.WaitForTokens(3);
  std::atomic<bool> ended = false;
  std::thread allow([&] {
    while (!ended) {
      Allow(1);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  engine_.reset();
  ended = true;
  allow.join();
  const Event event = client.Wait();
  EXPECT_EQ(event.finish->kind, Finish::Kind::kAbort);
  EXPECT_EQ(event.finish->http_status, 503);
  EXPECT_GE(event.tokens.size(), 3U);
}

}  // namespace
}  // namespace syncline::engine
