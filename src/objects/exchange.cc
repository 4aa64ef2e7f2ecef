// One request, step by step:
//
// 1. The request is set up on a handle. All options are reset before, so nothing is left of the
//    last one.
// 2. The transfer is driven in slices of at most kSliceMs: between them cancellation is looked at,
//    and whether any byte has moved since stall_seconds.
// 3. Callbacks hand the head and the body to the receiver. The first failure of a callback ends the
//    transfer and is what the caller gets.
// 4. The handle is reset, for it points into the Exchange. Its connection stays open if it is clean.
#include "objects/exchange.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

namespace syncline::objects {
namespace {

using base::CancelToken;
using base::Code;

constexpr int kSliceMs = 50;
constexpr std::size_t kMaxErrorBody = 64 << 10;
constexpr long kBufferBytes = 256 << 10;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// What a failed transfer is. `detail` is curl's own text, which names hosts but no secrets.
Failure TransferFailure(CURLcode code, const std::string& what, std::string_view detail) {
  Failure failure;
  std::string text = detail.empty() ? curl_easy_strerror(code) : std::string(detail);
  failure.error = {Code::kUnavailable, fmt::format("{}: {}", what, text)};
  failure.may_pass = true;
  failure.outcome_unknown = code != CURLE_COULDNT_CONNECT && code != CURLE_COULDNT_RESOLVE_HOST;
  switch (code) {
    case CURLE_PEER_FAILED_VERIFICATION:
      failure.error = {Code::kPermissionDenied,
                       fmt::format("{}: the server's certificate is refused: {}", what, text)};
      failure.may_pass = false;
      break;
    case CURLE_SSL_CACERT_BADFILE:
      failure.error = {
          Code::kInvalidArgument,
          fmt::format("{}: the file of authorities to trust is refused: {}", what, text)};
      failure.may_pass = false;
      break;
    case CURLE_SSL_CONNECT_ERROR:
      // OpenSSL's own errors, except for a connection that ended, are a handshake that can't work.
      if (text.find("error:") != std::string::npos &&
          text.find("unexpected eof") == std::string::npos) {
        failure.error = {Code::kIncompatible,
                         fmt::format("{}: no TLS with this server: {}", what, text)};
        failure.may_pass = false;
      }
      break;
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_BAD_CONTENT_ENCODING:
      failure.error.code = Code::kCorrupt;
      failure.may_pass = false;
      break;
    case CURLE_OUT_OF_MEMORY:
    case CURLE_FAILED_INIT:
    case CURLE_BAD_FUNCTION_ARGUMENT:
    case CURLE_URL_MALFORMAT:
      failure.error.code = Code::kInternal;
      failure.may_pass = false;
      break;
    default:
      break;
  }
  return failure;
}

}  // namespace

CurlHandle::CurlHandle() : easy_(curl_easy_init()), multi_(curl_multi_init()) {}

CurlHandle::~CurlHandle() {
  curl_easy_cleanup(easy_);
  curl_multi_cleanup(multi_);
}

Exchange::Exchange(const Settings& settings, const Request& request, const Url& url,
                   Receiver* receiver, const CancelToken* cancel)
    : settings_(settings),
      request_(request),
      url_(url),
      what_(url.SameOrigin(request.url) ? request.What() : request.method + " " + url.Shown()),
      receiver_(receiver),
      cancel_(cancel) {
  static_assert(std::tuple_size_v<decltype(detail_)> == CURL_ERROR_SIZE);
}

Exchange::~Exchange() { curl_slist_free_all(headers_); }

bool Exchange::Stop(Failure failure) {
  failure_ = std::move(failure);
  return false;
}

void Exchange::SetUp(void* easy, bool authenticate) {
  curl_easy_reset(easy);
  curl_easy_setopt(easy, CURLOPT_URL, url_.ToRequest().c_str());
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(easy, CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
  curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  curl_easy_setopt(easy, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);  // a proxy's are not the reply's
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);
  curl_easy_setopt(easy, CURLOPT_FRESH_CONNECT, request_.send_once ? 1L : 0L);
  curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, kBufferBytes);
  curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS,
                   std::max(1L, static_cast<long>(settings_.connect_seconds * 1000)));
  curl_easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, 1L);
  curl_easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, 2L);
  if (!settings_.ca_file.empty()) {
    // In place of the system's bundle; the system's directory of certificates stays.
    curl_easy_setopt(easy, CURLOPT_CAINFO, settings_.ca_file.c_str());
  }
  curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, detail_.data());
  curl_easy_setopt(easy, CURLOPT_USERAGENT, "syncline");
  if (authenticate && !request_.url.user.empty()) {
    curl_easy_setopt(easy, CURLOPT_HTTPAUTH, static_cast<long>(CURLAUTH_BASIC));
    curl_easy_setopt(easy, CURLOPT_USERNAME, request_.url.user.c_str());
    curl_easy_setopt(easy, CURLOPT_PASSWORD, request_.url.password.c_str());
  }
  for (const auto& [name, value] : request_.headers) {
    headers_ = curl_slist_append(headers_, fmt::format("{}: {}", name, value).c_str());
  }
  headers_ = curl_slist_append(headers_, "Expect:");  // no waiting for "100 Continue"
  curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, OnHeader);
  curl_easy_setopt(easy, CURLOPT_HEADERDATA, this);
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, OnBody);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, this);
  SetUpBody(easy);
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers_);
}

