// How far a piece of work has come, for people who wait for it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string_view>

namespace syncline::base {

// Counts bytes of one phase at a time. Add() may be called from any thread; the listener is called
// from the thread that adds, at most once per reported step (1/200 of the total), so it may be slow
// enough to print.
class Progress {
 public:
  // phase: what is being done ("fetch", "apply" …); done and total in bytes, total 0 = not known.
  using Listener =
      std::function<void(std::string_view phase, std::uint64_t done, std::uint64_t total)>;

  Progress() = default;  // nobody listens
  explicit Progress(Listener listener) : listener_(std::move(listener)) {}

  // Not to be called while other threads add. `phase` must be a literal or outlive the phase.
  void Begin(std::string_view phase, std::uint64_t total) {
    phase_ = phase;
    total_ = total;
    done_ = 0;
    next_report_ = 0;
    Add(0);
  }

  void Add(std::uint64_t bytes) {
    const std::uint64_t done = done_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    if (!listener_) return;
    std::uint64_t due = next_report_.load(std::memory_order_relaxed);
    if (done < due && done < total_) return;
    if (next_report_.compare_exchange_strong(due, done + total_ / 200 + 1)) {
      listener_(phase_, done, total_);
    }
  }

 private:
  Listener listener_;
  std::string_view phase_;
  std::uint64_t total_ = 0;
  std::atomic<std::uint64_t> done_ = 0;
  std::atomic<std::uint64_t> next_report_ = 0;
};

}  // namespace syncline::base
