// For tests: an authority of its own and a certificate by it for 127.0.0.1.
#pragma once

#include <string>

struct ssl_ctx_st;

namespace syncline::objects {

// Aborts if OpenSSL fails. Immutable.
class TestCertificate {
 public:
  explicit TestCertificate(const char* authority = "Test authority");
  ~TestCertificate();
  TestCertificate(const TestCertificate&) = delete;
  TestCertificate& operator=(const TestCertificate&) = delete;

  const std::string& authority_pem() const { return authority_pem_; }
  ssl_ctx_st* context() const { return context_; }  // of a server

 private:
  std::string authority_pem_;
  ssl_ctx_st* context_ = nullptr;
};

}  // namespace syncline::objects
