#include "cli/store_options.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <charconv>

#include "cli/shell_hook.h"

namespace syncline::cli {

store::SourceOptions StoreOptions::Source(const Session& session, const std::string& store) const {
  store::SourceOptions options{.connection = connection,
                               .trusted_keys = trusted_keys,
                               .wait_seconds = wait_seconds,
                               .cancel = &session.cancel};
  if (!before_read.empty()) {
    options.before_read = [command = before_read, store](std::optional<std::uint64_t> version) {
      return RunHook(command, store, version);
    };
  }
  return options;
}

void AddConnectionOptions(CLI::App& command, objects::Settings& connection) {
  command.add_option("--ca-file", connection.ca_file,
                     "PEM file of authorities to trust beside the system's (https://, s3://)");
  command.add_option("--s3-endpoint", connection.endpoint,
                     "URL of a server that speaks S3 (default: AWS_ENDPOINT_URL, or AWS)");
  command.add_option("--s3-region", connection.region, "Region of the bucket");
  command.add_option("--s3-path-style", connection.path_style,
                     "Is the bucket's name in the path? (default: yes with an endpoint)");
}

void AddReadingOptions(CLI::App& command, StoreOptions& options) {
  command.add_option(
      "--trust", options.trusted_keys,
      "Public key (keygen): read only what it has signed; may be given several times");
  command
      .add_option("--wait", options.wait_seconds,
                  "Seconds to wait for files that are not visible yet (default: 0 for a directory, "
                  "30 for others)")
      ->check(CLI::NonNegativeNumber);
  command.add_option("--before-read", options.before_read,
                     "Command to run before the store is read (SYNCLINE_STORE and SYNCLINE_VERSION "
                     "are in its environment)");
  AddConnectionOptions(command, options.connection);
}

base::Result<std::optional<std::uint64_t>> ParseVersion(const std::string& text) {
  if (text == "latest") return std::nullopt;
  std::uint64_t version = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, version);
  if (parsed.ec == std::errc() && parsed.ptr == end) return version;
  return base::Fail(base::Code::kInvalidArgument,
                    fmt::format("--version {}: expected a number or \"latest\"", text));
}

}  // namespace syncline::cli
