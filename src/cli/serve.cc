// syncline serve: becomes syncline-engine, a program of its own, so that this one needs no libtorch.
#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cerrno>
#include <memory>
#include <optional>
#include <vector>

#include "cli/command.h"

namespace syncline::cli {
namespace {

using base::Code;
using base::Fail;
using base::Result;

constexpr const char* kProgram = "syncline-engine";

bool CanRun(const std::string& path) { return access(path.c_str(), X_OK) == 0; }

std::string ProgramDirectory() {
  std::array<char, 4096> path = {};
  const ssize_t size = readlink("/proc/self/exe", path.data(), path.size());
  const std::string program(path.data(), size < 0 ? 0 : static_cast<std::size_t>(size));
  return program.substr(0, program.rfind('/'));
}

// In SYNCLINE_ENGINE, beside this program, or in PATH.
Result<std::string> FindEngine() {
  if (const char* given = getenv("SYNCLINE_ENGINE"); given != nullptr && *given != '\0') {
    if (CanRun(given)) return given;
    return Fail(Code::kNotFound,
                fmt::format("SYNCLINE_ENGINE={}: expected a program that can be run", given));
  }
  if (std::string beside = base::JoinPath(ProgramDirectory(), kProgram); CanRun(beside)) {
    return beside;
  }
  const char* path = getenv("PATH");
  std::string_view rest = path == nullptr ? "" : path;
  while (!rest.empty()) {
    const std::size_t colon = rest.find(':');
    std::string candidate = base::JoinPath(rest.substr(0, colon), kProgram);
    if (CanRun(candidate)) return candidate;
    rest = colon == std::string_view::npos ? "" : rest.substr(colon + 1);
  }
  return Fail(Code::kNotFound,
              fmt::format("{} was not found beside this program or in PATH: build it with `make "
                          "build` (it needs the torch wheel, see tools/setup), or name it in "
                          "SYNCLINE_ENGINE",
                          kProgram));
}

// Returns only if it fails.
Result<Output> Serve(const std::vector<std::string>& arguments) {
  SYNCLINE_ASSIGN(std::string program, FindEngine());
  std::vector<std::string> texts = {program};
  texts.insert(texts.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  argv.reserve(texts.size() + 1);
  for (std::string& text : texts) argv.push_back(text.data());
  argv.push_back(nullptr);
  setenv("OMP_WAIT_POLICY", "passive", /*overwrite=*/0);
  execv(program.c_str(), argv.data());
  return base::FailErrno(errno, program);
}

}  // namespace

void AddServe(CLI::App& app, Session& session) {
  CLI::App& command =
      *app.add_subcommand("serve", "Serve a model over HTTP and update its weights while it runs");
  command.set_help_flag();  // the program's own help says more
  command.prefix_command();
  command.callback(
      [&session, &command] { session.action = [&command] { return Serve(command.remaining()); }; });
}

}  // namespace syncline::cli
