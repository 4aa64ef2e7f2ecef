// syncline log: the versions of a store, and its folds.
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

std::string When(const std::optional<std::uint64_t>& created_ns) {
  if (!created_ns) return "-";
  const auto seconds = static_cast<std::time_t>(*created_ns / 1'000'000'000);
  return fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::localtime(seconds));
}

Json Created(const std::optional<std::uint64_t>& created_ns) {
  return created_ns ? Json(static_cast<double>(*created_ns) / 1e9) : Json();
}

// One line of the table, and the fault below it.
struct Row {
  std::uint64_t version = 0;
  std::string kind;
  std::optional<std::uint64_t> base;
  std::uint64_t bytes = 0;
  std::uint64_t tensors = 0;
  std::optional<double> density;
  std::optional<std::uint64_t> created_ns;
  const std::string& signed_by;
  const std::string& fault;
};

std::string Text(const Row& row) {
  std::string text =
      fmt::format("{:>8}  {:<10}  {:>6}  {:>10}  {:>7}  {:>9}  {:<19}  {}\n", row.version, row.kind,
                  row.base ? fmt::format("{}", *row.base) : "-", base::HumanBytes(row.bytes),
                  row.tensors, row.density ? fmt::format("{:.3f} %", 100 * *row.density) : "-",
                  When(row.created_ns), row.signed_by.empty() ? "-" : row.signed_by);
  if (!row.fault.empty()) text += fmt::format("          {}\n", row.fault);
  return text;
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

// Adds a line for each fold.
Result<Json::Array> Folds(store::Source& source, std::string& text) {
  SYNCLINE_ASSIGN(const std::vector<store::FoldSummary> folds, store::ReadFolds(source));
  Json::Array rows;
  for (const store::FoldSummary& fold : folds) {
    const auto density = store::Density(fold.elements, fold.elements_changed);
    text += Text({fold.range.to, fold.fault.empty() ? "fold" : "fold (bad)", fold.range.from,
                  fold.bytes, fold.tensors, density, fold.created_ns, fold.signed_by, fold.fault});
    rows.emplace_back(
        Json::Object{{"from_version", fold.range.from},
                     {"to_version", fold.range.to},
                     {"bytes", fold.bytes},
                     {"tensors", fold.tensors},
                     {"density", OrNull(density)},
                     {"created", Created(fold.created_ns)},
                     {"signed_by", fold.signed_by.empty() ? Json() : Json(fold.signed_by)},
                     {"fault", fold.fault.empty() ? Json() : Json(fold.fault)}});
  }
  return rows;
}

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
    output.text +=
        Text({version.version, Kind(version), version.base_version, version.bytes, version.tensors,
              density, version.created_ns, version.signed_by, version.fault});
    versions.emplace_back(
        Json::Object{{"version", version.version},
                     {"kind", Kind(version)},
                     {"base_version", OrNull(version.base_version)},
                     {"bytes", version.bytes},
                     {"tensors", version.tensors},
                     {"density", OrNull(density)},
                     {"created", Created(version.created_ns)},
                     {"signed_by", version.signed_by.empty() ? Json() : Json(version.signed_by)},
                     {"fault", version.fault.empty() ? Json() : Json(version.fault)}});
  }
  SYNCLINE_ASSIGN(Json::Array folds, Folds(*source, output.text));
  output.json = Json(Json::Object{{"versions", std::move(versions)}, {"folds", std::move(folds)}});
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
