// syncline undo: takes back the last pull into a replica.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/command.h"
#include "replica/replica.h"

namespace syncline::cli {
namespace {

using base::Json;
using base::Result;

Result<Output> Undo(const Session& session, const std::string& replica) {
  SYNCLINE_ASSIGN(const replica::UndoReport report, replica::Undo(session.files, replica,
                                                                  {.threads = session.threads,
                                                                   .progress = &session.progress,
                                                                   .cancel = &session.cancel}));
  Output output;
  output.text = fmt::format("version {}: back from {}, {:.3f} s\n", report.version,
                            report.from_version, report.seconds);
  output.json = Json(Json::Object{{"version", report.version},
                                  {"from_version", report.from_version},
                                  {"seconds", report.seconds}});
  return output;
}

}  // namespace

void AddUndo(CLI::App& app, Session& session) {
  CLI::App& command =
      AddCommand(app, session, "undo", "Return a replica to the version before its last pull",
                 "syncline undo /local/model");
  const auto replica = std::make_shared<std::string>();
  command.add_option("replica", *replica, "Checkpoint directory that was pulled into")->required();
  command.callback([&session, replica] {
    session.action = [&session, replica] { return Undo(session, *replica); };
  });
}

}  // namespace syncline::cli
