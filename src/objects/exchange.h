// One HTTP request to one place, without redirects, and its reply.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "objects/transfer.h"

struct curl_slist;  // NOLINT(readability-identifier-naming): the library's

namespace syncline::objects {

// What libcurl needs for one transfer at a time, with the connections that it keeps open.
class CurlHandle {
 public:
  CurlHandle();
  ~CurlHandle();
  CurlHandle(const CurlHandle&) = delete;
  CurlHandle& operator=(const CurlHandle&) = delete;

  bool ok() const { return easy_ != nullptr && multi_ != nullptr; }
  void* easy() const { return easy_; }
  void* multi() const { return multi_; }

 private:
  void* easy_;
  void* multi_;
};

// For one request. What it is given must outlive it.
class Exchange {
 public:
  // url: where to; another one than the request's after a redirect. receiver, cancel: may be null.
  Exchange(const Settings& settings, const Request& request, const Url& url, Receiver* receiver,
           const base::CancelToken* cancel);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // To be called once. authenticate: send the user info of the request's URL.
  Tried<Reply> Run(CurlHandle& handle, bool authenticate);
  // Where the reply says to go instead; empty: nowhere.
  const std::string& redirect() const { return redirect_; }

 private:
  void SetUp(void* easy, bool authenticate);
  void SetUpBody(void* easy);
  Tried<int> Drive(CurlHandle& handle);  // what curl says in the end, a CURLcode
  static std::size_t OnHeader(char* data, std::size_t one, std::size_t size, void* self);
  static std::size_t OnBody(char* data, std::size_t one, std::size_t size, void* self);
  static std::size_t OnRead(char* into, std::size_t one, std::size_t count, void* self);
  static int OnSeek(void* self, std::int64_t offset, int origin);
  bool EndOfHead();
  // Keeps the failure and says no to curl.
  bool Stop(Failure failure);

  const Settings& settings_;
  const Request& request_;
  const Url& url_;
  std::string what_;
  Receiver* receiver_;
  const base::CancelToken* cancel_;
  curl_slist* headers_ = nullptr;
  std::array<char, 256> detail_ = {};
  Reply reply_;
  bool head_done_ = false;
  bool enough_ = false;
  std::uint64_t sent_ = 0;
  std::uint64_t moved_ = 0;  // bytes of either direction, as callbacks see them
  std::optional<Failure> failure_;
  std::string redirect_;
};

}  // namespace syncline::objects
