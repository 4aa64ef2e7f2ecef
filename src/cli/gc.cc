// syncline gc: removes the versions of a store that no kept one needs.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "base/bytes.h"
#include "cli/command.h"
#include "cli/store_options.h"
#include "store/retention.h"

namespace syncline::cli {
namespace {

using base::Json;
using base::Result;

struct Options {
  std::string store;
  store::GcOptions gc;
  objects::Settings connection;
};

Json Numbers(const std::vector<std::uint64_t>& versions) {
  return Json(Json::Array(versions.begin(), versions.end()));
}

// "3 versions (4, 5, 7)"
std::string Several(const std::vector<std::uint64_t>& versions) {
  if (versions.empty()) return "no version";
  return fmt::format("{} version{} ({})", versions.size(), versions.size() == 1 ? "" : "s",
                     fmt::join(versions, ", "));
}

Result<Output> Gc(const Session& session, const Options& options) {
  SYNCLINE_ASSIGN(const auto store,
                  objects::Open(session.files, options.store, options.connection));
  store::GcOptions gc = options.gc;
  gc.files = &session.files;
  gc.cancel = &session.cancel;
  SYNCLINE_ASSIGN(const store::GcReport report, store::Collect(*store, gc));
  Output output;
  output.text = fmt::format("{}removed {}, {}; kept {}\n", gc.dry_run ? "would have " : "",
                            Several(report.removed), base::HumanBytes(report.bytes_removed),
                            Several(report.kept));
  if (!report.folds_removed.empty()) {
    output.text += fmt::format("{} folds: {}\n", gc.dry_run ? "would have removed" : "removed",
                               fmt::join(report.folds_removed, ", "));
  }
  if (!report.waiting.empty()) {
    output.text += fmt::format("in their time of grace: {}\n", Several(report.waiting));
  }
  if (!report.leased.empty()) {
    output.text += fmt::format("held by readers: {}\n", Several(report.leased));
  }
  output.json = Json(Json::Object{
      {"kept", Numbers(report.kept)},
      {"removed", Numbers(report.removed)},
      {"waiting", Numbers(report.waiting)},
      {"leased", Numbers(report.leased)},
      {"folds_removed", Json::Array(report.folds_removed.begin(), report.folds_removed.end())},
      {"bytes_removed", report.bytes_removed},
      {"dry_run", gc.dry_run}});
  return output;
}

}  // namespace

void AddGc(CLI::App& app, Session& session) {
  CLI::App& command = AddCommand(app, session, "gc", "Remove the versions that no kept one needs",
                                 "syncline gc /shared/weights --keep 20 --keep-full-every 100");
  const auto options = std::make_shared<Options>();
  command.add_option("store", options->store, "Store: a directory or s3://…")->required();
  command.add_option("--keep", options->gc.keep, "Newest versions to keep, and what they build on")
      ->required()
      ->check(CLI::PositiveNumber);
  command
      .add_option("--keep-full-every", options->gc.keep_full_every,
                  "Keep also the full versions (or full copies) whose number this divides")
      ->check(CLI::PositiveNumber);
  command
      .add_option("--grace", options->gc.grace_seconds,
                  "Seconds between the first gc that finds a version useless and its removal "
                  "(default: 600; 0 removes at once)")
      ->check(CLI::NonNegativeNumber);
  command.add_flag("--dry-run", options->gc.dry_run, "Say what would be done, change nothing");
  AddConnectionOptions(command, options->connection);
  command.callback([&session, options] {
    session.action = [&session, options] { return Gc(session, *options); };
  });
}

}  // namespace syncline::cli