void Exchange::SetUpBody(void* easy) {
  if (request_.method == "HEAD") {
    curl_easy_setopt(easy, CURLOPT_NOBODY, 1L);
  } else if (request_.method == "PUT" || request_.method == "POST") {
    const std::uint64_t bytes =
        request_.file == nullptr ? request_.text.size() : request_.body_bytes;
    curl_easy_setopt(easy, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, request_.method.c_str());
    curl_easy_setopt(easy, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(bytes));
    curl_easy_setopt(easy, CURLOPT_READFUNCTION, OnRead);
    curl_easy_setopt(easy, CURLOPT_READDATA, this);
    curl_easy_setopt(easy, CURLOPT_SEEKFUNCTION, OnSeek);
    curl_easy_setopt(easy, CURLOPT_SEEKDATA, this);
    curl_easy_setopt(easy, CURLOPT_UPLOAD_BUFFERSIZE, kBufferBytes);
  } else if (request_.method != "GET") {
    curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, request_.method.c_str());
  }
}

bool Exchange::EndOfHead() {
  if (reply_.head.status < 200) return true;  // an interim reply; another head follows
  head_done_ = true;
  const std::string* encoding = reply_.head.Header("content-encoding");
  if (encoding != nullptr && *encoding != "identity" && reply_.head.status < 300) {
    return Stop({.error = {Code::kIncompatible,
                           fmt::format("{}: the reply has Content-Encoding {}, which was not asked "
                                       "for",
                                       what_, *encoding)}});
  }
  if (receiver_ == nullptr || reply_.head.status >= 300) return true;
  auto taken = receiver_->OnHead(reply_.head);
  return taken ? true : Stop(std::move(taken).error());
}

std::size_t Exchange::OnHeader(char* data, std::size_t, std::size_t size, void* self) {
  auto& exchange = *static_cast<Exchange*>(self);
  exchange.moved_ += size;
  if (exchange.head_done_) return size;  // trailers
  const std::string_view line(data, size);
  if (auto added = exchange.reply_.head.AddLine(line); !added) {
    added.error().message = fmt::format("{}: the reply: {}", exchange.what_, added.error().message);
    exchange.Stop({.error = std::move(added).error()});
    return 0;
  }
  if (line == "\r\n" || line == "\n") return exchange.EndOfHead() ? size : 0;
  return size;
}

std::size_t Exchange::OnBody(char* data, std::size_t, std::size_t size, void* self) {
  auto& exchange = *static_cast<Exchange*>(self);
  exchange.moved_ += size;
  if (exchange.reply_.head.status >= 300) {
    std::string& text = exchange.reply_.error_body;
    text.append(data, std::min(size, kMaxErrorBody - text.size()));
    if (text.size() < kMaxErrorBody) return size;
    exchange.enough_ = true;
    return 0;
  }
  if (exchange.receiver_ == nullptr) return size;
  auto taken = exchange.receiver_->OnBody(base::AsBytes({data, size}));
  if (!taken) {
    exchange.Stop(std::move(taken).error());
    return 0;
  }
  if (*taken == Receiver::Take::kMore) return size;
  exchange.enough_ = true;
  return 0;
}

