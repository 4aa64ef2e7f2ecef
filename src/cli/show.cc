// syncline show: the tensors of a checkpoint or of one version of a store.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>

#include "base/bytes.h"
#include "checkpoint/checkpoint.h"
#include "cli/command.h"
#include "cli/store_options.h"
#include "store/version.h"

namespace syncline::cli {
namespace {

using base::Json;
using base::Result;

struct Options {
  std::string path;
  std::optional<std::uint64_t> version;
  StoreOptions reading;
};

Result<Output> ShowCheckpoint(base::FileSystem& files, const std::string& path) {
  SYNCLINE_ASSIGN(const auto checkpoint, checkpoint::Checkpoint::Open(files, path));
  Output output;
  Json::Array tensors;
  for (const auto& tensor : checkpoint.tensors()) {
    const std::string& file = checkpoint.files()[tensor.file].name;
    output.text +=
        fmt::format("{}  {} {}  {}  {}\n", tensor.name, Name(tensor.dtype),
                    tensor::ShapeText(tensor.shape), base::HumanBytes(tensor.bytes), file);
    tensors.emplace_back(
        Json::Object{{"name", tensor.name},
                     {"dtype", Name(tensor.dtype)},
                     {"shape", Json::Array(tensor.shape.begin(), tensor.shape.end())},
                     {"bytes", tensor.bytes},
                     {"file", file}});
  }
  output.text += fmt::format("{} tensors, {}\n", checkpoint.tensors().size(),
                             base::HumanBytes(checkpoint.total_bytes()));
  output.json = Json(Json::Object{{"kind", "checkpoint"},
                                  {"bytes", checkpoint.total_bytes()},
                                  {"tensors", std::move(tensors)}});
  return output;
}

Result<Output> ShowVersion(const Session& session, const Options& options, std::uint64_t number) {
  SYNCLINE_ASSIGN(const auto source,
                  store::Source::Open(session.files, options.path,
                                      options.reading.Source(session, options.path)));
  SYNCLINE_TRY(source->Refresh(number));
  SYNCLINE_TRY(source->Describe(number));
  SYNCLINE_ASSIGN(const auto version, store::ReadVersion(source->files(), source->path(), number));
  if (!version.delta) return ShowCheckpoint(source->files(), version.directory);
  Output output;
  Json::Array tensors;
  for (const auto& delta : version.tensors) {
    output.text += fmt::format("{}  {}  {}  {}\n", delta.name, base::HumanBytes(delta.bytes),
                               delta.hash, version.files[delta.file]);
    tensors.emplace_back(Json::Object{{"name", delta.name},
                                      {"bytes", delta.bytes},
                                      {"hash", delta.hash},
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
  AddReadingOptions(command, options->reading);
  command.callback([&session, options] {
    session.action = [&session, options]() -> Result<Output> {
      if (options->version) return ShowVersion(session, *options, *options->version);
      return ShowCheckpoint(session.files, options->path);
    };
  });
}

}  // namespace syncline::cli
