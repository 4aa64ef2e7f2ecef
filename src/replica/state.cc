// What a replica knows of itself.
#include "replica/state.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>
#include <utility>

#include "base/json.h"
#include "replica/checked_text.h"
#include "store/version.h"

namespace syncline::replica {
namespace {

using base::Code;
using base::Json;
using base::Result;
using base::Status;

// How often a taken lock is tried again: flock(2) itself cannot be cancelled.
constexpr std::chrono::milliseconds kLockInterval{20};
constexpr std::string_view kFolder = ".weight_sync";
constexpr std::string_view kMarker = "state.json";
constexpr std::string_view kHead = "syncline.json";
constexpr std::uint64_t kFormat = 2;
constexpr std::uint64_t kMaxMarkerBytes = 1 << 16;
constexpr std::uint64_t kMaxHeadBytes = 256'000'000;

// The string of that name; empty if it is missing, nothing if it is of another type.
std::optional<std::string> ParseText(const Json& json, std::string_view key) {
  const Json* value = json.Find(key);
  if (value == nullptr) return "";
  if (value->string() == nullptr) return std::nullopt;
  return *value->string();
}

// Null: none is known. False: `json` is something else.
bool ParseDigests(const Json* json, Head& head) {
  if (json == nullptr) return true;
  if (json->object() == nullptr) return false;
  for (const auto& [name, value] : *json->object()) {
    if (value.string() == nullptr) return false;
    const auto digest = tensor::Digest::Parse(*value.string());
    if (!digest) return false;
    head.digests.emplace(name, *digest);
  }
  return true;
}

std::optional<Head> ParseHead(std::string_view text) {
  const auto body = CheckedBody("head", text);
  if (!body) return std::nullopt;
  const Result<Json> json = base::ParseJson(*body);
  if (!json) return std::nullopt;
  const Json* format = json->Find("format");
  if (format == nullptr || format->unsigned_integer() == nullptr ||
      *format->unsigned_integer() != kFormat) {
    return std::nullopt;
  }
  const auto held = ParseHeld(json->Find("held"));
  const auto boot_id = ParseText(*json, "boot_id");
  const auto source = ParseText(*json, "source");
  const auto seed = ParseText(*json, "seed");
  const auto stamp = ParseText(*json, "stamp");
  const Json* hashes = json->Find("hashes");
  const Json* rests = json->Find("rests");
  if (!held || !boot_id || !source || !seed || !stamp || hashes == nullptr ||
      hashes->object() == nullptr || rests == nullptr || rests->object() == nullptr) {
    return std::nullopt;
  }
  const auto source_path = UnescapePath(*source);
  const auto seed_path = UnescapePath(*seed);
  if (!source_path || !seed_path) return std::nullopt;
  Head head{.held = *held,
            .boot_id = *boot_id,
            .source = *source_path,
            .seed = *seed_path,
            .stamp = *stamp};
  for (const auto& [name, value] : *hashes->object()) {
    const auto hash = ParseHash(value);
    if (!hash) return std::nullopt;
    head.hashes.emplace(name, *hash);
  }
  if (!ParseDigests(json->Find("digests"), head)) return std::nullopt;
  for (const auto& [name, value] : *rests->object()) {
    auto path = UnescapePath(name);
    if (value.string() == nullptr || !path || !base::IsInsidePath(*path)) return std::nullopt;
    head.rests.emplace(*std::move(path), *value.string());
  }
  return head;
}

}  // namespace

void Head::SetTensor(const std::string& name, TensorHash hash,
                     std::optional<tensor::Digest> digest) {
  hashes.insert_or_assign(name, std::move(hash));
  if (digest) {
    digests.insert_or_assign(name, *digest);
  } else {
    digests.erase(name);
  }
}

std::string DrawToken() { return base::RandomHex(16); }

Json::Object HeldJson(const HeldVersion& held) {
  return {{"version", held.version},
          {"token", held.token},
          {"run", held.run},
          {"identity", held.identity}};
}

std::optional<HeldVersion> ParseHeld(const Json* json) {
  if (json == nullptr || json->object() == nullptr) return std::nullopt;
  const auto version = store::VersionNumber(json->Find("version"));
  const auto token = ParseText(*json, "token");
  const auto run = ParseText(*json, "run");
  const auto identity = ParseText(*json, "identity");
  if (!version || !token || !run || !identity) return std::nullopt;
  return HeldVersion{*version, *token, *run, *identity};
}

std::string HashText(const TensorHash& hash) {
  return fmt::format("{}:{}", Name(hash.kind), hash.hex);
}

std::optional<TensorHash> ParseHash(const Json& json) {
  if (json.string() == nullptr) return std::nullopt;
  const std::string& text = *json.string();
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos) return std::nullopt;
  const auto kind = tensor::FindHashKind(text.substr(0, colon));
  if (!kind) return std::nullopt;
  return TensorHash{*kind, text.substr(colon + 1)};
}

