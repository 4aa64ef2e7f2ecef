// One HTTP request and its reply, over libcurl.
//
// Server certificates are always verified. Only http and https are spoken. Signals are neither
// raised nor handled.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/cancel.h"
#include "base/file.h"
#include "objects/object_store.h"
#include "objects/reply_head.h"
#include "objects/retry.h"
#include "objects/url.h"

namespace syncline::objects {

class CurlHandle;

struct Request {
  std::string method = "GET";
  Url url;  // a user in it is sent as basic authentication, but not to another place
  // The object as messages name it; empty: url.Shown().
  std::string shown;
  std::vector<std::pair<std::string, std::string>> headers;
  // The body of a PUT or POST: `text`, or, if `file` is set, body_bytes of it from file_offset on.
  std::string_view text;
  base::File* file = nullptr;
  std::uint64_t file_offset = 0;
  std::uint64_t body_bytes = 0;
  // Told, from the calling thread, how much of the body has been handed over; it goes back where
  // the body had to be sent again. May be empty.
  std::function<void(std::uint64_t)> position;
  // Whether to go where a 301, 302, 303, 307 or 308 says (GET and HEAD only, at most 5 times, never
  // from https to http).
  bool follow_redirects = false;
  // Over a new connection. libcurl by itself sends a request again if a kept connection turns out
  // to be dead, also where the server may have carried it out: its caller would never know.
  bool send_once = false;

  // For messages: "GET https://host/key".
  std::string What() const { return method + " " + (shown.empty() ? url.Shown() : shown); }
};

// Takes the body of a reply with status 2xx. Called from the thread that sends.
class Receiver {
 public:
  enum class Take { kMore, kEnough };  // kEnough: the rest is not wanted

  virtual ~Receiver() = default;
  // Before the first byte, and also where none comes.
  virtual Tried<void> OnHead(const ReplyHead& head) = 0;
  virtual Tried<Take> OnBody(base::ByteSpan bytes) = 0;
};

struct Reply {
  ReplyHead head;
  std::string error_body;  // of a status other than 2xx; at most its first 64 KiB
};

// Thread-safe. Connections stay open for the next request.
class Client {
 public:
  explicit Client(const Settings& settings);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // One try. A reply with any status is a success here; `receiver` may be null: the body of a
  // success is dropped. What the receiver fails with is returned as it is; failures of the
  // transfer are made with the codes that object_store.h promises.
  Tried<Reply> Send(const Request& request, Receiver* receiver, const base::CancelToken* cancel);

 private:
  std::unique_ptr<CurlHandle> Take();
  void Give(std::unique_ptr<CurlHandle> handle);

  Settings settings_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<CurlHandle>> idle_;  // guarded by mutex_
};

// A body as text, of at most `limit` bytes: kLimitExceeded beyond it, before it is read where the
// server says the size.
class TextReceiver final : public Receiver {
 public:
  TextReceiver(std::string what, std::uint64_t limit) : what_(std::move(what)), limit_(limit) {}

  Tried<void> OnHead(const ReplyHead& head) override;
  Tried<Take> OnBody(base::ByteSpan bytes) override;
  std::string& text() { return text_; }

 private:
  std::string what_;
  std::uint64_t limit_;
  std::string text_;
};

}  // namespace syncline::objects
