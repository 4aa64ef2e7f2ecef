#include "base/spawn.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <spawn.h>
#include <unistd.h>

namespace syncline::base {
namespace {

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// What posix_spawn is to do in the child. Methods return an errno value, 0 for success.
class SpawnPlan {
 public:
  SpawnPlan() {
    posix_spawn_file_actions_init(&actions_);
    posix_spawnattr_init(&attributes_);
    sigset_t none;
    sigset_t all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setsigdefault(&attributes_, &all);
    posix_spawnattr_setpgroup(&attributes_, 0);
    posix_spawnattr_setflags(
        &attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  }
  ~SpawnPlan() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }
  SpawnPlan(const SpawnPlan&) = delete;
  SpawnPlan& operator=(const SpawnPlan&) = delete;

  int Descriptors(int input, int output) {
    int fault = input >= 0 ? posix_spawn_file_actions_adddup2(&actions_, input, STDIN_FILENO)
                           : posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null",
                                                              O_RDONLY, 0);
    if (fault == 0 && output >= 0) {
      fault = posix_spawn_file_actions_adddup2(&actions_, output, STDOUT_FILENO);
    }
    if (fault != 0) return fault;
    return posix_spawn_file_actions_addclosefrom_np(&actions_, STDERR_FILENO + 1);
  }

  int Run(int& pid, char* const* arguments, char* const* environment) {
    return posix_spawnp(&pid, arguments[0], &actions_, &attributes_, arguments, environment);
  }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

}  // namespace

Result<int> Spawn(const SpawnOptions& options) {
  if (options.command.empty()) return Fail(Code::kInvalidArgument, "there is no program to start");
  std::vector<std::string> command = options.command;
  std::vector<std::string> variables = options.environment.value_or(std::vector<std::string>());
  SpawnPlan plan;
  int pid = 0;
  int fault = plan.Descriptors(options.standard_input, options.standard_output);
  if (fault == 0) {
    fault = plan.Run(pid, Pointers(command).data(),
                     options.environment ? Pointers(variables).data() : environ);
  }
  if (fault != 0) return FailErrno(fault, fmt::format("cannot start {}", command.front()));
  return pid;
}

}  // namespace syncline::base
