// syncline-engine: serves a model over HTTP, as one process or as one of several ranks.
//
// Idle OpenMP threads must not spin beside the server's threads. That is read from the environment
// when the library is loaded, so the program starts itself again with it set.
#include <fmt/core.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "base/error.h"
#include "ranks/launch.h"
#include "serve/follow_rank.h"
#include "serve/options.h"
#include "serve/placement.h"
#include "serve/secrets.h"
#include "serve/serve_model.h"

namespace syncline::serve {
namespace {

std::string Environment(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? "" : value;
}

// Starts this program again, with the environment that OpenMP reads when it is loaded.
void SetOpenMpEnvironment(char** argv) {
  if (getenv("OMP_WAIT_POLICY") != nullptr) return;
  setenv("OMP_WAIT_POLICY", "passive", 1);
  execv("/proc/self/exe", argv);  // if that fails, go on without
}

int Fail(const base::Error& error) {
  fmt::print(stderr, "syncline-engine: {}\n", error.message);
  return Info(error.code).exit_code;
}

int Run(char** argv, const std::vector<std::string>& arguments) {
  if (const base::Status parent = ranks::ExitWithParent(); !parent) return Fail(parent.error());
  auto line = ParseCommandLine(arguments, SYNCLINE_VERSION);
  if (!line) return Fail(line.error());
  if (line->text) {
    fmt::print("{}", *line->text);
    return 0;
  }
  SetOpenMpEnvironment(argv);
  Options& options = line->options;
  setenv("SYNCLINE_LOG", options.log_level.c_str(), 1);
  auto placement = PlaceOf(options, Environment);
  if (!placement) return Fail(placement.error());
  const bool serves = placement->group.rank == 0;
  base::Status keys;
  if (serves) keys = ReadKeys(base::FileSystem::Posix(), Environment, options);
  HideSecrets(argv);
  if (!keys) return Fail(keys.error());
  const RankSetting setting =
      MakeSetting(options, *std::move(placement), WithoutSecrets(arguments));
  if (serves) return ServeModel(options, setting);
  return FollowRank(options, setting);
}

}  // namespace
}  // namespace syncline::serve

int main(int argc, char** argv) {
  try {
    return syncline::serve::Run(argv, std::vector<std::string>(argv + 1, argv + argc));
  } catch (const std::exception& error) {  // memory ran out, say
    fmt::print(stderr, "syncline-engine: {}\n", error.what());
    return Info(syncline::base::Code::kInternal).exit_code;
  }
}
