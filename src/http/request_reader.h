// Turns the bytes of a connection into one request. Knows no socket: bytes may come split anywhere.
//
// Memory: the headers take at most ReadLimits::header_bytes while they are incomplete. Of the body
// nothing but the last huge page is touched before its bytes arrive; address space is taken for
// sixteen times what has arrived, or kBodyStep if that is more. A Content-Length alone takes no
// more than kBodyStep.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "http/server.h"

namespace syncline::http {

struct ReadLimits {
  std::size_t header_bytes = 0;
  std::uint64_t body_bytes = 0;
};

// Why a request cannot be taken, as the server answers it.
struct ReadFailure {
  int status = 400;
  std::string message;
};

// What of a request decides how its reply is framed.
struct ReplyTraits {
  bool head_only = false;  // HEAD: the reply has headers only
  bool http_1_0 = false;
  bool keep_alive = false;
};

class RequestReader {
 public:
  static constexpr std::size_t kBodyStep = 1 << 20;

  explicit RequestReader(const ReadLimits& limits);
  ~RequestReader();
  RequestReader(const RequestReader&) = delete;
  RequestReader& operator=(const RequestReader&) = delete;

  enum class Stage { kStart, kHeaders, kBody, kDone, kFailed };
  Stage stage() const { return stage_; }

  // Takes bytes up to the end of the request and returns how many. kStart lasts until a byte other
  // than those of empty lines has come. Takes nothing once the stage is kDone or kFailed.
  std::size_t Feed(std::string_view bytes);

  // In kBody: how many bytes of pure body come next, so that they can be read straight to their
  // place with ReadBody. 0: framing comes next, which only Feed can take.
  std::uint64_t body_bytes_ahead() const;

  // Calls `read` once with the place for the next bytes of the body (1 to kBodyStep of them, never
  // beyond body_bytes_ahead()) and takes as many as it returns.
  void ReadBody(const std::function<std::size_t(std::span<char>)>& read);

  // In kBody: whether the client waits for "100 Continue" before it sends its body. True once.
  bool TakeExpectation();

  const ReadFailure& failure() const { return failure_; }  // in kFailed
  const ReplyTraits& traits() const { return traits_; }    // in kDone
  Request TakeRequest();                                   // in kDone

 private:
  class HeadParser;  // hides the HTTP library
  struct Body;

  std::size_t FeedHeaders(std::string_view bytes);
  std::size_t FeedBody(std::string_view bytes);
  void EndHeaders();
  void FailWith(int status, std::string message);
  void MakeRoom(std::size_t more);  // in the body
  void AppendToBody(std::string_view data);
  void CheckBodyEnd();

  ReadLimits limits_;
  Stage stage_ = Stage::kStart;
  std::unique_ptr<HeadParser> head_;  // until the headers are complete
  std::string unparsed_;              // bytes of incomplete headers that the parser has not taken
  std::size_t header_bytes_ = 0;      // that it has taken
  std::unique_ptr<Body> body_;        // while in kBody
  bool expectation_ = false;
  Request request_;
  ReplyTraits traits_;
  ReadFailure failure_;
};

}  // namespace syncline::http
