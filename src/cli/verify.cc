// syncline verify: checks a store, a replica or a checkpoint.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <array>
#include <memory>
#include <optional>

#include "base/bytes.h"
#include "cli/command.h"
#include "replica/replica.h"

namespace syncline::cli {
namespace {

using base::Json;
using base::Result;

struct Options {
  std::string path;
  std::optional<std::uint64_t> version;
};

Result<Output> Verify(const Session& session, const Options& options) {
  SYNCLINE_ASSIGN(const replica::VerifyReport report,
                  replica::Verify(session.files, options.path,
                                  {.version = options.version,
                                   .threads = session.threads,
                                   .progress = &session.progress,
                                   .cancel = &session.cancel}));
  constexpr std::array<std::string_view, 3> kKinds = {"store", "replica", "checkpoint"};
  const std::string_view kind = kKinds.at(static_cast<std::size_t>(report.kind));
  Output output;
  output.text = fmt::format("{} is whole: ", kind);
  if (report.kind == replica::VerifyReport::Kind::kStore) {
    output.text += fmt::format("{} versions, ", report.versions.size());
  } else if (report.kind == replica::VerifyReport::Kind::kReplica) {
    output.text += fmt::format("version {}, ", report.versions.front());
  }
  output.text += fmt::format("{} tensors, {} of them compared with a known hash, {} in {:.3f} s\n",
                             report.tensors, report.tensors_hashed, base::HumanBytes(report.bytes),
                             report.seconds);
  output.json =
      Json(Json::Object{{"kind", kind},
                        {"ok", true},
                        {"versions", Json::Array(report.versions.begin(), report.versions.end())},
                        {"tensors", report.tensors},
                        {"tensors_hashed", report.tensors_hashed},
                        {"bytes", report.bytes},
                        {"seconds", report.seconds}});
  return output;
}

}  // namespace

void AddVerify(CLI::App& app, Session& session) {
  CLI::App& command = AddCommand(app, session, "verify", "Check a store, a replica or a checkpoint",
                                 "syncline verify /local/model");
  const auto options = std::make_shared<Options>();
  command.add_option("path", options->path, "Store, replica or checkpoint")->required();
  command.add_option("--version", options->version,
                     "Of a store: check only this version; of a replica: it must hold this one");
  command.callback([&session, options] {
    session.action = [&session, options] { return Verify(session, *options); };
  });
}

}  // namespace syncline::cli
