// For tests: an authority of its own and a certificate by it for 127.0.0.1 and ::1, in files.
#pragma once

#include <string>

#include "base/temp_dir.h"
#include "http/server.h"

namespace syncline::http {

// Aborts if OpenSSL fails. Immutable.
class TestIdentity {
 public:
  explicit TestIdentity(const std::string& key_password = "");
  static const TestIdentity& Shared();  // one for all tests of the process

  std::string authority_file() const { return directory_ / "authority.pem"; }
  std::string certificate_file() const { return directory_ / "server.pem"; }
  std::string key_file() const { return directory_ / "server.key"; }
  TlsOptions server() const {
    return {.certificate_file = certificate_file(),
            .key_file = key_file(),
            .key_password = key_password_};
  }

 private:
  const base::TempDir directory_;
  const std::string key_password_;
};

}  // namespace syncline::http
