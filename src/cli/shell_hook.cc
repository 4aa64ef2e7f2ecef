#include "cli/shell_hook.h"

#include <fmt/core.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string_view>
#include <vector>

namespace syncline::cli {

using base::Code;
using base::Fail;
using base::Status;

Status RunHook(const std::string& command, const std::string& store,
               std::optional<std::uint64_t> version) {
  const std::string number = version ? fmt::format("{}", *version) : "latest";
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (text.starts_with("SYNCLINE_VERSION=") || text.starts_with("SYNCLINE_STORE=")) continue;
    environment.emplace_back(text);
  }
  environment.push_back("SYNCLINE_VERSION=" + number);
  environment.push_back("SYNCLINE_STORE=" + store);
  std::vector<char*> pointers;
  pointers.reserve(environment.size() + 1);
  for (std::string& entry : environment) pointers.push_back(entry.data());
  pointers.push_back(nullptr);
  std::string shell = "/bin/sh";
  std::string flag = "-c";
  std::string text = command;
  std::array<char*, 4> arguments = {shell.data(), flag.data(), text.data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);  // ours is the report
  pid_t pid = 0;
  const int error =
      posix_spawn(&pid, shell.c_str(), &actions, nullptr, arguments.data(), pointers.data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return base::FailErrno(error, "cannot run " + shell);
  int ended = 0;
  while (waitpid(pid, &ended, 0) < 0) {
    if (errno != EINTR) return base::FailErrno(errno, "cannot wait for " + command);
  }
  if (WIFEXITED(ended) && WEXITSTATUS(ended) == 0) return {};
  return Fail(Code::kIo, WIFEXITED(ended)
                             ? fmt::format("{}: exit code {}", command, WEXITSTATUS(ended))
                             : fmt::format("{}: ended by signal {}", command, WTERMSIG(ended)));
}

}  // namespace syncline::cli
