// syncline verify: checks a store, a replica or a checkpoint.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <array>
#include <memory>
#include <optional>

#include "base/bytes.h"
#include "cli/command.h"
#include "cli/store_options.h"
#include "replica/replica.h"

namespace syncline::cli {
namespace {

using base::Json;
using base::Result;

struct Options {
  std::string path;
  std::optional<std::uint64_t> version;
  bool repair = false;
  std::string store;
  std::string seed;
  StoreOptions reading;
};

Result<Output> Verify(const Session& session, const Options& options) {
  SYNCLINE_ASSIGN(const replica::VerifyReport report,
                  replica::Verify(session.files, options.path,
                                  {.version = options.version,
                                   .repair = options.repair,
                                   .store = options.store,
                                   .seed = options.seed,
                                   .threads = session.threads,
                                   .progress = &session.progress,
                                   .cancel = &session.cancel,
                                   .source = options.reading.Source(session, options.store)}));
  constexpr std::array<std::string_view, 3> kKinds = {"store", "replica", "checkpoint"};
  const std::string_view kind = kKinds.at(static_cast<std::size_t>(report.kind));
  Output output;
  if (report.tensors_repaired > 0) {
    output.text = fmt::format("healed {} tensors\n", report.tensors_repaired);
  }
  output.text += fmt::format("{} is whole: ", kind);
  if (report.kind == replica::VerifyReport::Kind::kStore) {
    output.text += fmt::format("{} versions, ", report.versions.size());
    if (report.folds > 0) output.text += fmt::format("{} folds, ", report.folds);
  } else if (report.kind == replica::VerifyReport::Kind::kReplica) {
    output.text += fmt::format("version {}, ", report.versions.front());
  }
  output.text += fmt::format("{} tensors, {} of them compared with a known hash, {} in {:.3f} s\n",
                             report.tensors, report.tensors_hashed, base::HumanBytes(report.bytes),
                             report.seconds);
  for (const std::string& name : report.edited) {
    output.text += fmt::format("{} is not as it came (edited?); --repair brings it back\n", name);
  }
  output.json =
      Json(Json::Object{{"kind", kind},
                        {"ok", true},
                        {"versions", Json::Array(report.versions.begin(), report.versions.end())},
                        {"folds", report.folds},
                        {"tensors", report.tensors},
                        {"tensors_hashed", report.tensors_hashed},
                        {"tensors_repaired", report.tensors_repaired},
                        {"edited", Json::Array(report.edited.begin(), report.edited.end())},
                        {"bytes", report.bytes},
                        {"seconds", report.seconds}});
  return output;
}

}  // namespace

void AddVerify(CLI::App& app, Session& session) {
  CLI::App& command = AddCommand(app, session, "verify",
                                 "Check a store, a replica or a checkpoint; repair a replica",
                                 "syncline verify /local/model");
  const auto options = std::make_shared<Options>();
  command.add_option("path", options->path, "Store, replica or checkpoint")->required();
  command.add_option("--version", options->version,
                     "Of a store: check only this version; of a replica: it must hold this one");
  command.add_flag("--repair", options->repair,
                   "Heal what is damaged in a replica: only that is read and written");
  command.add_option("--from", options->store,
                     "With --repair: the store (default: the one it was pulled from)");
  command.add_option("--seed", options->seed,
                     "With --repair: checkpoint that is version 0 (default: as it was pulled)");
  AddReadingOptions(command, options->reading);
  command.callback([&session, options] {
    session.action = [&session, options] { return Verify(session, *options); };
  });
}

}  // namespace syncline::cli