ReplicaState::ReplicaState(base::FileSystem& files, std::string directory, std::string boot_id)
    : files_(files),
      directory_(std::move(directory)),
      boot_id_(boot_id.empty() ? base::ReadKernelText("/proc/sys/kernel/random/boot_id")
                               : std::move(boot_id)) {}

std::string ReplicaState::Path(std::string_view name) const {
  const std::string folder = base::JoinPath(directory_, kFolder);
  return name.empty() ? folder : base::JoinPath(folder, name);
}

Result<bool> ReplicaState::IsReplica() const { return base::Exists(files_, Path("")); }

Result<std::unique_ptr<base::FileLock>> ReplicaState::Lock(base::LockMode mode,
                                                           const base::CancelToken* cancel) const {
  if (cancel == nullptr) return files_.Lock(Path("lock"), mode, true);
  while (true) {
    auto lock = files_.Lock(Path("lock"), mode, false);
    if (lock || lock.error().code != Code::kLocked) return lock;
    SYNCLINE_TRY(cancel->Check());
    std::this_thread::sleep_for(kLockInterval);
  }
}

Result<std::optional<Marker>> ReplicaState::ReadMarker() const {
  SYNCLINE_ASSIGN(const auto text, base::ReadTextIfThere(files_, Path(kMarker), kMaxMarkerBytes));
  if (!text) return std::nullopt;
  const Result<Json> json = base::ParseJson(*text);
  if (!json) return std::nullopt;
  const auto version = store::VersionNumber(json->Find("version"));
  const auto token = ParseText(*json, "syncline");
  if (!version || !token) return std::nullopt;
  return Marker{*version, *token};
}

Status ReplicaState::WithdrawMarker() const {
  const Status status = files_.Remove(Path(kMarker));
  if (!status && status.error().code != Code::kNotFound) return status;
  return files_.SyncDirectory(Path(""));
}

Status ReplicaState::PublishMarker(const HeldVersion& held, bool durable) const {
  const std::string text =
      fmt::format(R"({{"version": "{:06}", "syncline": "{}"}})", held.version, held.token);
  return base::WriteTextAtomically(files_, Path(kMarker), text, durable);
}

Result<std::optional<Head>> ReplicaState::ReadHead() const { return ReadHeadFile(Path(kHead)); }

Status ReplicaState::WriteHead(const Head& head) const { return WriteHeadFile(Path(kHead), head); }

Result<std::optional<Head>> ReplicaState::ReadHeadFile(const std::string& path) const {
  SYNCLINE_ASSIGN(const auto text, base::ReadTextIfThere(files_, path, kMaxHeadBytes));
  if (!text) return std::nullopt;
  return ParseHead(*text);
}

Status ReplicaState::WriteHeadFile(const std::string& path, const Head& head) const {
  Json::Object hashes;
  Json::Object digests;
  Json::Object rests;
  for (const auto& [name, hash] : head.hashes) hashes.emplace_back(name, HashText(hash));
  for (const auto& [name, digest] : head.digests) digests.emplace_back(name, digest.Hex());
  for (const auto& [name, hash] : head.rests) rests.emplace_back(EscapePath(name), hash);
  const Json json(Json::Object{{"format", kFormat},
                               {"held", HeldJson(head.held)},
                               {"boot_id", head.boot_id},
                               {"source", EscapePath(head.source)},
                               {"seed", EscapePath(head.seed)},
                               {"stamp", head.stamp},
                               {"hashes", std::move(hashes)},
                               {"digests", std::move(digests)},
                               {"rests", std::move(rests)}});
  return base::WriteTextAtomically(files_, path, CheckedText("head", ToText(json)), true);
}

}  // namespace syncline::replica
