// syncline log: the versions of a store.
#include <fmt/chrono.h>
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "base/bytes.h"
#include "cli/command.h"
#include "cli/store_options.h"
#include "store/history.h"

namespace syncline::cli {
namespace {

using base::Json;
using base::Result;
using store::VersionSummary;

std::string When(const VersionSummary& version) {
  if (!version.created_ns) return "-";
  const auto seconds = static_cast<std::time_t>(*version.created_ns / 1'000'000'000);
  return fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::localtime(seconds));
}

std::string Kind(const VersionSummary& version) {
  if (!version.fault.empty()) return "broken";
  if (!version.base_version) return "full";
  return version.full_copy ? "delta+full" : "delta";
}

struct Options {
  std::string store;
  StoreOptions reading;
};

Result<Output> Log(const Session& session, const Options& options) {
  SYNCLINE_ASSIGN(const auto source,
                  store::Source::Open(session.files, options.store,
                                      options.reading.Source(session, options.store)));
  SYNCLINE_TRY(source->Refresh(std::nullopt));
  SYNCLINE_ASSIGN(const std::vector<VersionSummary> history, store::ReadHistory(*source));
  Output output;
  output.text = fmt::format("{:>8}  {:<10}  {:>6}  {:>10}  {:>7}  {:>9}  {:<19}  {}\n", "version",
                            "kind", "base", "size", "tensors", "changed", "when", "signed by");
  Json::Array versions;
  for (const VersionSummary& version : history) {
    const auto density = version.density();
    output.text += fmt::format(
        "{:>8}  {:<10}  {:>6}  {:>10}  {:>7}  {:>9}  {:<19}  {}\n", version.version, Kind(version),
        version.base_version ? fmt::format("{}", *version.base_version) : "-",
        base::HumanBytes(version.bytes), version.tensors,
        density ? fmt::format("{:.3f} %", 100 * *density) : "-", When(version),
        version.signed_by.empty() ? "-" : version.signed_by);
    if (!version.fault.empty()) output.text += fmt::format("          {}\n", version.fault);
    versions.emplace_back(Json::Object{
        {"version", version.version},
        {"kind", Kind(version)},
        {"base_version", OrNull(version.base_version)},
        {"bytes", version.bytes},
        {"tensors", version.tensors},
        {"density", OrNull(density)},
        {"created",
         version.created_ns ? Json(static_cast<double>(*version.created_ns) / 1e9) : Json()},
        {"signed_by", version.signed_by.empty() ? Json() : Json(version.signed_by)},
        {"fault", version.fault.empty() ? Json() : Json(version.fault)}});
  }
  output.json = Json(Json::Object{{"versions", std::move(versions)}});
  return output;
}

}  // namespace

void AddLog(CLI::App& app, Session& session) {
  CLI::App& command = AddCommand(app, session, "log", "List the versions of a store",
                                 "syncline log /shared/weights");
  const auto options = std::make_shared<Options>();
  command.add_option("store", options->store, "Store: a directory, http(s)://… or s3://…")
      ->required();
  AddReadingOptions(command, options->reading);
  command.callback([&session, options] {
    session.action = [&session, options] { return Log(session, *options); };
  });
}

}  // namespace syncline::cli
