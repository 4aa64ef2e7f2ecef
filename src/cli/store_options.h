// Options of all commands that read or write a store.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "store/source.h"

namespace syncline::cli {

struct StoreOptions {
  objects::Settings connection;
  std::optional<double> wait_seconds;
  std::vector<std::string> trusted_keys;
  std::string before_read;

  // `store` is named in messages and told to the hook.
  store::SourceOptions Source(const Session& session, const std::string& store) const;
};

// --ca-file, --s3-endpoint, --s3-region, --s3-path-style
void AddConnectionOptions(CLI::App& command, objects::Settings& connection);
// Those, and --wait, --trust, --before-read
void AddReadingOptions(CLI::App& command, StoreOptions& options);

// A number, or nothing for "latest".
base::Result<std::optional<std::uint64_t>> ParseVersion(const std::string& text);

}  // namespace syncline::cli
