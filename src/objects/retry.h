// What to do about a request that failed: which failures may pass, and how long to wait.
#pragma once

#include <cstdint>
#include <expected>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/cancel.h"
#include "base/error.h"

namespace syncline::objects {

// One try that did not work.
struct Failure {
  base::Error error;
  bool may_pass = false;  // is it worth another try?
  // The request may have been carried out although no good reply came.
  bool outcome_unknown = false;
  std::optional<double> retry_after;  // seconds that the server asked us to wait
  int status = 0;                     // of the reply; 0: none came
};

template <typename T>
using Tried = std::expected<T, Failure>;

inline std::unexpected<Failure> FailForGood(base::Error error) {
  return std::unexpected(Failure{.error = std::move(error)});
}
inline std::unexpected<Failure> FailForGood(base::Code code, std::string message) {
  return FailForGood(base::Error{code, std::move(message)});
}

// 408, 425, 429 and 5xx except 501 and 505.
bool StatusMayPass(int status);

// Retry-After: a number of seconds, or a date (`now`: seconds since the epoch). Nothing if it is
// neither.
std::optional<double> ParseRetryAfter(std::string_view value, double now);

// Time as tests can set it.
struct RetryClock {
  std::function<double()> now;  // seconds, monotonic
  // Waits; kCancelled soon after `cancel` (may be null) is set.
  std::function<base::Status(double seconds, const base::CancelToken* cancel)> wait;
  std::function<double()> random;  // from [0, 1)

  static RetryClock Real();
};

// The tries of one call. Waits grow from 0.2 s by doubling up to 10 s, each shortened by chance
// down to its half so that many clients do not come at once. A server that names a longer time
// (Retry-After) is obeyed. Not thread-safe.
class Retry {
 public:
  static constexpr double kFirstWait = 0.2;
  static constexpr double kLongestWait = 10;

  // seconds: for how long the call may go on without getting anywhere; 0: one try.
  Retry(double seconds, const base::CancelToken* cancel, RetryClock clock = RetryClock::Real());

  // Something was achieved: the time starts anew.
  void Progressed();

  // Waits for the next try. An error is the end of the call: `failure` will not pass, the time is
  // over (or would be, after the time that the server named), or the wait was cancelled.
  base::Status After(const Failure& failure);

 private:
  double seconds_;
  const base::CancelToken* cancel_;
  RetryClock clock_;
  double begin_ = 0;
  double next_wait_ = kFirstWait;
  std::uint64_t tries_ = 0;
};

// Calls attempt() until it gives a value or Retry says that it is over.
template <typename Attempt>
auto WithRetries(double seconds, const base::CancelToken* cancel, const Attempt& attempt)
    -> base::Result<typename decltype(attempt())::value_type> {
  Retry retry(seconds, cancel);
  while (true) {
    auto result = attempt();
    if (result) {
      if constexpr (std::is_void_v<typename decltype(attempt())::value_type>) {
        return {};
      } else {
        return *std::move(result);
      }
    }
    SYNCLINE_TRY(retry.After(result.error()));
  }
}

}  // namespace syncline::objects
