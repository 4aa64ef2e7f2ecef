// Waiting for a call that answers later, on another thread.
#pragma once

#include <future>
#include <memory>
#include <utility>

namespace syncline::base {

// Calls start(done) and waits until `done` was called with a T, once. Not for the thread that calls it.
template <typename T, typename Start>
T WaitFor(const Start& start) {
  // Shared: the caller may be gone before the call of `done` has returned.
  auto promise = std::make_shared<std::promise<T>>();
  start([promise](T value) { promise->set_value(std::move(value)); });
  return promise->get_future().get();
}

}  // namespace syncline::base
