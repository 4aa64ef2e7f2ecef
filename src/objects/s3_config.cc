#include "objects/s3_config.h"

#include <fmt/format.h>

#include <cstdlib>
#include <map>

namespace syncline::objects {
namespace {

using base::Code;
using base::Fail;
using base::FileSystem;
using base::Result;

constexpr std::uint64_t kMaxFileBytes = 1 << 20;

using Section = std::map<std::string, std::string, std::less<>>;
using Sections = std::map<std::string, Section, std::less<>>;

std::string_view Trim(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\r") + 1 - begin);
}

std::string Get(const Section& section, std::string_view name) {
  const auto found = section.find(name);
  return found == section.end() ? "" : found->second;
}

// "[section]" and "name = value" lines. Indented lines belong to the value above (they are settings
// inside a setting) and are skipped. A file that is not there is empty.
Result<Sections> ReadSections(FileSystem& files, const std::string& path) {
  const auto text = base::ReadText(files, path, kMaxFileBytes);
  if (!text) {
    if (text.error().code == Code::kNotFound) return Sections();
    return std::unexpected(text.error());
  }
  Sections sections;
  Section* section = nullptr;
  std::string_view rest = *text;
  for (int number = 1; !rest.empty(); ++number) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    const std::string_view trimmed = Trim(line);
    if (trimmed.empty() || trimmed.front() == '#' || trimmed.front() == ';') continue;
    if (line.front() == ' ' || line.front() == '\t') continue;
    const std::size_t equals = trimmed.find('=');
    if (trimmed.front() == '[' && trimmed.back() == ']') {
      section = &sections[std::string(Trim(trimmed.substr(1, trimmed.size() - 2)))];
    } else if (equals == std::string_view::npos || section == nullptr) {
      return Fail(
          Code::kCorrupt,
          fmt::format("{}:{}: neither [section] nor name = value inside one", path, number));
    } else {
      section->insert_or_assign(std::string(Trim(trimmed.substr(0, equals))),
                                std::string(Trim(trimmed.substr(equals + 1))));
    }
  }
  return sections;
}

// What a profile says in the two files.
struct Profile {
  std::string name;
  bool found = false;
  Section credentials;
  Section config;

  std::string Either(std::string_view key) const {
    const std::string value = Get(config, key);
    return value.empty() ? Get(credentials, key) : value;
  }
};

class Loader {
 public:
  Loader(FileSystem& files, const Environment& environment)
      : files_(files), environment_(environment) {}

  Result<S3Config> Load(const Settings& settings) {
    SYNCLINE_ASSIGN(const Profile profile, ReadProfile());
    S3Config config;
    config.region = First({settings.region, Variable("AWS_REGION"), Variable("AWS_DEFAULT_REGION"),
                           profile.Either("region"), "us-east-1"});
    config.endpoint = First({settings.endpoint, Variable("AWS_ENDPOINT_URL_S3"),
                             Variable("AWS_ENDPOINT_URL"), profile.Either("endpoint_url")});
    SYNCLINE_ASSIGN(config.credentials, FindCredentials(profile));
    return config;
  }

 private:
  std::string Variable(const char* name) const { return environment_(name).value_or(""); }

  static std::string First(std::initializer_list<std::string> values) {
    for (const std::string& value : values) {
      if (!value.empty()) return value;
    }
    return "";
  }

  // Where AWS' tools look, unless a variable says another place; empty: nowhere.
  std::string FilePath(const char* variable, std::string_view name) const {
    std::string path = Variable(variable);
    if (!path.empty()) return path;
    const std::string home = Variable("HOME");
    return home.empty() ? "" : fmt::format("{}/.aws/{}", home, name);
  }

  Result<Profile> ReadProfile() const {
    const std::string named = First({Variable("AWS_PROFILE"), Variable("AWS_DEFAULT_PROFILE")});
    Profile profile{.name = named.empty() ? "default" : named};
    const std::string credentials_path = FilePath("AWS_SHARED_CREDENTIALS_FILE", "credentials");
    if (!credentials_path.empty()) {
      SYNCLINE_ASSIGN(Sections sections, ReadSections(files_, credentials_path));
      profile.found |= sections.contains(profile.name);
      profile.credentials = sections[profile.name];
    }
    const std::string config_path = FilePath("AWS_CONFIG_FILE", "config");
    if (!config_path.empty()) {
      SYNCLINE_ASSIGN(Sections sections, ReadSections(files_, config_path));
      std::string section = "profile " + profile.name;
      if (profile.name == "default" && !sections.contains(section)) section = "default";
      profile.found |= sections.contains(section);
      profile.config = sections[section];
    }
    if (named.empty() || profile.found) return profile;
    return Fail(Code::kInvalidArgument, fmt::format("there is no profile '{}' in {} or {}", named,
                                                    credentials_path, config_path));
  }

  static Result<Credentials> Pair(Credentials credentials, const std::string& where) {
    if (credentials.access_key.empty() == credentials.secret_key.empty()) return credentials;
    return Fail(
        Code::kInvalidArgument,
        fmt::format("{} has {} without {}", where,
                    credentials.access_key.empty() ? "a secret access key" : "an access key",
                    credentials.access_key.empty() ? "an access key" : "a secret access key"));
  }

  Result<Credentials> FindCredentials(const Profile& profile) const {
    SYNCLINE_ASSIGN(Credentials found, Pair({.access_key = Variable("AWS_ACCESS_KEY_ID"),
                                             .secret_key = Variable("AWS_SECRET_ACCESS_KEY"),
                                             .session_token = Variable("AWS_SESSION_TOKEN")},
                                            "the environment"));
    if (!found.access_key.empty()) return found;
    for (const Section* section : {&profile.credentials, &profile.config}) {
      SYNCLINE_ASSIGN(found, Pair({.access_key = Get(*section, "aws_access_key_id"),
                                   .secret_key = Get(*section, "aws_secret_access_key"),
                                   .session_token = Get(*section, "aws_session_token")},
                                  fmt::format("profile '{}'", profile.name)));
      if (!found.access_key.empty()) return found;
    }
    for (const char* other : {"role_arn", "sso_session", "sso_start_url", "credential_process",
                              "web_identity_token_file"}) {
      if (profile.Either(other).empty()) continue;
      return NotSupported(fmt::format("profile '{}'", profile.name), other);
    }
    for (const char* other : {"AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
                              "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"}) {
      if (!Variable(other).empty()) return NotSupported("the environment", other);
    }
    return Credentials();
  }

  static std::unexpected<base::Error> NotSupported(std::string_view who, std::string_view way) {
    return Fail(Code::kIncompatible,
                fmt::format("{} gets its credentials by {}, which is not supported: set "
                            "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN",
                            who, way));
  }

  FileSystem& files_;
  const Environment& environment_;
};

}  // namespace

Environment ProcessEnvironment() {
  return [](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

Result<S3Config> LoadS3Config(FileSystem& files, const Environment& environment,
                              const Settings& settings) {
  return Loader(files, environment).Load(settings);
}

}  // namespace syncline::objects
