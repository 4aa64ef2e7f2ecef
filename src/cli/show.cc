// syncline show: the tensors of a checkpoint or of one version of a store.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>

#include "base/bytes.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/digests.h"
#include "cli/command.h"
#include "cli/store_options.h"
#include "store/version.h"
#include "store/version_digests.h"

namespace syncline::cli {
namespace {

using base::Json;
using base::Result;

struct Options {
  std::string path;
  std::optional<std::uint64_t> version;
  bool digests = false;  // --digests
  StoreOptions reading;
};

Json DigestJson(const std::optional<tensor::Digest>& digest) {
  return digest ? Json(digest->Hex()) : Json();
}

// For people: nothing where nobody asked for it.
std::string DigestText(const std::optional<tensor::Digest>& digest, bool wanted) {
  if (!wanted) return "";
  return "  " + (digest ? digest->Hex() : "digest unknown");
}

// What a manifest (may be null) says of a tensor.
std::optional<tensor::Digest> ToldDigest(const store::Described* version, const std::string& name) {
  if (version == nullptr || !version->manifest) return std::nullopt;
  const auto& tensors = version->manifest->manifest.tensors;
  const auto found = std::ranges::lower_bound(tensors, name, {}, &store::ManifestTensor::name);
  return found != tensors.end() && found->name == name ? found->digest : std::nullopt;
}

// `version`: that the checkpoint is; null: none.
Result<Output> ShowCheckpoint(const Session& session, base::FileSystem& files,
                              const std::string& path, const store::Described* version,
                              bool digests) {
  SYNCLINE_ASSIGN(const auto checkpoint, checkpoint::Checkpoint::Open(files, path));
  std::vector<tensor::Digest> made;
  if (digests) {
    base::ThreadPool pool(session.threads);
    SYNCLINE_ASSIGN(made, checkpoint::DigestCheckpoint(files, checkpoint, pool, &session.cancel));
  }
  Output output;
  Json::Array tensors;
  for (std::size_t i = 0; i < checkpoint.tensors().size(); ++i) {
    const auto& tensor = checkpoint.tensors()[i];
    const auto digest = digests ? made[i] : ToldDigest(version, tensor.name);
    const std::string& file = checkpoint.files()[tensor.file].name;
    output.text += fmt::format("{}  {} {}  {}  {}{}\n", tensor.name, Name(tensor.dtype),
                               tensor::ShapeText(tensor.shape), base::HumanBytes(tensor.bytes),
                               file, DigestText(digest, digests));
    tensors.emplace_back(
        Json::Object{{"name", tensor.name},
                     {"dtype", Name(tensor.dtype)},
                     {"shape", Json::Array(tensor.shape.begin(), tensor.shape.end())},
                     {"bytes", tensor.bytes},
                     {"file", file},
                     {"digest", DigestJson(digest)}});
  }
  output.text += fmt::format("{} tensors, {}\n", checkpoint.tensors().size(),
                             base::HumanBytes(checkpoint.total_bytes()));
  output.json = Json(Json::Object{{"kind", "checkpoint"},
                                  {"bytes", checkpoint.total_bytes()},
                                  {"tensors", std::move(tensors)}});
  return output;
}

// Of all tensors of a version, whichever version changed them last.
Result<Output> ShowDigests(const Session& session, store::Source& source, std::uint64_t number) {
  SYNCLINE_ASSIGN(const auto found, ReadVersionDigests(source, number, &session.cancel));
  Output output;
  Json::Array tensors;
  for (const store::TensorDigest& tensor : found.tensors) {
    output.text += fmt::format("{}  {} {}{}\n", tensor.name, Name(tensor.dtype),
                               tensor::ShapeText(tensor.shape), DigestText(tensor.digest, true));
    tensors.emplace_back(
        Json::Object{{"name", tensor.name},
                     {"dtype", Name(tensor.dtype)},
                     {"shape", Json::Array(tensor.shape.begin(), tensor.shape.end())},
                     {"digest", DigestJson(tensor.digest)}});
  }
  output.text += fmt::format("version {}: {} tensors{}\n", number, found.tensors.size(),
                             found.complete ? "" : ", and those of version 0 that never changed");
  output.json = Json(Json::Object{{"kind", "digests"},
                                  {"version", number},
                                  {"identity", found.identity},
                                  {"complete", found.complete},
                                  {"tensors", std::move(tensors)}});
  return output;
}

Result<Output> ShowVersion(const Session& session, const Options& options, std::uint64_t number) {
  SYNCLINE_ASSIGN(const auto source,
                  store::Source::Open(session.files, options.path,
                                      options.reading.Source(session, options.path)));
  SYNCLINE_TRY(source->Refresh(number));
  if (options.digests) return ShowDigests(session, *source, number);
  SYNCLINE_ASSIGN(const store::Described described, source->Describe(number));
  SYNCLINE_ASSIGN(const auto version, store::ReadVersion(source->files(), source->path(), number));
  if (!version.delta) {
    return ShowCheckpoint(session, source->files(), version.directory, &described, false);
  }
  Output output;
  Json::Array tensors;
  for (const auto& delta : version.tensors) {
    output.text += fmt::format("{}  {}  {}  {}\n", delta.name, base::HumanBytes(delta.bytes),
                               delta.hash, version.files[delta.file]);
    tensors.emplace_back(Json::Object{
        {"name", delta.name},
        {"bytes", delta.bytes},
        {"hash", delta.hash},
        {"digest", DigestJson(delta.digest ? delta.digest : ToldDigest(&described, delta.name))},
        {"file", version.files[delta.file]}});
  }
  output.text += fmt::format("version {}: delta on {}, {}, checksum {}, {} changed tensors\n",
                             number, version.delta->base_version, Name(version.delta->encoding),
                             Name(version.delta->checksum), version.tensors.size());
  output.json = Json(Json::Object{{"kind", "delta"},
                                  {"version", number},
                                  {"base_version", version.delta->base_version},
                                  {"encoding", Name(version.delta->encoding)},
                                  {"checksum", Name(version.delta->checksum)},
                                  {"tensors", std::move(tensors)}});
  return output;
}

}  // namespace

void AddShow(CLI::App& app, Session& session) {
  CLI::App& command =
      AddCommand(app, session, "show", "List the tensors of a checkpoint or of a version",
                 "syncline show /shared/weights 12");
  const auto options = std::make_shared<Options>();
  command.add_option("path", options->path, "Checkpoint, or store if a version is given")
      ->required();
  command.add_option("version", options->version, "Number of the version");
  command.add_flag("--digests", options->digests,
                   "Digests of all tensors: of a version by what the store says, whichever version "
                   "changed them last; of a checkpoint they are made");
  AddReadingOptions(command, options->reading);
  command.callback([&session, options] {
    session.action = [&session, options]() -> Result<Output> {
      if (options->version) return ShowVersion(session, *options, *options->version);
      return ShowCheckpoint(session, session.files, options->path, nullptr, options->digests);
    };
  });
}

}  // namespace syncline::cli
