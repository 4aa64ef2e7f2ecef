// One request, step by step:
//
// 1. A handle (a curl easy and multi pair, with the connections it has open) is taken from the idle
//    ones, or made.
// 2. The request is set up on it. All options are reset before, so nothing is left of the last one.
// 3. The transfer is driven in slices of at most kSlice: between them cancellation is looked at,
//    and whether any byte has moved since stall_seconds.
// 4. Callbacks hand the head and the body to the receiver. The first failure of a callback ends the
//    transfer and is what the caller gets.
// 5. A redirect starts again at 2 with the new place, without authentication if it is another
//    origin.
// 6. The handle goes back, whatever happened: curl itself drops a connection that is not clean.
#include "objects/transfer.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

namespace syncline::objects {
namespace {

using base::CancelToken;
using base::Code;
using base::Error;

constexpr int kMaxRedirects = 5;
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

bool IsRedirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

void InitializeCurl() {
  static const CURLcode done = curl_global_init(CURL_GLOBAL_DEFAULT);
  (void)done;
}

}  // namespace

class Client::Handle {
 public:
  Handle() : easy_(curl_easy_init()), multi_(curl_multi_init()) {}
  ~Handle() {
    curl_easy_cleanup(easy_);
    curl_multi_cleanup(multi_);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  bool ok() const { return easy_ != nullptr && multi_ != nullptr; }
  CURL* easy() const { return easy_; }
  CURLM* multi() const { return multi_; }

 private:
  CURL* easy_;
  CURLM* multi_;
};

// One request to one place, without redirects.
class Client::Exchange {
 public:
  Exchange(const Settings& settings, const Request& request, const Url& url, Receiver* receiver,
           const CancelToken* cancel)
      : settings_(settings),
        request_(request),
        url_(url),
        what_(url.SameOrigin(request.url) ? request.What() : request.method + " " + url.Shown()),
        receiver_(receiver),
        cancel_(cancel) {}
  ~Exchange() { curl_slist_free_all(headers_); }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  Tried<Reply> Run(Handle& handle, bool authenticate);
  const std::string& redirect() const { return redirect_; }

 private:
  void SetUp(CURL* easy, bool authenticate);
  void SetUpBody(CURL* easy);
  Tried<CURLcode> Drive(Handle& handle);
  static std::size_t OnHeader(char* data, std::size_t one, std::size_t size, void* self);
  static std::size_t OnBody(char* data, std::size_t one, std::size_t size, void* self);
  static std::size_t OnRead(char* into, std::size_t one, std::size_t size, void* self);
  static int OnSeek(void* self, curl_off_t offset, int origin);
  bool EndOfHead();

  // Keeps the failure and says no to curl.
  bool Stop(Failure failure) {
    failure_ = std::move(failure);
    return false;
  }

  const Settings& settings_;
  const Request& request_;
  const Url& url_;
  std::string what_;
  Receiver* receiver_;
  const CancelToken* cancel_;
  curl_slist* headers_ = nullptr;
  std::array<char, CURL_ERROR_SIZE> detail_ = {};
  Reply reply_;
  bool head_done_ = false;
  bool enough_ = false;
  std::uint64_t sent_ = 0;
  std::uint64_t moved_ = 0;  // bytes of either direction, as callbacks see them
  std::optional<Failure> failure_;
  std::string redirect_;
};

void Client::Exchange::SetUp(CURL* easy, bool authenticate) {
  curl_easy_reset(easy);
  curl_easy_setopt(easy, CURLOPT_URL, url_.ToRequest().c_str());
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(easy, CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
  curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);
  curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, kBufferBytes);
  curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS,
                   std::max(1L, static_cast<long>(settings_.connect_seconds * 1000)));
  curl_easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, 1L);
  curl_easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, 2L);
  if (!settings_.ca_file.empty()) {
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

void Client::Exchange::SetUpBody(CURL* easy) {
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

bool Client::Exchange::EndOfHead() {
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

std::size_t Client::Exchange::OnHeader(char* data, std::size_t, std::size_t size, void* self) {
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

std::size_t Client::Exchange::OnBody(char* data, std::size_t, std::size_t size, void* self) {
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

std::size_t Client::Exchange::OnRead(char* into, std::size_t one, std::size_t count, void* self) {
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

int Client::Exchange::OnSeek(void* self, curl_off_t offset, int origin) {
  if (origin != SEEK_SET || offset < 0) return CURL_SEEKFUNC_CANTSEEK;
  static_cast<Exchange*>(self)->sent_ = static_cast<std::uint64_t>(offset);
  return CURL_SEEKFUNC_OK;
}

Tried<CURLcode> Client::Exchange::Drive(Handle& handle) {
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

Tried<Reply> Client::Exchange::Run(Handle& handle, bool authenticate) {
  SetUp(handle.easy(), authenticate);
  if (curl_multi_add_handle(handle.multi(), handle.easy()) != CURLM_OK) {
    return FailForGood(Code::kInternal, what_ + ": the transfer cannot be set up");
  }
  const Tried<CURLcode> driven = Drive(handle);
  char* redirect = nullptr;
  curl_easy_getinfo(handle.easy(), CURLINFO_REDIRECT_URL, &redirect);
  if (redirect != nullptr) redirect_ = redirect;
  curl_multi_remove_handle(handle.multi(), handle.easy());
  curl_easy_reset(handle.easy());  // it points into this object
  if (failure_) return std::unexpected(*std::move(failure_));
  if (enough_) return std::move(reply_);
  if (!driven) return std::unexpected(driven.error());
  if (*driven != CURLE_OK) {
    return std::unexpected(TransferFailure(*driven, what_, detail_.data()));
  }
  return std::move(reply_);
}

Client::Client(const Settings& settings) : settings_(settings) { InitializeCurl(); }
Client::~Client() = default;

std::unique_ptr<Client::Handle> Client::Take() {
  {
    const std::scoped_lock lock(mutex_);
    if (!idle_.empty()) {
      auto handle = std::move(idle_.back());
      idle_.pop_back();
      return handle;
    }
  }
  return std::make_unique<Handle>();
}

void Client::Give(std::unique_ptr<Handle> handle) {
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
  std::unique_ptr<Handle> handle = Take();
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
