#include "store/manifest.h"

#include <fmt/format.h>

#include <array>

#include "base/json.h"

namespace syncline::store {
namespace {

using base::Code;
using base::Fail;
using base::FileSystem;
using base::Json;
using base::Result;
using base::Status;

constexpr std::uint64_t kFormat = 1;

struct Field {
  std::string_view name;
  std::uint64_t Manifest::* value;
};
constexpr std::array<Field, 7> kFields = {{
    {"version", &Manifest::version},
    {"created_ns", &Manifest::created_ns},
    {"tensors", &Manifest::tensors},
    {"tensors_changed", &Manifest::tensors_changed},
    {"elements", &Manifest::elements},
    {"elements_changed", &Manifest::elements_changed},
    {"full_bytes", &Manifest::full_bytes},
}};

Result<std::uint64_t> Number(const Json* json, std::string_view name) {
  if (json != nullptr && json->unsigned_integer() != nullptr) return *json->unsigned_integer();
  return Fail(Code::kCorrupt, fmt::format("\"{}\" is missing or not an unsigned integer", name));
}

}  // namespace

std::string ManifestText(const Manifest& manifest) {
  Json::Object json = {{"format", kFormat}};
  for (const Field& field : kFields) json.emplace_back(field.name, manifest.*field.value);
  json.emplace_back("base_version", manifest.base_version ? Json(*manifest.base_version) : Json());
  Json::Object files;
  for (const auto& [name, size] : manifest.files) files.emplace_back(name, size);
  json.emplace_back("files", std::move(files));
  return ToText(Json(std::move(json)), true) + "\n";
}

Result<Manifest> ParseManifest(std::string_view text) {
  SYNCLINE_ASSIGN(const Json json, base::ParseJson(text));
  SYNCLINE_ASSIGN(const std::uint64_t format, Number(json.Find("format"), "format"));
  if (format != kFormat) {
    return Fail(Code::kIncompatible, fmt::format("format {}, expected {}", format, kFormat));
  }
  Manifest manifest;
  for (const Field& field : kFields) {
    SYNCLINE_ASSIGN(manifest.*field.value, Number(json.Find(field.name), field.name));
  }
  if (const Json* base = json.Find("base_version"); base != nullptr && !base->is_null()) {
    SYNCLINE_ASSIGN(manifest.base_version, Number(base, "base_version"));
  }
  const Json* files = json.Find("files");
  if (files == nullptr || files->object() == nullptr) {
    return Fail(Code::kCorrupt, "\"files\" is missing or not an object");
  }
  for (const auto& [name, size] : *files->object()) {
    if (!base::IsInsidePath(name)) {
      return Fail(Code::kCorrupt, fmt::format("file {} is not inside the directory", name));
    }
    SYNCLINE_ASSIGN(const std::uint64_t bytes, Number(&size, name));
    manifest.files.emplace_back(name, bytes);
  }
  return manifest;
}

Result<std::optional<Manifest>> ReadManifest(FileSystem& files, const std::string& directory) {
  const std::string path = base::JoinPath(directory, kManifestName);
  SYNCLINE_ASSIGN(const bool there, base::Exists(files, path));
  if (!there) return std::nullopt;
  SYNCLINE_ASSIGN(const std::string text, base::ReadText(files, path, kMaxManifestBytes));
  Result<Manifest> manifest = ParseManifest(text);
  if (!manifest) return Annotate(std::move(manifest).error(), path);
  return *std::move(manifest);
}

Status CheckFiles(FileSystem& files, const std::string& directory, const Manifest& manifest) {
  for (const auto& [name, size] : manifest.files) {
    const std::string path = base::JoinPath(directory, name);
    SYNCLINE_ASSIGN(const base::FileInfo info, files.Stat(path));
    if (info.size != size) {
      return Fail(Code::kCorrupt,
                  fmt::format("{} has {} bytes, the manifest says {}", path, info.size, size));
    }
  }
  return {};
}

}  // namespace syncline::store
