#include "objects/moto_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "base/result_matchers.h"
#include "objects/s3_bucket.h"

namespace syncline::objects {

using base::Code;
using base::Fail;

base::Result<std::unique_ptr<MotoServer>> MotoServer::Start() {
  std::unique_ptr<MotoServer> server(new MotoServer);
  const char* named = getenv("SYNCLINE_MOTO_SERVER");
  const std::string program = named != nullptr ? named : SYNCLINE_MOTO_PROGRAM;
  if (access(program.c_str(), X_OK) != 0) {
    return Fail(Code::kNotFound, program + " is missing: tools/setup installs it");
  }
  const std::string log = server->directory_ / "log";
  const int output = open(log.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  setenv("HOME", server->directory_.path().c_str(), 1);
  setenv("AWS_ACCESS_KEY_ID", "AKIATESTTESTTESTTEST", 1);
  setenv("AWS_SECRET_ACCESS_KEY", "test/secret+key", 1);
  setenv("MOTO_S3_DEFAULT_MAX_KEYS", "3", 1);
  for (const char* other :
       {"AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION",
        "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_CONFIG_FILE",
        "AWS_SHARED_CREDENTIALS_FILE", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"}) {
    unsetenv(other);
  }
  const char* arguments[] = {program.c_str(), "-H", "127.0.0.1", "-p", "0", nullptr};
  const pid_t parent = getpid();
  server->pid_ = fork();
  if (server->pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || output < 0) _exit(126);
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    execv(program.c_str(), const_cast<char* const*>(arguments));
    _exit(127);
  }
  close(output);
  if (server->pid_ < 0) return base::FailErrno(errno, "cannot fork");
  SYNCLINE_TRY(server->AwaitUrl(log));
  return server;
}

base::Status MotoServer::AwaitUrl(const std::string& log) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  while (true) {
    const std::string text = base::ReadText(base::FileSystem::Posix(), log, 1 << 20).value_or("");
    const std::size_t begin = text.find("http://127.0.0.1:");
    const std::size_t line = begin == std::string::npos ? begin : text.find('\n', begin);
    if (line != std::string::npos) {
      url_ = text.substr(begin, text.find_first_not_of("0123456789", begin + 17) - begin);
      return {};
    }
    if (waitpid(pid_, nullptr, WNOHANG) == pid_) {
      pid_ = 0;
      return Fail(Code::kUnavailable, "moto_server ended: " + text);
    }
    if (std::chrono::steady_clock::now() > end) {
      return Fail(Code::kTimeout, "moto_server does not say where it listens: " + text);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

MotoServer* MotoServer::Shared() {
  static base::Result<std::unique_ptr<MotoServer>> server = Start();
  EXPECT_OK(server);
  return server ? server->get() : nullptr;
}

MotoServer::~MotoServer() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

Settings MotoServer::settings() const {
  return {.connect_seconds = 30, .stall_seconds = 60, .retry_seconds = 30, .endpoint = url_};
}

std::string MotoServer::MakeBucket() {
  std::string name = fmt::format("bucket-{}", buckets_++);
  auto config = LoadS3Config(base::FileSystem::Posix(), ProcessEnvironment(), settings());
  EXPECT_OK(config);
  if (!config) return name;
  const auto bucket = S3Bucket::Make("s3://" + name, settings(), *std::move(config));
  EXPECT_OK(bucket);
  if (!bucket) return name;
  Client client(settings());
  const auto reply =
      client.Send(bucket->MakeRequest("PUT", "", {}, {}, Sha256Hex("")), nullptr, nullptr);
  EXPECT_TRUE(reply && reply->head.status == 200);
  return name;
}

}  // namespace syncline::objects
