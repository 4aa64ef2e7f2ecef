#include "http/request_reader.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <boost/beast/http/basic_parser.hpp>
#include <limits>
#include <optional>
#include <utility>

#include "http/chunk_decoder.h"
#include "http/request_target.h"

namespace syncline::http {
namespace {

namespace beast = boost::beast;

constexpr std::size_t kMaxChunkLine = 4 << 10;
// A body that outgrows its memory gets so many times more. Growing copies, and touching memory for
// the first time costs more than receiving: so rather few steps than small ones.
constexpr std::size_t kGrowth = 16;
constexpr std::size_t kLargeBody = 4 << 20;  // worth huge pages

// Receiving into fresh memory costs several times the copy itself in page faults; huge pages make
// them rare. A hint: not every kernel has them, and only whole huge pages follow it.
void PreferHugePages(std::string& memory) {
  constexpr std::size_t kHugePage = 2 << 20;
  void* first = memory.data();
  std::size_t bytes = memory.capacity();
  if (bytes < kLargeBody || std::align(kHugePage, kHugePage, first, bytes) == nullptr) return;
  (void)::madvise(first, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
}

}  // namespace

// Used for the headers alone: what the library does with chunked bodies asserts on some splits.
class RequestReader::HeadParser : public beast::http::basic_parser<true> {
 public:
  HeadParser() {
    // RequestReader counts both itself.
    header_limit(std::numeric_limits<std::uint32_t>::max());
    body_limit(boost::none);
  }

  Request request;
  std::optional<ReadFailure> failure;
  bool expects_continue = false;
  bool http_1_0 = false;

 private:
  using Error = beast::error_code;
  using View = beast::string_view;

  void Refuse(int status, std::string message, Error& error) {
    failure = ReadFailure{status, std::move(message)};
    error = beast::http::error::bad_field;
  }

  void on_request_impl(beast::http::verb /*verb*/, View method, View target, int version,
                       Error& error) override {
    request.method = method;
    http_1_0 = version < 11;
    if (base::Status status = ParseTarget(target, request); !status) {
      Refuse(400, std::move(status).error().message, error);
    }
  }

  void on_field_impl(beast::http::field field, View name, View value, Error& error) override {
    request.headers.emplace_back(name, value);
    if (field == beast::http::field::expect && beast::iequals(value, "100-continue")) {
      expects_continue = true;
    }
    if (field == beast::http::field::transfer_encoding && !beast::iequals(value, "chunked")) {
      Refuse(501, fmt::format("transfer encoding \"{}\" is not supported, only chunked", value),
             error);
    }
  }

