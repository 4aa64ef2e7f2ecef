// What the subcommands share: each adds itself to the command line and leaves an action, which main
// runs.
#pragma once

#include <functional>
#include <string>

#include "base/cancel.h"
#include "base/file.h"
#include "base/json.h"
#include "base/progress.h"

namespace CLI {  // NOLINT(readability-identifier-naming): the library's
class App;
}

namespace syncline::cli {

// What a command has to say: for people, or with --json one object for programs.
struct Output {
  std::string text;
  base::Json json;
};

struct Session {
  base::FileSystem& files;
  base::CancelToken& cancel;
  base::Progress& progress;
  std::size_t threads = 0;  // --threads; 0: one for each processor
  bool json = false;        // --json
  std::function<base::Result<Output>()> action;
};

void AddPublish(CLI::App& app, Session& session);
void AddPull(CLI::App& app, Session& session);
void AddVerify(CLI::App& app, Session& session);
void AddUndo(CLI::App& app, Session& session);
void AddKeygen(CLI::App& app, Session& session);
void AddLog(CLI::App& app, Session& session);
void AddShow(CLI::App& app, Session& session);
void AddDiff(CLI::App& app, Session& session);
void AddFold(CLI::App& app, Session& session);
void AddGc(CLI::App& app, Session& session);
void AddServe(CLI::App& app, Session& session);

// A subcommand with the options that all have. `example` is shown by --help.
CLI::App& AddCommand(CLI::App& app, Session& session, const std::string& name,
                     const std::string& description, const std::string& example);

// The JSON of a number that may be missing: itself or null.
template <typename T>
base::Json OrNull(const T& optional) {
  return optional ? base::Json(*optional) : base::Json();
}

}  // namespace syncline::cli
