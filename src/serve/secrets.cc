#include "serve/secrets.h"

#include <fmt/core.h>
#include <stdlib.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

namespace syncline::serve {
namespace {

using base::Code;
using base::Fail;
using base::Result;
using base::Status;

constexpr std::size_t kMaxKeyBytes = 4096;
constexpr std::array<std::string_view, 3> kSecretOptions = {"--api-key", "--admin-api-key",
                                                            "--ssl-keyfile-password"};
constexpr std::array<const char*, 3> kSecretVariables = {
    "SYNCLINE_API_KEY", "SYNCLINE_ADMIN_API_KEY", "SYNCLINE_SSL_KEYFILE_PASSWORD"};

// `where` names the source.
Status CheckKey(std::string_view key, std::string_view where) {
  if (key.empty()) return Fail(Code::kInvalidArgument, fmt::format("{}: the key is empty", where));
  if (key.size() > kMaxKeyBytes) {
    return Fail(Code::kInvalidArgument, fmt::format("{}: a key of {} bytes, expected at most {}",
                                                    where, key.size(), kMaxKeyBytes));
  }
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 32 || c == 127; };
  if (key.front() == ' ' || key.back() == ' ' || std::ranges::any_of(key, is_control)) {
    return Fail(Code::kInvalidArgument,
                fmt::format("{}: a header cannot carry this key: it holds control characters, or "
                            "starts or ends with a space",
                            where));
  }
  return {};
}

Result<std::string> ReadKeyFile(base::FileSystem& files, const std::string& path) {
  SYNCLINE_ASSIGN(std::string text, base::ReadText(files, path, kMaxKeyBytes + 2));
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

struct KeySource {
  const char* option;
  const std::optional<std::string>& given;  // on the command line
  const std::string& file;
  const char* variable;
};

// Empty: there is no key.
Result<std::string> ReadKey(base::FileSystem& files, const Environment& environment,
                            const KeySource& source) {
  if (source.given && !source.file.empty()) {
    return Fail(Code::kInvalidArgument,
                fmt::format("{0} and {0}-file: expected one of them", source.option));
  }
  std::string key;
  std::string where;
  if (source.given) {
    key = *source.given;
    where = source.option;
  } else if (!source.file.empty()) {
    where = fmt::format("{}-file {}", source.option, source.file);
    SYNCLINE_ASSIGN(key, ReadKeyFile(files, source.file));
  } else {
    key = environment(source.variable);
    where = source.variable;
    if (key.empty()) return key;
  }
  SYNCLINE_TRY(CheckKey(key, where));
  return key;
}

bool IsSecret(std::string_view argument) {
  return std::ranges::find(kSecretOptions, argument) != kSecretOptions.end();
}

}  // namespace

Status ReadKeys(base::FileSystem& files, const Environment& environment, Options& options) {
  SYNCLINE_ASSIGN(options.keys.api, ReadKey(files, environment,
                                            {.option = "--api-key",
                                             .given = options.api_key,
                                             .file = options.api_key_file,
                                             .variable = kSecretVariables[0]}));
  SYNCLINE_ASSIGN(options.keys.admin, ReadKey(files, environment,
                                              {.option = "--admin-api-key",
                                               .given = options.admin_api_key,
                                               .file = options.admin_api_key_file,
                                               .variable = kSecretVariables[1]}));
  if (options.ssl_keyfile_password.empty()) {
    options.ssl_keyfile_password = environment(kSecretVariables[2]);
  }
  return {};
}

std::vector<std::string> WithoutSecrets(const std::vector<std::string>& arguments) {
  std::vector<std::string> rest;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view argument = arguments[i];
    if (IsSecret(argument)) {
      ++i;  // its value
    } else if (!IsSecret(argument.substr(0, argument.find('=')))) {
      rest.push_back(arguments[i]);
    }
  }
  return rest;
}

void HideSecrets(char** argv) {
  const auto overwrite = [](char* text) { std::memset(text, '*', std::strlen(text)); };
  for (char** argument = argv; *argument != nullptr; ++argument) {
    char* equals = std::strchr(*argument, '=');
    if (equals != nullptr && IsSecret(std::string_view(*argument, equals))) overwrite(equals + 1);
    if (IsSecret(*argument) && argument[1] != nullptr) overwrite(*++argument);
  }
  for (const char* variable : kSecretVariables) unsetenv(variable);
}

}  // namespace syncline::serve