  void on_response_impl(int, View, int, Error&) override {}
  void on_header_impl(Error&) override {}
  void on_body_init_impl(const boost::optional<std::uint64_t>&, Error&) override {}
  std::size_t on_body_impl(View body, Error&) override { return body.size(); }
  void on_chunk_header_impl(std::uint64_t, View, Error&) override {}
  std::size_t on_chunk_body_impl(std::uint64_t, View body, Error&) override { return body.size(); }
  void on_finish_impl(Error&) override {}
};

struct RequestReader::Body {
  std::uint64_t left = 0;  // without chunks
  std::optional<ChunkDecoder> chunks;
};

RequestReader::RequestReader(const ReadLimits& limits)
    : limits_(limits), head_(std::make_unique<HeadParser>()) {}

RequestReader::~RequestReader() = default;

void RequestReader::FailWith(int status, std::string message) {
  stage_ = Stage::kFailed;
  failure_ = {.status = status, .message = std::move(message)};
}

std::size_t RequestReader::Feed(std::string_view bytes) {
  std::size_t taken = 0;
  if (stage_ == Stage::kStart) {
    taken = std::min(bytes.find_first_not_of("\r\n"), bytes.size());
    if (taken < bytes.size()) stage_ = Stage::kHeaders;
  }
  if (stage_ == Stage::kHeaders) taken += FeedHeaders(bytes.substr(taken));
  if (stage_ == Stage::kBody) taken += FeedBody(bytes.substr(taken));
  return taken;
}

std::size_t RequestReader::FeedHeaders(std::string_view bytes) {
  // Complete headers that come in one piece are parsed where they lie.
  const bool buffered = !unparsed_.empty();
  if (buffered) unparsed_.append(bytes);
  std::string_view rest = buffered ? std::string_view(unparsed_) : bytes;
  beast::error_code error;
  while (!error && !head_->is_header_done() && !rest.empty()) {
    const std::size_t parsed = head_->put({rest.data(), rest.size()}, error);
    header_bytes_ += parsed;
    rest.remove_prefix(parsed);
  }
  const bool incomplete = error == beast::http::error::need_more;
  const std::size_t seen = header_bytes_ + (incomplete ? rest.size() : 0);
  if (seen > limits_.header_bytes) {
    FailWith(431,
             fmt::format("request headers exceed the limit of {} bytes", limits_.header_bytes));
  } else if (error && !incomplete) {
    if (head_->failure) {
      FailWith(head_->failure->status, std::move(head_->failure->message));
    } else {
      FailWith(400, fmt::format("malformed request: {}", error.message()));
    }
  } else if (!head_->is_header_done()) {
    if (buffered) {
      unparsed_.erase(0, unparsed_.size() - rest.size());
    } else {
      unparsed_ = rest;
    }
    return bytes.size();
  } else {
    EndHeaders();
  }
  // What is left over is the end of `bytes`: without it the headers were incomplete.
  const std::size_t left = std::min(rest.size(), bytes.size());
  std::string().swap(unparsed_);
  return bytes.size() - left;
}

void RequestReader::EndHeaders() {
  request_ = std::move(head_->request);
  traits_ = {.head_only = request_.method == "HEAD",
             .http_1_0 = head_->http_1_0,
             .keep_alive = head_->keep_alive()};
  const std::uint64_t length = head_->content_length().value_or(0);
  const bool chunked = head_->chunked();
  expectation_ = head_->expects_continue && !traits_.http_1_0;
  head_.reset();
  if (length > limits_.body_bytes) {
    return FailWith(413, fmt::format("body of {} bytes exceeds the limit of {} bytes", length,
                                     limits_.body_bytes));
  }
  if (!chunked && length == 0) {
    stage_ = Stage::kDone;
    return;
  }
  stage_ = Stage::kBody;
  body_ = std::make_unique<Body>();
  if (chunked) {
    body_->chunks.emplace(kMaxChunkLine, limits_.header_bytes);
  } else {
    body_->left = length;
    request_.body.reserve(std::min<std::uint64_t>(length, kBodyStep));
  }
}

std::uint64_t RequestReader::body_bytes_ahead() const {
  if (stage_ != Stage::kBody) return 0;
  return body_->chunks ? body_->chunks->data_left() : body_->left;
}

void RequestReader::MakeRoom(std::size_t more) {
  std::string& body = request_.body;
  const std::size_t need = body.size() + more;
  if (need <= body.capacity()) return;
  const std::uint64_t most = body_->chunks ? limits_.body_bytes : body.size() + body_->left;
  body.reserve(std::max<std::size_t>(need, std::min<std::uint64_t>(kGrowth * need, most)));
  PreferHugePages(body);
}

void RequestReader::ReadBody(const std::function<std::size_t(std::span<char>)>& read) {
  const std::size_t have = request_.body.size();
  const auto want = static_cast<std::size_t>(
      std::min<std::uint64_t>(body_bytes_ahead(), RequestReader::kBodyStep));
  MakeRoom(want);
  std::size_t got = 0;
  // The place is not cleared first: that would touch each page once more.
  request_.body.resize_and_overwrite(have + want, [&](char* data, std::size_t) {
    got = std::min(read({data + have, want}), want);
    return have + got;
  });
  expectation_ = false;
  if (body_->chunks) {
    body_->chunks->TakeData(got);
  } else {
    body_->left -= got;
    CheckBodyEnd();
  }
}

void RequestReader::AppendToBody(std::string_view data) {
  MakeRoom(data.size());
  request_.body.append(data);
  if (body_->chunks) {
    body_->chunks->TakeData(data.size());
  } else {
    body_->left -= data.size();
  }
}

void RequestReader::CheckBodyEnd() {
  if (body_->chunks || body_->left > 0) return;
  stage_ = Stage::kDone;
}

std::size_t RequestReader::FeedBody(std::string_view bytes) {
  std::string_view rest = bytes;
  if (!rest.empty()) expectation_ = false;
  while (stage_ == Stage::kBody) {
    if (body_->chunks) {
      switch (body_->chunks->Skip(rest)) {
        case ChunkDecoder::Status::kMore:
          return bytes.size();
        case ChunkDecoder::Status::kDone:
          stage_ = Stage::kDone;
          continue;
        case ChunkDecoder::Status::kMalformed:
          FailWith(400, "malformed request: bad chunk");
          continue;
        case ChunkDecoder::Status::kTrailersTooLong:
          FailWith(431, fmt::format("request trailers exceed the limit of {} bytes",
                                    limits_.header_bytes));
          continue;
        case ChunkDecoder::Status::kData:
          if (body_->chunks->data_left() > limits_.body_bytes - request_.body.size()) {
            FailWith(413,
                     fmt::format("chunked body exceeds the limit of {} bytes", limits_.body_bytes));
            continue;
          }
          break;
      }
    }
    if (rest.empty()) break;
    const std::string_view data = rest.substr(0, body_bytes_ahead());
    AppendToBody(data);
    rest.remove_prefix(data.size());
    CheckBodyEnd();
  }
  return bytes.size() - rest.size();
}

bool RequestReader::TakeExpectation() {
  return stage_ == Stage::kBody && std::exchange(expectation_, false);
}

Request RequestReader::TakeRequest() { return std::move(request_); }

}  // namespace syncline::http
