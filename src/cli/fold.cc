// syncline fold: makes one delta of those between two versions of a store.
#include "replica/fold.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "base/bytes.h"
#include "cli/command.h"
#include "cli/store_options.h"

namespace syncline::cli {
namespace {

using base::Code;
using base::Fail;
using base::Json;
using base::Result;

struct Options {
  std::string store;
  std::string range;
  std::string base;
  std::string work;
  std::string encoding = "xor";
  double link_gbps = 0;
  std::string key;
  StoreOptions reading;
};

// "3..12"
Result<std::pair<std::uint64_t, std::uint64_t>> ParseRange(const std::string& text) {
  const std::size_t dots = text.find("..");
  if (dots != std::string::npos) {
    const auto from = ParseVersion(text.substr(0, dots));
    const auto to = ParseVersion(text.substr(dots + 2));
    if (from && to && *from && *to) return std::pair(**from, **to);
  }
  return Fail(Code::kInvalidArgument, fmt::format("{}: expected two versions, as in 3..12", text));
}

Output Describe(const replica::FoldReport& report) {
  Output output;
  output.text = fmt::format(
      "{} to {}: {} of {} tensors and {:.3f} % of the elements differ, {}{}, {:.3f} s\n",
      report.from, report.to, report.tensors_changed, report.tensors,
      report.elements == 0 ? 0.0
                           : 100 * static_cast<double>(report.elements_changed) /
                                 static_cast<double>(report.elements),
      base::HumanBytes(report.bytes),
      report.bytes_without
          ? fmt::format(" (without it: {})", base::HumanBytes(*report.bytes_without))
          : "",
      report.seconds);
  output.json = Json(Json::Object{{"from_version", report.from},
                                  {"to_version", report.to},
                                  {"identity", report.identity},
                                  {"url", report.url},
                                  {"tensors", report.tensors},
                                  {"tensors_changed", report.tensors_changed},
                                  {"elements", report.elements},
                                  {"elements_changed", report.elements_changed},
                                  {"bytes", report.bytes},
                                  {"bytes_without", OrNull(report.bytes_without)},
                                  {"seconds", report.seconds}});
  return output;
}

Result<Output> Fold(const Session& session, const Options& options) {
  SYNCLINE_ASSIGN(const delta::EncodingChoice encoding,
                  delta::ChooseEncoding(options.encoding, options.link_gbps));
  SYNCLINE_ASSIGN(const auto range, ParseRange(options.range));
  auto report = replica::Fold(session.files, options.store,
                              {.from = range.first,
                               .to = range.second,
                               .base = options.base,
                               .work_directory = options.work,
                               .encoding = encoding,
                               .signing_key = options.key,
                               .threads = session.threads,
                               .progress = &session.progress,
                               .cancel = &session.cancel,
                               .source = options.reading.Source(session, options.store)});
  if (report) return Describe(*report);
  const bool needs_base = options.base.empty() && report.error().code == Code::kNotFound &&
                          report.error().message.ends_with("as base");
  return Fail(report.error().code, report.error().message + (needs_base ? " (--base)" : ""));
}

}  // namespace

void AddFold(CLI::App& app, Session& session) {
  CLI::App& command =
      AddCommand(app, session, "fold",
                 "Make one delta of those between two versions, for readers that are behind",
                 "syncline fold /shared/weights 3..12");
  const auto options = std::make_shared<Options>();
  command.add_option("store", options->store, "Store: a directory or s3://…")->required();
  command.add_option("range", options->range, "The two versions: 3..12")->required();
  command.add_option("--base", options->base,
                     "Checkpoint or replica that is the first of them, where the store does not "
                     "lead to it");
  command.add_option("--work", options->work,
                     "Where both versions are made meanwhile (default: inside the store, or below "
                     "$TMPDIR)");
  command.add_option("--encoding", options->encoding,
                     "xor (default), overwrite, compact, compact-gap or auto, as of publish");
  command
      .add_option("--link-gbps", options->link_gbps,
                  "For auto: Gbit/s of the link between the store and the readers (default: not "
                  "known)")
      ->check(CLI::NonNegativeNumber);
  command.add_option("--sign", options->key,
                     "File of the private key that signs the fold (see syncline keygen)");
  AddReadingOptions(command, options->reading);
  command.callback([&session, options] {
    session.action = [&session, options] { return Fold(session, *options); };
  });
}

}  // namespace syncline::cli
