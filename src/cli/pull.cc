// syncline pull: brings a replica to a version of a store.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <memory>

#include "base/bytes.h"
#include "cli/command.h"
#include "replica/replica.h"

namespace syncline::cli {
namespace {

using base::Json;
using base::Result;

struct Options {
  std::string store;
  std::string into;
  std::string version = "latest";
  std::string seed;
};

Output Describe(const replica::PullReport& report) {
  const std::string seeded =
      report.seeded_from ? fmt::format("full:{}", *report.seeded_from) : "seed";
  Output output;
  if (!report.seeded && report.applied.empty()) {
    output.text = fmt::format("version {}: already there\n", report.version);
  } else {
    output.text = fmt::format("version {}:", report.version);
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
                               .cancel = &session.cancel};
  if (options.version != "latest") {
    std::uint64_t version = 0;
    const char* end = options.version.data() + options.version.size();
    const auto parsed = std::from_chars(options.version.data(), end, version);
    if (parsed.ec != std::errc() || parsed.ptr != end) {
      return base::Fail(
          base::Code::kInvalidArgument,
          fmt::format("--version {}: expected a number or \"latest\"", options.version));
    }
    pull.version = version;
  }
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
  command.add_option("--from", options->store, "Store directory")->required();
  command.add_option("--into", options->into, "Checkpoint directory of this host; made if missing")
      ->required();
  command.add_option("--version", options->version,
                     "Number of the version, or \"latest\" (default)");
  command.add_option("--seed", options->seed,
                     "Checkpoint that is version 0, where the store does not hold it");
  command.callback([&session, options] {
    session.action = [&session, options] { return Pull(session, *options); };
  });
}

}  // namespace syncline::cli
