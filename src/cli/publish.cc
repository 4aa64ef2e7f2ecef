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
#include "checkpoint/reader.h"
#include "cli/command.h"
#include "cli/shell_hook.h"
#include "cli/store_options.h"
#include "replica/resume.h"
#include "store/publisher.h"

namespace syncline::cli {
namespace {

using base::Json;
using base::Result;

struct Options {
  std::string checkpoint;
  std::string store;
  std::optional<std::uint64_t> version;
  bool full = false;
  std::string base;
  std::string encoding = "xor";
  double link_gbps = 0;
  std::string baseline;
  std::string key;
  std::string after;
  double full_copy_ratio = 1;
  objects::Settings connection;
};

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
  SYNCLINE_ASSIGN(const delta::EncodingChoice encoding,
                  delta::ChooseEncoding(options.encoding, options.link_gbps));
  SYNCLINE_ASSIGN(const auto input,
                  checkpoint::CheckpointReader::Open(session.files, options.checkpoint));
  replica::ResumeOptions resume;
  resume.base = options.base;
  resume.baseline = options.full ? replica::BaselineKind::kNone : replica::BaselineKind::kDisk;
  resume.baseline_directory = options.baseline;
  resume.one_version = true;
  resume.publisher.encoding = encoding;
  resume.publisher.companions_from = input.checkpoint().directory();
  resume.publisher.signing_key = options.key;
  resume.publisher.full_copy_ratio = options.full_copy_ratio;
  resume.publisher.threads = session.threads;
  resume.publisher.objects = options.connection;
  resume.progress = &session.progress;
  resume.cancel = &session.cancel;
  if (!options.after.empty()) {
    resume.publisher.after_publish = [&](std::uint64_t version, const std::string&) {
      return RunHook(options.after, options.store, version);
    };
  }
  auto publisher = replica::ResumePublisher(session.files, options.store, resume);
  if (!publisher) {
    return Annotate(std::move(publisher).error(),
                    options.full ? "cannot open the store"
                                 : "cannot open the store with its last version (--full needs "
                                   "none; --base names the checkpoint that is version 0)");
  }
  SYNCLINE_ASSIGN(const store::PublishReport report,
                  publisher->Publish(options.version, input.Views(), options.full, session.progress,
                                     &session.cancel, &input));
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
  command
      .add_option("--to", options->store, "Store directory, made if missing, or s3://bucket/prefix")
      ->required();
  command.add_option("--version", options->version,
                     "Number of the version (default: the next one)");
  CLI::Option* full = command.add_flag("--full", options->full, "Publish all of it, not a delta");
  command
      .add_option("--base", options->base,
                  "Checkpoint that is version 0 and that receivers have already")
      ->excludes(full);
  command.add_option("--encoding", options->encoding,
                     "xor (default) or overwrite, which SGLang reads too; compact, the smallest; "
                     "compact-gap, larger and faster; auto: compact or compact-gap");
  command
      .add_option("--link-gbps", options->link_gbps,
                  "For auto: Gbit/s of the link between here and the readers (default: not known)")
      ->check(CLI::NonNegativeNumber);
  command.add_option("--baseline", options->baseline,
                     "Where the last version is kept (default: inside the store)");
  command.add_option("--sign", options->key,
                     "File of the private key that signs the version (see syncline keygen)");
  command
      .add_option("--full-copy-ratio", options->full_copy_ratio,
                  "A delta carries a full copy too once the deltas since the last one have this "
                  "share of the model's bytes (default: 1; 0: never)")
      ->check(CLI::NonNegativeNumber);
  command.add_option("--after-publish", options->after,
                     "Command for /bin/sh once the version stands; SYNCLINE_VERSION and "
                     "SYNCLINE_STORE tell it which");
  AddConnectionOptions(command, options->connection);
  command.callback([&session, options] {
    session.action = [&session, options] { return Publish(session, *options); };
  });
}

}  // namespace syncline::cli
