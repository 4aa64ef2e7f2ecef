#include "objects/retry.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <random>
#include <thread>

#include "base/log.h"

namespace syncline::objects {
namespace {

using base::CancelToken;
using base::Status;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A token is an atomic flag that a signal handler may set: it has to be looked at.
Status Wait(double seconds, const CancelToken* cancel) {
  const double end = Now() + seconds;
  while (true) {
    if (cancel != nullptr) SYNCLINE_TRY(cancel->Check());
    const double left = end - Now();
    if (left <= 0) return {};
    std::this_thread::sleep_for(std::chrono::duration<double>(std::min(left, 0.02)));
  }
}

double Random() {
  thread_local std::minstd_rand generator(std::random_device{}());
  return std::uniform_real_distribution<double>(0, 1)(generator);
}

}  // namespace

bool StatusMayPass(int status) {
  if (status == 408 || status == 425 || status == 429) return true;
  return status >= 500 && status != 501 && status != 505;
}

std::optional<double> ParseRetryAfter(std::string_view value, double now) {
  std::uint32_t seconds = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), seconds);
  if (error == std::errc() && end == value.data() + value.size()) return seconds;
  const std::time_t date = curl_getdate(std::string(value).c_str(), nullptr);
  if (date < 0) return std::nullopt;
  return std::max(0.0, static_cast<double>(date) - now);
}

RetryClock RetryClock::Real() { return {.now = Now, .wait = Wait, .random = Random}; }

Retry::Retry(double seconds, const CancelToken* cancel, RetryClock clock)
    : seconds_(seconds), cancel_(cancel), clock_(std::move(clock)), begin_(clock_.now()) {}

void Retry::Progressed() {
  begin_ = clock_.now();
  next_wait_ = kFirstWait;
}

Status Retry::After(const Failure& failure) {
  ++tries_;
  if (!failure.may_pass) return std::unexpected(failure.error);
  if (cancel_ != nullptr) SYNCLINE_TRY(cancel_->Check());
  const double passed = clock_.now() - begin_;
  const double left = seconds_ - passed;
  double wait = next_wait_ * (0.5 + clock_.random() / 2);
  next_wait_ = std::min(next_wait_ * 2, kLongestWait);
  const bool asked = failure.retry_after.value_or(0) > wait;
  if (asked) wait = *failure.retry_after;
  if (left <= 0 || (asked && wait > left)) {
    base::Error error = failure.error;
    if (asked && left > 0) {
      error.message += fmt::format("; the server asks for {:.0f} s, more than is left", wait);
    }
    if (tries_ > 1) {
      error.message += fmt::format(" (tried {} times, {:.0f} s without success)", tries_, passed);
    }
    return std::unexpected(std::move(error));
  }
  wait = std::min(wait, left);
  if (base::LogEnabled(base::LogLevel::kInfo)) {
    base::Log(base::LogLevel::kInfo,
              fmt::format("{}; trying again in {:.1f} s", failure.error.message, wait));
  }
  return clock_.wait(wait, cancel_);
}

}  // namespace syncline::objects
