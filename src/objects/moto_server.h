// For tests: a real S3 server (moto) as a child process.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "base/temp_dir.h"
#include "objects/object_store.h"

namespace syncline::objects {

class MotoServer {
 public:
  // Starts `.venv/bin/moto_server` of the project, or what SYNCLINE_MOTO_SERVER names, and waits
  // until it listens. It lists 3 keys a page. kNotFound, kTimeout or kUnavailable, with what the
  // program printed, if it does not come up. Also sets AWS_ACCESS_KEY_ID and what else makes this
  // process a client with credentials, away from the user's own files.
  static base::Result<std::unique_ptr<MotoServer>> Start();
  // The one of this process, started at the first call; the test fails and gets null without it.
  static MotoServer* Shared();
  ~MotoServer();
  MotoServer(const MotoServer&) = delete;
  MotoServer& operator=(const MotoServer&) = delete;

  const std::string& url() const { return url_; }
  // A bucket that is not there yet, made; its name.
  std::string MakeBucket();
  // For a store in a bucket of this server.
  Settings settings() const;

 private:
  MotoServer() = default;
  base::Status AwaitUrl(const std::string& log);

  base::TempDir directory_;
  pid_t pid_ = 0;
  std::string url_;
  int buckets_ = 0;
};

}  // namespace syncline::objects
