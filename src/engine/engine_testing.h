// An engine over the fake model, and a client that waits for what it is told.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/result_matchers.h"
#include "engine/engine.h"
#include "model/fake_model.h"

namespace syncline::engine {

// All events of one request. Thread-safe.
class Client {
 public:
  Sink sink() {
    return [this](Event event) {
      const std::scoped_lock lock(mutex_);
      events_.push_back(std::move(event));
      changed_.notify_all();
    };
  }

  // Waits until the request is finished; all of its events as one.
  Event Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !events_.empty() && events_.back().finish; });
    Event whole = events_.back();
    whole.tokens = Tokens();
    whole.text.clear();
    for (const Event& event : events_) {
      whole.text += event.text;
      if (event.input_logprobs) whole.input_logprobs = event.input_logprobs;
    }
    return whole;
  }

  // Waits for at least so many output tokens of a request that streams.
  void WaitForTokens(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return Tokens().size() >= count; });
  }

  std::vector<Event> events() {
    const std::scoped_lock lock(mutex_);
    return events_;
  }

 private:
  std::vector<TokenId> Tokens() const {
    std::vector<TokenId> tokens;
    for (const Event& event : events_) {
      tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
    }
    return tokens;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Event> events_;
};

class EngineTest : public testing::Test {
 protected:
  void Start(EngineOptions options = {}, std::vector<TokenId> end_tokens = {}) {
    if (options.kv_cache_bytes == 0) options.kv_cache_bytes = 1 << 20;
    auto engine = Engine::Start(options, model_, vocabulary_, std::move(end_tokens), "v0");
    ASSERT_OK(engine);
    engine_ = std::move(*engine);
  }

  static Request MakeRequest(std::string id, std::vector<TokenId> prompt, std::uint32_t count) {
    Request request;
    request.id = std::move(id);
    request.input_ids = std::move(prompt);
    request.sampling.max_new_tokens = count;
    request.sampling.temperature = 0;
    request.stream = true;
    return request;
  }

  base::Status Pause(PauseMode mode) {
    return Wait([&](Engine::Done done) { engine_->Pause(mode, std::move(done)); });
  }
  base::Status Continue() {
    return Wait([&](Engine::Done done) { engine_->Continue(std::move(done)); });
  }
  base::Status SetHold(Hold hold, std::string reason) {
    return Wait(
        [&](Engine::Done done) { engine_->SetHold(hold, std::move(reason), std::move(done)); });
  }
  base::Status Flush(int wait_ms = 0) {
    return Wait([&](Engine::Done done) {
      engine_->Flush(std::chrono::milliseconds(wait_ms), std::move(done));
    });
  }
  base::Status SetWeights(std::uint8_t a, std::uint8_t b, Engine::ExclusiveOptions options) {
    return Wait([&](Engine::Done done) {
      engine_->Exclusive(
          std::move(options),
          [this, a, b]() -> base::Status {
            model_.SetWeights(a, b);
            return {};
          },
          std::move(done));
    });
  }

  static base::Status Wait(const std::function<void(Engine::Done)>& start) {
    auto promise = std::make_shared<std::promise<base::Status>>();
    start([promise](base::Status status) { promise->set_value(std::move(status)); });
    return promise->get_future().get();
  }

  // Each step waits for one Step() call, so that tests know where requests stand.
  void HoldSteps() {
    model_.before_step = [this](const model::Batch&) -> base::Status {
      std::unique_lock lock(mutex_);
      held_ = true;
      stepped_.notify_all();
      stepped_.wait(lock, [this] { return allowed_ > 0; });
      --allowed_;
      held_ = false;
      return {};
    };
  }
  void Allow(std::uint64_t steps) {
    const std::scoped_lock lock(mutex_);
    allowed_ += steps;
    stepped_.notify_all();
  }

  // Waits until a step waits.
  void WaitForHeldStep() {
    std::unique_lock lock(mutex_);
    stepped_.wait(lock, [this] { return held_ && allowed_ == 0; });
  }

  // Pauses an engine that waits before a step: that step is computed first.
  void PauseHeld(PauseMode mode) {
    auto promise = std::make_shared<std::promise<void>>();
    engine_->Pause(mode, [promise](base::Status) { promise->set_value(); });
    Allow(1);
    promise->get_future().wait();
  }

  void TearDown() override {
    Allow(std::uint64_t{1} << 40);
    engine_.reset();
  }

  model::FakeModel model_;
  text::Vocabulary vocabulary_;
  std::unique_ptr<Engine> engine_;
  std::mutex mutex_;
  std::condition_variable stepped_;
  std::uint64_t allowed_ = 0;
  bool held_ = false;
};

}  // namespace syncline::engine
