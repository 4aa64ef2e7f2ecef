// One HTTP request for generation: its engine requests, and the reply that is made of their events.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "engine/request.h"
#include "http/server.h"
#include "serve/completion.h"
#include "serve/front.h"
#include "serve/replies.h"

namespace syncline::serve {

// How results look to the client. Called on the worker thread.
class Presenter {
 public:
  virtual ~Presenter() = default;

  // The reply of a call that is not streamed.
  virtual base::Json Whole(const std::vector<Completion>& results) = 0;

  // A streamed call: the events at its start, after each event of result `index`, and at its end.
  virtual std::vector<base::Json> Begin(const std::vector<Completion>& /*results*/) { return {}; }
  virtual std::vector<base::Json> Chunk(const Completion& result, std::size_t index,
                                        const engine::Event& event) = 0;
  virtual std::vector<base::Json> End(const std::vector<Completion>& /*results*/) { return {}; }
};

struct CallOptions {
  ErrorStyle style = ErrorStyle::kSglang;
  bool stream = false;
  std::string group;  // the client's id where it stands for several requests; empty: none
};

// 1. Create (server thread): from then on a client that goes away ends the call.
// 2. Run or Fail (worker thread), once: all requests are submitted, or none is left running.
// 3. Each event is added to its result; a streamed call writes a chunk.
// 4. The last event ends the reply. A request that was aborted with an HTTP status fails a call
//    that is not streamed (or is OpenAI's) with that status, and its other requests are aborted.
//
// Lives as long as the engine holds one of its sinks.
class Call : public std::enable_shared_from_this<Call> {
 public:
  static std::shared_ptr<Call> Create(Front& front, std::shared_ptr<http::Exchange> exchange,
                                      std::unique_ptr<Presenter> presenter, CallOptions options);

  void Run(std::vector<engine::Request> requests);
  void Fail(const base::Error& error);

 private:
  Call(Front& front, std::shared_ptr<http::Exchange> exchange, std::unique_ptr<Presenter> presenter,
       CallOptions options);

  base::Status Submit(std::vector<engine::Request> requests);
  void OnEvent(std::size_t index, const engine::Event& event);
  void OnFinish(std::size_t index);
  void Count(const Completion& result, const engine::Event& event);
  void Stream(const std::vector<base::Json>& events);
  void Reply(int status, std::string_view message);
  void Complete();
  void Abandon();
  void AbortRest();
  double Elapsed() const;

  Front& front_;
  std::shared_ptr<http::Exchange> exchange_;
  std::unique_ptr<Presenter> presenter_;
  CallOptions options_;
  std::vector<Completion> results_;
  std::size_t unfinished_ = 0;
  bool streaming_ = false;  // the stream has begun
  bool done_ = false;       // the reply is complete or the client has gone
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

}  // namespace syncline::serve
