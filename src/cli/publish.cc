// syncline publish: makes a checkpoint directory the next version of a store.
//
// The version before it is needed as baseline. It is kept as a replica of the store (by default
// inside the store), which is brought to the last version first; so it is proven by the store's own
// hashes, and survives whatever ended the last publish.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>

#include "base/bytes.h"
#include "checkpoint/checkpoint.h"
#include "cli/command.h"
#include "replica/replica.h"
#include "store/publisher.h"

namespace syncline::cli {
namespace {

using base::Code;
using base::Fail;
using base::Json;
using base::Result;
using checkpoint::MappedCheckpoint;

struct Options {
  std::string checkpoint;
  std::string store;
  std::optional<std::uint64_t> version;
  bool full = false;
  std::string base;
  std::string encoding = "xor";
  std::string baseline;
  std::string key;
  double full_copy_ratio = 1;
};

// The last version's tensors, as far as a delta needs them.
struct LastVersion {
  std::optional<std::uint64_t> number;
  std::optional<MappedCheckpoint> mapped;
};

Result<std::uint64_t> UpdateBaseline(const Session& session, const Options& options,
                                     std::optional<std::uint64_t> version) {
  const replica::PullOptions pull = {.version = version,
                                     .seed = options.base,
                                     .threads = session.threads,
                                     .progress = &session.progress,
                                     .cancel = &session.cancel};
  auto report = replica::Pull(session.files, options.store, options.baseline, pull);
  if (!report) {
    return Annotate(std::move(report).error(),
                    "the last version is needed to publish a delta (or --full, or --base for the "
                    "checkpoint that is version 0)");
  }
  return report->version;
}

Result<LastVersion> OpenLast(const Session& session, const Options& options, bool store_is_empty) {
  LastVersion last;
  if (options.full || (store_is_empty && options.base.empty())) return last;
  std::string path = options.base;
  if (store_is_empty) {
    last.number = 0;
  } else {
    SYNCLINE_ASSIGN(last.number, UpdateBaseline(session, options, std::nullopt));
    path = options.baseline;
  }
  SYNCLINE_ASSIGN(last.mapped, MappedCheckpoint::Open(session.files, path));
  return last;
}

Output Describe(const store::PublishReport& report) {
  Output output;
  output.text = fmt::format(
      "version {}: {}, {} of {} tensors and {:.3f} % of the elements changed, {} (of {}), {:.3f} "
      "s\n",
      report.version,
      report.base_version ? fmt::format("delta on {}{}", *report.base_version,
                                        report.full_copy ? " with a full copy" : "")
                          : "full",
      report.tensors_changed, report.tensors, 100 * report.density(),
      base::HumanBytes(report.bytes), base::HumanBytes(report.full_bytes), report.seconds);
  output.json = Json(Json::Object{{"version", report.version},
                                  {"kind", report.base_version ? "delta" : "full"},
                                  {"base_version", OrNull(report.base_version)},
                                  {"full_copy", report.full_copy},
                                  {"identity", report.identity},
                                  {"tensors", report.tensors},
                                  {"tensors_changed", report.tensors_changed},
                                  {"elements", report.elements},
                                  {"elements_changed", report.elements_changed},
                                  {"density", report.density()},
                                  {"bytes", report.bytes},
                                  {"full_bytes", report.full_bytes},
                                  {"seconds", report.seconds}});
  return output;
}

Result<Output> Publish(const Session& session, Options options) {
  const auto encoding = delta::FindEncoding(options.encoding);
  if (!encoding) {
    return Fail(Code::kInvalidArgument, fmt::format("unknown encoding \"{}\": expected xor or "
                                                    "overwrite",
                                                    options.encoding));
  }
  if (options.baseline.empty()) {
    options.baseline = base::JoinPath(store::OwnDirectory(options.store), "baseline");
  }
  SYNCLINE_ASSIGN(const auto input, MappedCheckpoint::Open(session.files, options.checkpoint));
  SYNCLINE_TRY(session.files.MakeDirectories(options.store));
  SYNCLINE_ASSIGN(const auto versions, store::ListVersions(session.files, options.store));
  SYNCLINE_ASSIGN(const LastVersion last, OpenLast(session, options, versions.empty()));

  std::vector<tensor::TensorView> held;
  if (last.mapped) held = last.mapped->Views();
  SYNCLINE_ASSIGN(
      store::Publisher publisher,
      store::Publisher::Open(session.files, options.store,
                             store::MakeBorrowedBaseline(std::move(held)), !options.base.empty(),
                             {.encoding = *encoding,
                              .companions_from = input.checkpoint().directory(),
                              .signing_key = options.key,
                              .full_copy_ratio = options.full_copy_ratio,
                              .threads = session.threads}));
  if (last.number && publisher.last_version() != last.number) {
    return Fail(Code::kLocked, fmt::format("another publisher made version {} meanwhile",
                                           publisher.last_version().value_or(0)));
  }
  SYNCLINE_ASSIGN(const store::PublishReport report,
                  publisher.Publish(options.version, input.Views(), options.full, session.progress,
                                    &session.cancel));
  // Only now is it known which checkpoint version 0 is.
  if (!options.base.empty()) SYNCLINE_TRY(UpdateBaseline(session, options, report.version));
  return Describe(report);
}

}  // namespace

void AddPublish(CLI::App& app, Session& session) {
  CLI::App& command =
      AddCommand(app, session, "publish", "Make a checkpoint the next version of a store",
                 "syncline publish out/step-12 --to /shared/weights");
  const auto options = std::make_shared<Options>();
  command
      .add_option("checkpoint", options->checkpoint,
                  "Checkpoint directory (or safetensors file) to publish")
      ->required();
  command.add_option("--to", options->store, "Store directory; made if missing")->required();
  command.add_option("--version", options->version,
                     "Number of the version (default: the next one)");
  CLI::Option* full = command.add_flag("--full", options->full, "Publish all of it, not a delta");
  command
      .add_option("--base", options->base,
                  "Checkpoint that is version 0 and that receivers have already")
      ->excludes(full);
  command.add_option("--encoding", options->encoding, "xor (default) or overwrite");
  command.add_option("--baseline", options->baseline,
                     "Where the last version is kept (default: inside the store)");
  command.add_option("--sign", options->key,
                     "File of the private key that signs the version (see syncline keygen)");
  command
      .add_option("--full-copy-ratio", options->full_copy_ratio,
                  "A delta carries a full copy too once the deltas since the last one have this "
                  "share of the model's bytes (default: 1; 0: never)")
      ->check(CLI::NonNegativeNumber);
  command.callback([&session, options] {
    session.action = [&session, options] { return Publish(session, *options); };
  });
}

}  // namespace syncline::cli
