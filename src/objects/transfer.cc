// A request takes a handle from the idle ones, or makes one, and gives it back whatever happened:
// curl itself drops a connection that is not clean. A redirect is a new exchange on the same handle,
// without authentication if it leads to another origin.
#include "objects/transfer.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>

#include "objects/exchange.h"

namespace syncline::objects {
namespace {

using base::CancelToken;
using base::Code;

constexpr int kMaxRedirects = 5;

bool IsRedirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

void InitializeCurl() {
  static const CURLcode done = curl_global_init(CURL_GLOBAL_DEFAULT);
  (void)done;
}

}  // namespace

Client::Client(const Settings& settings) : settings_(settings) { InitializeCurl(); }
Client::~Client() = default;

std::unique_ptr<CurlHandle> Client::Take() {
  {
    const std::scoped_lock lock(mutex_);
    if (!idle_.empty()) {
      auto handle = std::move(idle_.back());
      idle_.pop_back();
      return handle;
    }
  }
  return std::make_unique<CurlHandle>();
}

void Client::Give(std::unique_ptr<CurlHandle> handle) {
  const std::scoped_lock lock(mutex_);
  idle_.push_back(std::move(handle));
}

Tried<Reply> Client::Send(const Request& request, Receiver* receiver, const CancelToken* cancel) {
  if (cancel != nullptr && cancel->cancelled()) {
    return FailForGood(Code::kCancelled, request.What() + ": cancelled");
  }
  for (const auto& [name, value] : request.headers) {
    if (std::ranges::any_of(value, [](char c) { return static_cast<unsigned char>(c) < ' '; })) {
      return FailForGood(Code::kInvalidArgument,
                         fmt::format("{}: header {} has control characters", request.What(), name));
    }
  }
  std::unique_ptr<CurlHandle> handle = Take();
  if (!handle->ok()) return FailForGood(Code::kInternal, "libcurl cannot be set up");
  Url url = request.url;
  for (int redirects = 0; true; ++redirects) {
    Exchange exchange(settings_, request, url, receiver, cancel);
    Tried<Reply> reply = exchange.Run(*handle, url.SameOrigin(request.url));
    const bool follow = reply && request.follow_redirects && IsRedirect(reply->head.status) &&
                        !exchange.redirect().empty();
    if (!follow) {
      Give(std::move(handle));
      return reply;
    }
    const auto refused = [&](std::string_view why) {
      return FailForGood(Code::kIncompatible,
                         fmt::format("{}: a redirect to {} is refused: {}", request.What(),
                                     Redact(exchange.redirect()), why));
    };
    if (redirects == kMaxRedirects) return refused("there were too many before");
    const std::string scheme = SchemeOf(exchange.redirect());
    if (scheme != "https" && (scheme != "http" || url.scheme == "https")) {
      return refused(url.scheme == "https" ? "only https is allowed"
                                           : "only http and https are allowed");
    }
    auto next = ParseUrl(exchange.redirect());
    if (!next) return refused("it is no URL");
    url = *std::move(next);
  }
}

Tried<void> TextReceiver::OnHead(const ReplyHead& head) {
  text_.clear();
  const std::uint64_t bytes = head.Length().value_or(0);
  if (bytes <= limit_) return {};
  return FailForGood(Code::kLimitExceeded, fmt::format("{} has {} bytes, more than the limit of {}",
                                                       what_, bytes, limit_));
}

Tried<Receiver::Take> TextReceiver::OnBody(base::ByteSpan bytes) {
  if (bytes.size() > limit_ - text_.size()) {
    return FailForGood(Code::kLimitExceeded,
                       fmt::format("{} has more than the limit of {} bytes", what_, limit_));
  }
  text_ += base::AsText(bytes);
  return Take::kMore;
}

}  // namespace syncline::objects
