// syncline keygen: makes a pair of keys for signing versions.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/command.h"
#include "store/signature.h"

namespace syncline::cli {
namespace {

using base::Json;
using base::Result;

Result<Output> Keygen(const Session& session, const std::string& path) {
  SYNCLINE_TRY(store::WriteKeyPair(session.files, path));
  const std::string public_path = path + ".pub";
  SYNCLINE_ASSIGN(const auto key, store::TrustedKey::Read(session.files, public_path));
  Output output;
  output.text = fmt::format("private key {}\npublic key {}\nfingerprint {}\n", path, public_path,
                            key.fingerprint());
  output.json = Json(Json::Object{
      {"private_key", path}, {"public_key", public_path}, {"fingerprint", key.fingerprint()}});
  return output;
}

}  // namespace

void AddKeygen(CLI::App& app, Session& session) {
  CLI::App& command = AddCommand(app, session, "keygen", "Make a pair of keys for signing versions",
                                 "syncline keygen trainer.key");
  const auto path = std::make_shared<std::string>();
  command.add_option("file", *path, "Private key; the public one gets the same name with .pub")
      ->required();
  command.callback(
      [&session, path] { session.action = [&session, path] { return Keygen(session, *path); }; });
}

}  // namespace syncline::cli
