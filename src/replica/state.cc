#include "replica/state.h"

#include <fmt/format.h>

#include <charconv>
#include <chrono>
#include <thread>
#include <utility>

#include "base/json.h"

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
constexpr std::uint64_t kFormat = 1;
constexpr std::uint64_t kMaxMarkerBytes = 1 << 16;
constexpr std::uint64_t kMaxHeadBytes = 256'000'000;

std::optional<std::uint64_t> ParseVersion(const Json* json) {
  if (json == nullptr) return std::nullopt;
  if (json->unsigned_integer() != nullptr) return *json->unsigned_integer();
  if (json->string() == nullptr) return std::nullopt;
  const std::string& text = *json->string();
  std::uint64_t version = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), version);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return version;
}

// "xxh3-128:0123…"
std::optional<TensorHash> ParseHash(const Json& json) {
  if (json.string() == nullptr) return std::nullopt;
  const std::string& text = *json.string();
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos) return std::nullopt;
  const auto kind = tensor::FindHashKind(text.substr(0, colon));
  if (!kind) return std::nullopt;
  return TensorHash{*kind, text.substr(colon + 1)};
}

std::optional<Head> ParseHead(std::string_view text) {
  const Result<Json> json = base::ParseJson(text);
  if (!json) return std::nullopt;
  const Json* format = json->Find("format");
  if (format == nullptr || format->unsigned_integer() == nullptr ||
      *format->unsigned_integer() != kFormat) {
    return std::nullopt;
  }
  const auto version = ParseVersion(json->Find("version"));
  const Json* boot_id = json->Find("boot_id");
  const Json* hashes = json->Find("hashes");
  if (!version || boot_id == nullptr || boot_id->string() == nullptr || hashes == nullptr ||
      hashes->object() == nullptr) {
    return std::nullopt;
  }
  Head head{.version = *version, .boot_id = *boot_id->string()};
  for (const auto& [name, value] : *hashes->object()) {
    const auto hash = ParseHash(value);
    if (!hash) return std::nullopt;
    head.hashes.emplace(name, *hash);
  }
  return head;
}

// The text of a file; nothing if it is not there.
Result<std::optional<std::string>> ReadIfThere(base::FileSystem& files, const std::string& path,
                                               std::uint64_t limit) {
  Result<std::string> text = base::ReadText(files, path, limit);
  if (text) return *std::move(text);
  if (text.error().code == Code::kNotFound) return std::nullopt;
  return std::unexpected(std::move(text).error());
}

}  // namespace

ReplicaState::ReplicaState(base::FileSystem& files, std::string directory)
    : files_(files), directory_(std::move(directory)) {}

std::string ReplicaState::Path(std::string_view name) const {
  return base::JoinPath(base::JoinPath(directory_, kFolder), name);
}

Result<bool> ReplicaState::IsReplica() const {
  return base::Exists(files_, base::JoinPath(directory_, kFolder));
}

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

Result<std::optional<std::uint64_t>> ReplicaState::ReadMarker() const {
  SYNCLINE_ASSIGN(const auto text, ReadIfThere(files_, Path(kMarker), kMaxMarkerBytes));
  if (!text) return std::nullopt;
  const Result<Json> json = base::ParseJson(*text);
  if (!json) return std::nullopt;
  return ParseVersion(json->Find("version"));
}

Status ReplicaState::WithdrawMarker() const {
  const Status status = files_.Remove(Path(kMarker));
  if (!status && status.error().code == Code::kNotFound) return {};
  return status;
}

Status ReplicaState::PublishMarker(std::uint64_t version) const {
  const std::string text = fmt::format("{{\"version\": \"{:06}\"}}", version);
  return base::WriteTextAtomically(files_, Path(kMarker), text, false);
}

Result<std::optional<Head>> ReplicaState::ReadHead(std::uint64_t version) const {
  SYNCLINE_ASSIGN(const auto text, ReadIfThere(files_, Path(kHead), kMaxHeadBytes));
  if (!text) return std::nullopt;
  std::optional<Head> head = ParseHead(*text);
  if (!head || head->version != version) return std::nullopt;
  return head;
}

Status ReplicaState::WriteHead(const Head& head) const {
  Json::Object hashes;
  hashes.reserve(head.hashes.size());
  for (const auto& [name, hash] : head.hashes) {
    hashes.emplace_back(name, fmt::format("{}:{}", Name(hash.kind), hash.hex));
  }
  const Json json(Json::Object{{"format", kFormat},
                               {"version", head.version},
                               {"boot_id", head.boot_id},
                               {"hashes", std::move(hashes)}});
  return base::WriteTextAtomically(files_, Path(kHead), ToText(json), false);
}

std::string ReplicaState::BootId() const {
  // A file of the kernel; its size reads as 0, so it is read without asking.
  const auto file =
      base::FileSystem::Posix().Open("/proc/sys/kernel/random/boot_id", base::OpenMode::kRead);
  if (!file) return "";
  std::string text(36, '\0');
  const auto got = (*file)->ReadAt(std::as_writable_bytes(std::span(text)), 0);
  return got && *got == text.size() ? text : "";
}

}  // namespace syncline::replica