std::size_t Exchange::OnRead(char* into, std::size_t one, std::size_t count, void* self) {
  auto& exchange = *static_cast<Exchange*>(self);
  const Request& request = exchange.request_;
  std::size_t size = one * count;
  if (request.file == nullptr) {
    size = std::min<std::size_t>(size, request.text.size() - exchange.sent_);
    std::memcpy(into, request.text.data() + exchange.sent_, size);
  } else {
    size = static_cast<std::size_t>(
        std::min<std::uint64_t>(size, request.body_bytes - exchange.sent_));
    const base::MutableByteSpan bytes(reinterpret_cast<std::byte*>(into), size);
    if (auto read = base::ReadExactly(*request.file, bytes, request.file_offset + exchange.sent_);
        !read) {
      exchange.Stop({.error = std::move(read).error()});
      return CURL_READFUNC_ABORT;
    }
  }
  exchange.sent_ += size;
  exchange.moved_ += size;
  if (request.position) request.position(exchange.sent_);
  return size;
}

int Exchange::OnSeek(void* self, std::int64_t offset, int origin) {
  if (origin != SEEK_SET || offset < 0) return CURL_SEEKFUNC_CANTSEEK;
  static_cast<Exchange*>(self)->sent_ = static_cast<std::uint64_t>(offset);
  return CURL_SEEKFUNC_OK;
}

Tried<int> Exchange::Drive(CurlHandle& handle) {
  double last_move = Now();
  std::uint64_t moved = 0;
  curl_off_t uploaded = 0;
  int running = 1;
  while (true) {
    if (curl_multi_perform(handle.multi(), &running) != CURLM_OK) return CURLE_FAILED_INIT;
    int left = 0;
    while (const CURLMsg* message = curl_multi_info_read(handle.multi(), &left)) {
      if (message->msg == CURLMSG_DONE) return message->data.result;
    }
    if (running == 0) return CURLE_FAILED_INIT;
    if (cancel_ != nullptr && cancel_->cancelled()) {
      return FailForGood(Code::kCancelled, what_ + ": cancelled");
    }
    curl_off_t up = 0;
    curl_off_t ready = 0;
    curl_easy_getinfo(handle.easy(), CURLINFO_SIZE_UPLOAD_T, &up);
    curl_easy_getinfo(handle.easy(), CURLINFO_PRETRANSFER_TIME_T, &ready);
    const double now = Now();
    // The time to connect has its own limit.
    if (ready == 0 || moved != moved_ || uploaded != up) last_move = now;
    moved = moved_;
    uploaded = up;
    if (now - last_move > settings_.stall_seconds) {
      return std::unexpected(
          Failure{.error = {Code::kTimeout, fmt::format("{}: no byte has moved for {:g} s", what_,
                                                        settings_.stall_seconds)},
                  .may_pass = true,
                  .outcome_unknown = true});
    }
    curl_multi_poll(handle.multi(), nullptr, 0, kSliceMs, nullptr);
  }
}

Tried<Reply> Exchange::Run(CurlHandle& handle, bool authenticate) {
  SetUp(handle.easy(), authenticate);
  if (curl_multi_add_handle(handle.multi(), handle.easy()) != CURLM_OK) {
    return FailForGood(Code::kInternal, what_ + ": the transfer cannot be set up");
  }
  const Tried<int> driven = Drive(handle);
  char* redirect = nullptr;
  curl_easy_getinfo(handle.easy(), CURLINFO_REDIRECT_URL, &redirect);
  if (redirect != nullptr) redirect_ = redirect;
  curl_multi_remove_handle(handle.multi(), handle.easy());
  curl_easy_reset(handle.easy());  // it points into this object
  if (failure_) return std::unexpected(*std::move(failure_));
  if (enough_) return std::move(reply_);
  if (!driven) return std::unexpected(driven.error());
  if (*driven != CURLE_OK) {
    return std::unexpected(TransferFailure(static_cast<CURLcode>(*driven), what_, detail_.data()));
  }
  return std::move(reply_);
}

}  // namespace syncline::objects
