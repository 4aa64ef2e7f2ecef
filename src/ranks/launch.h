// The other ranks of this node as child processes: started, watched, and ended with us.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"

namespace syncline::ranks {

struct RankProgram {
  std::uint32_t rank = 0;
  std::string path;                      // looked up in PATH if it has no slash
  std::vector<std::string> arguments;    // without the program itself
  std::vector<std::string> environment;  // all of it, "NAME=value"
};

struct RankExit {
  std::uint32_t rank = 0;
  std::int64_t pid = 0;
  bool ok = false;   // exit status 0
  std::string text;  // "rank 1 (pid 12) was killed by signal 9", "… ended with exit status 1"
};

// "SYNCLINE_PARENT_PID": added to a child's environment; ExitWithParent reads and removes it.
extern const char* const kParentVariable;

// Thread-safe. Children have a process group of their own (Ctrl-C reaches only us), no standard
// input, our standard output and error, default signal handling and no other descriptor of ours.
// The process must not ignore SIGCHLD nor wait for children that are not its own.
class Launcher {
 public:
  // On the launcher's thread, without a lock; must not call Stop().
  using OnExit = std::function<void(const RankExit&)>;

  // Starts all or none. `on_exit` hears of each child that ends before Stop(), however it ends.
  static base::Result<std::unique_ptr<Launcher>> Start(std::vector<RankProgram> programs,
                                                       OnExit on_exit);

  // As Stop(0).
  virtual ~Launcher() = default;

  // In the order of the programs.
  virtual std::vector<std::int64_t> pids() const = 0;

  // SIGTERM, and SIGKILL for the process groups that are left after `grace`. Returns when all
  // children are gone and reaped. May be called again.
  virtual void Stop(std::chrono::milliseconds grace) = 0;
};

// For the child, first thing in main, before there are threads: the kernel kills this process
// (SIGKILL) when the launcher ends or its process dies. kUnavailable if it is gone already. Does
// nothing in a process that no Launcher started.
//
// The kernel's signal goes with the *thread* that started the child, not with its process: so the
// Launcher starts children from a thread that lives as long as itself.
base::Status ExitWithParent();

}  // namespace syncline::ranks
