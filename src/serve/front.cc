#include "serve/front.h"

#include <fmt/format.h>

#include <future>
#include <random>

namespace syncline::serve {
namespace {

std::uint64_t RandomNumber() {
  std::random_device device;
  return (static_cast<std::uint64_t>(device()) << 32) | device();
}

}  // namespace

Front::Front(base::MetricsRegistry& metrics) : meters_(metrics), id_prefix_(RandomNumber()) {}

void Front::SetReady(const Backend& backend, ModelCard card) {
  backend_ = backend;
  card_ = std::move(card);
  has_backend_.store(true, std::memory_order_release);
  State expected = State::kStarting;
  state_.compare_exchange_strong(expected, State::kReady, std::memory_order_acq_rel);
}

void Front::BeginStopping() {
  State state = state_.load(std::memory_order_acquire);
  while (state != State::kFailed && !state_.compare_exchange_weak(state, State::kStopping)) {
  }
}

void Front::Fail(base::Error reason) {
  const std::scoped_lock lock(mutex_);
  if (!failure_) failure_ = std::move(reason);
  state_.store(State::kFailed, std::memory_order_release);
}

std::optional<base::Error> Front::failure() const {
  const std::scoped_lock lock(mutex_);
  return failure_;
}

std::string Front::NewId() {
  return fmt::format("{:016x}{:016x}", id_prefix_,
                     next_id_.fetch_add(1, std::memory_order_relaxed));
}

void Front::Drain() {
  for (base::Worker* worker : {&disk_worker_, &worker_}) {
    std::promise<void> reached;
    worker->Post([&] { reached.set_value(); });
    reached.get_future().wait();
  }
}

void Front::NotePause() {
  const std::scoped_lock lock(mutex_);
  if (!paused_since_) paused_since_ = std::chrono::steady_clock::now();
}

void Front::NoteContinue() {
  const std::scoped_lock lock(mutex_);
  if (!paused_since_) return;
  const std::chrono::duration<double> paused = std::chrono::steady_clock::now() - *paused_since_;
  meters_.pause_seconds.Observe(paused.count());
  paused_since_.reset();
}

std::optional<LoadedVersion> Front::loaded() const {
  const std::scoped_lock lock(mutex_);
  return loaded_;
}

void Front::NoteChange() {
  const std::scoped_lock lock(mutex_);
  ++changes_;
  loaded_.reset();
}

std::uint64_t Front::changes() const {
  const std::scoped_lock lock(mutex_);
  return changes_;
}

void Front::SetLoaded(std::optional<LoadedVersion> loaded, std::uint64_t since) {
  const std::scoped_lock lock(mutex_);
  if (changes_ != since) loaded.reset();
  loaded_ = std::move(loaded);
}

}  // namespace syncline::serve
