// Real processes that are killed by a real signal: children that die at a chosen operation, and the
// command `syncline` at any moment.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <functional>

#include "checkpoint/writer.h"
#include "replica/resume.h"
#include "store/version.h"
#include "torture/cases.h"

extern char** environ;

namespace syncline::torture {
namespace {

using base::FileSystem;
using base::Result;
using base::Status;

int WaitFor(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

// A child that runs `run` with files that kill it at operation `at`; it exits with 0 if the run
// went well before that, else with the exit code of its error. This process must have one thread.
pid_t StartMortal(std::uint64_t at, const std::function<Status(FileSystem&)>& run) {
  const pid_t child = fork();
  if (child != 0) return child;
  base::FaultyFileSystem files(FileSystem::Posix());
  files.SetRule([&, seen = std::uint64_t{0}](std::string_view, const std::string&) mutable {
    if (seen++ == at) raise(SIGKILL);
    return Status();
  });
  const Status status = run(files);
  _exit(status ? 0 : base::Info(status.error().code).exit_code);
}

Status CheckEnd(World& world, int status) {
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
    world.Say("killed");
    return {};
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    world.Say("came to its end");
    return {};
  }
  return Wrong(fmt::format("a process ended with status {:#x}", status));
}

// Mends by a plain pull, in this process or by the command.
Status CheckRecovery(World& world, std::optional<std::uint64_t> held, bool needs_none) {
  SYNCLINE_TRY(world.ExpectHonest());
  const auto report = world.Pull(world.machine(), std::nullopt);
  if (!report) return Wrong("the pull after it: " + Told(report));
  if (needs_none && report->seeded && !world.NeedsSeed(held, world.newest())) {
    return Wrong("seeded again");
  }
  return world.ExpectAt(world.newest());
}

std::function<Status(FileSystem&)> PullRun(World& world, std::size_t threads) {
  return [&world, threads](FileSystem& files) -> Status {
    SYNCLINE_TRY(world.Pull(files, std::nullopt, nullptr, threads));
    return {};
  };
}

Status PlayPull(const Settings& settings, Dice& dice) {
  World world(settings, dice, {.large = dice.Percent(2), .versions = dice.Between(1, 4)});
  std::optional<std::uint64_t> held;
  if (dice.Percent(80)) held = 0;
  SYNCLINE_TRY(world.Start(held));
  const std::uint64_t children = dice.Between(1, 3);
  for (std::uint64_t i = 0; i < children; ++i) {
    const pid_t child = StartMortal(dice.Below(150), PullRun(world, dice.Between(1, 3)));
    SYNCLINE_TRY(CheckEnd(world, WaitFor(child)));
    SYNCLINE_TRY(world.ExpectHonest());
  }
  return CheckRecovery(world, held, true);
}

// Several at once: they wait for each other's lock, and whoever comes after a dead one recovers.
Status PlayPullers(const Settings& settings, Dice& dice) {
  World world(settings, dice, {.versions = dice.Between(1, 4)});
  SYNCLINE_TRY(world.Start(0));
  std::vector<pid_t> children;
  for (int i = 0; i < 3; ++i) {
    children.push_back(StartMortal(dice.Below(200), PullRun(world, 1)));
  }
  for (const pid_t child : children) SYNCLINE_TRY(CheckEnd(world, WaitFor(child)));
  return CheckRecovery(world, 0, true);
}

Status PlayPublish(const Settings& settings, Dice& dice) {
  World world(settings, dice, {.versions = 1});
  SYNCLINE_TRY(world.Start(0));
  world.PlanNext();
  const pid_t child = StartMortal(dice.Below(40), [&](FileSystem& files) -> Status {
    SYNCLINE_ASSIGN(auto publisher, world.OpenPublisher(files, world.store()));
    return world.Publish(publisher);
  });
  SYNCLINE_TRY(CheckEnd(world, WaitFor(child)));
  {
    SYNCLINE_ASSIGN(auto publisher,
                    replica::ResumePublisher(world.machine(), world.store(),
                                             {.base = world.seed(), .publisher = {.threads = 1}}));
    if (publisher.last_version() != world.newest()) SYNCLINE_TRY(world.Publish(publisher));
  }
  return CheckRecovery(world, 0, false);
}

// ---- The command. ----

// Its output goes nowhere.
Result<pid_t> Spawn(const std::vector<std::string>& arguments) {
  std::vector<char*> raw;
  for (const std::string& argument : arguments) raw.push_back(const_cast<char*>(argument.c_str()));
  raw.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    posix_spawn_file_actions_addopen(&actions, fd, "/dev/null", O_WRONLY, 0);
  }
  pid_t child = 0;
  const int error = posix_spawn(&child, raw[0], &actions, nullptr, raw.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return base::FailErrno(error, "cannot start " + arguments[0]);
  return child;
}

// Starts it, and kills it after so many microseconds.
Status RunAndKill(World& world, const std::vector<std::string>& arguments, std::uint64_t after_us) {
  SYNCLINE_ASSIGN(const pid_t child, Spawn(arguments));
  usleep(static_cast<useconds_t>(after_us));
  kill(child, SIGKILL);
  world.Say(fmt::format("the command, killed after {} µs", after_us));
  return CheckEnd(world, WaitFor(child));
}

Status RunToTheEnd(const std::vector<std::string>& arguments) {
  SYNCLINE_ASSIGN(const pid_t child, Spawn(arguments));
  const int status = WaitFor(child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  return Wrong(fmt::format("{} {} ended with status {:#x}", arguments[0], arguments[1], status));
}

std::vector<std::string> PullCommand(const World& world) {
  std::vector<std::string> command = {world.settings().binary, "pull",   "--from",
                                      world.store(),           "--into", world.replica()};
  if (!world.seed().empty()) command.insert(command.end(), {"--seed", world.seed()});
  return command;
}

Status PlayCommandPull(const Settings& settings, Dice& dice) {
  World world(settings, dice, {.large = dice.Percent(10), .versions = dice.Between(1, 4)});
  SYNCLINE_TRY(world.Start(0));
  const std::uint64_t times = dice.Between(1, 3);
  for (std::uint64_t i = 0; i < times; ++i) {
    SYNCLINE_TRY(RunAndKill(world, PullCommand(world), dice.Below(12'000)));
    SYNCLINE_TRY(world.ExpectHonest());
  }
  if (dice.Percent(30)) SYNCLINE_TRY(RunToTheEnd(PullCommand(world)));
  return CheckRecovery(world, 0, true);
}

Status PlayCommandPublish(const Settings& settings, Dice& dice) {
  World world(settings, dice, {.versions = 1});
  SYNCLINE_TRY(world.Start(0));
  world.PlanNext();
  const std::string step = world.root() + "/step";
  base::ThreadPool pool(1);
  base::Progress progress;
  SYNCLINE_TRY(FileSystem::Posix().MakeDirectories(step));
  SYNCLINE_TRY(checkpoint::WriteCheckpoint(FileSystem::Posix(), step,
                                           world.model().Views(world.weights(world.newest())),
                                           {.durable = false}, pool, progress, nullptr));
  std::vector<std::string> command = {settings.binary, "publish", step, "--to", world.store()};
  if (!world.seed().empty()) command.insert(command.end(), {"--base", world.seed()});
  SYNCLINE_TRY(RunAndKill(world, command, dice.Below(15'000)));
  const bool stands = FileSystem::Posix().Stat(world.VersionPath(world.newest())).has_value();
  if (!stands) SYNCLINE_TRY(RunToTheEnd(command));
  return CheckRecovery(world, 0, false);
}

}  // namespace

std::vector<CaseKind> ProcessCases() {
  return {{"process-pull", 4, PlayPull},
          {"process-pullers", 2, PlayPullers},
          {"process-publish", 2, PlayPublish},
          {"command-pull", 2, PlayCommandPull},
          {"command-publish", 1, PlayCommandPublish}};
}

}  // namespace syncline::torture
