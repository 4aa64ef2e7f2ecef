// The far end of one request: what came back, and whether it came as it should.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "http/server.h"

namespace syncline::orders {

// Thread-safe.
class Client : public http::Exchange {
 public:
  void Send(http::Response response) override;
  void BeginStream(int status, std::string content_type) override;
  void Write(std::string chunk) override;
  void End() override;
  void OnDisconnect(std::function<void()> callback) override;

  // The client goes away, if its reply is not complete yet.
  void Leave();

  // False if there was no whole reply by then. That to a client that has left is thrown away, but
  // counts.
  bool Wait(std::chrono::steady_clock::time_point until);
  bool left();
  http::Response response();
  // What was wrong with the order of calls; empty: nothing.
  std::string fault();

 private:
  enum class Stage { kWaiting, kStreaming, kComplete, kLeft };
  bool IsGone();
  void Finish(std::unique_lock<std::mutex>& lock);
  void Fault(const char* text);

  std::mutex mutex_;
  std::condition_variable changed_;
  Stage stage_ = Stage::kWaiting;
  bool answered_ = false;  // although nobody is there
  http::Response response_;
  std::string fault_;
  std::function<void()> callback_;
};

}  // namespace syncline::orders
