// syncline pull: brings a replica to a version of a store.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "base/bytes.h"
#include "cli/command.h"
#include "cli/store_options.h"
#include "replica/replica.h"

namespace syncline::cli {
namespace {

using base::Code;
using base::Fail;
using base::Json;
using base::Result;

struct Options {
  std::string store;
  std::string into;
  std::string version = "latest";
  std::string seed;
  std::string verify = "hash";
  StoreOptions reading;
};

Output Describe(const replica::PullReport& report) {
  const std::string seeded =
      report.seeded_from ? fmt::format("full:{}", *report.seeded_from) : "seed";
  Output output;
  const bool moved = report.seeded || !report.applied.empty() || !report.undone.empty();
  if (!moved && !report.recovered && report.tensors_repaired == 0) {
    output.text = fmt::format("version {}: already there\n", report.version);
  } else {
    output.text = fmt::format("version {}:", report.version);
    if (report.recovered) output.text += " completed what was interrupted,";
    if (report.tensors_repaired > 0) {
      output.text += fmt::format(" healed {} tensors,", report.tensors_repaired);
    }
    if (!report.undone.empty()) {
      output.text += fmt::format(" took back {},", fmt::join(report.undone, ", "));
    }
    if (report.seeded) output.text += fmt::format(" seeded from {},", seeded);
    if (!report.applied.empty()) {
      output.text +=
          fmt::format(" applied {} ({} tensors, {} elements),", fmt::join(report.applied, ", "),
                      report.tensors_changed, report.elements_changed);
    }
    output.text +=
        fmt::format(" read {}, {:.3f} s\n", base::HumanBytes(report.bytes_read), report.seconds);
  }
  output.json =
      Json(Json::Object{{"version", report.version},
                        {"from_version", OrNull(report.from_version)},
                        {"seeded_from", report.seeded ? Json(seeded) : Json()},
                        {"recovered", report.recovered},
                        {"tensors_repaired", report.tensors_repaired},
                        {"undone", Json::Array(report.undone.begin(), report.undone.end())},
                        {"applied", Json::Array(report.applied.begin(), report.applied.end())},
                        {"tensors_changed", report.tensors_changed},
                        {"elements_changed", report.elements_changed},
                        {"bytes_read", report.bytes_read},
                        {"seconds", report.seconds}});
  return output;
}

Result<Output> Pull(const Session& session, const Options& options) {
  replica::PullOptions pull = {.seed = options.seed,
                               .threads = session.threads,
                               .progress = &session.progress,
                               .cancel = &session.cancel,
                               .source = options.reading.Source(session, options.store)};
  const auto verify = replica::FindVerifyBy(options.verify);
  if (!verify) {
    return Fail(Code::kInvalidArgument,
                fmt::format("--verify: \"{}\": expected hash, chained or full", options.verify));
  }
  pull.verify = *verify;
  SYNCLINE_ASSIGN(pull.version, ParseVersion(options.version));
  SYNCLINE_ASSIGN(const replica::PullReport report,
                  replica::Pull(session.files, options.store, options.into, pull));
  return Describe(report);
}

}  // namespace

void AddPull(CLI::App& app, Session& session) {
  CLI::App& command =
      AddCommand(app, session, "pull", "Bring this host's checkpoint to a version of a store",
                 "syncline pull --from /shared/weights --into /local/model --seed /models/base");
  const auto options = std::make_shared<Options>();
  command.add_option("--from", options->store, "Store: a directory, http(s)://… or s3://…")
      ->required();
  command.add_option("--into", options->into, "Checkpoint directory of this host; made if missing")
      ->required();
  command.add_option("--version", options->version,
                     "Number of the version, or \"latest\" (default)");
  command.add_option("--seed", options->seed,
                     "Checkpoint that is version 0, where the store does not hold it");
  command.add_option(
      "--verify", options->verify,
      "How each tensor that a delta changes is checked: by the \"hash\" of all of it "
      "(default), or by its digest: \"full\", or \"chained\", which adds up the "
      "changes alone");
  AddReadingOptions(command, options->reading);
  command.callback([&session, options] {
    session.action = [&session, options] { return Pull(session, *options); };
  });
}

}  // namespace syncline::cli
