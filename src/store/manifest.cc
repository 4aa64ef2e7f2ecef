#include "store/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/json.h"
#include "store/file_hash.h"
#include "store/signature.h"
#include "tensor/hash.h"

namespace syncline::store {
namespace {

using base::Code;
using base::Fail;
using base::FileSystem;
using base::Json;
using base::Result;
using base::Status;

constexpr std::uint64_t kFormat = 2;
constexpr std::size_t kRunDigits = 32;
constexpr std::size_t kSha256Digits = 64;
constexpr std::size_t kXxh3Digits = 32;
constexpr std::string_view kDigestMember = "digest";
constexpr std::string_view kCopyMember = "copy_tensors";

struct Field {
  std::string_view name;
  std::uint64_t Manifest::* value;
};
constexpr std::array<Field, 7> kFields = {{
    {"version", &Manifest::version},
    {"created_ns", &Manifest::created_ns},
    {"tensors_total", &Manifest::tensors_total},
    {"elements", &Manifest::elements},
    {"elements_changed", &Manifest::elements_changed},
    {"full_bytes", &Manifest::full_bytes},
    {"chain_bytes", &Manifest::chain_bytes},
}};

std::unexpected<base::Error> Corrupt(std::string message) {
  return Fail(Code::kCorrupt, std::move(message));
}

Result<std::uint64_t> Number(const Json* json, std::string_view name) {
  if (json != nullptr && json->unsigned_integer() != nullptr) return *json->unsigned_integer();
  return Corrupt(fmt::format("\"{}\" is missing or not an unsigned integer", name));
}

Result<std::string> Text(const Json* json, std::string_view name) {
  if (json != nullptr && json->string() != nullptr) return *json->string();
  return Corrupt(fmt::format("\"{}\" is missing or not a string", name));
}

Result<std::string> Hex(const Json* json, std::string_view name, std::size_t digits) {
  SYNCLINE_ASSIGN(std::string text, Text(json, name));
  if (IsLowerHex(text, digits)) return text;
  return Corrupt(fmt::format("\"{}\" is not {} lower-case hex digits", name, digits));
}

Result<const Json::Object*> Members(const Json& json, std::string_view name) {
  const Json* value = json.Find(name);
  if (value != nullptr && value->object() != nullptr) return value->object();
  return Corrupt(fmt::format("\"{}\" is missing or not an object", name));
}

// `hashed`: it must have a hash; else it has none.
Result<ManifestTensor> ParseTensor(const std::string& name, const Json& json, bool hashed) {
  ManifestTensor tensor{.name = name};
  SYNCLINE_ASSIGN(const std::string dtype, Text(json.Find("dtype"), "dtype"));
  const auto known = tensor::FindDtype(dtype);
  if (!known) return Fail(Code::kIncompatible, fmt::format("unknown dtype {}", dtype));
  tensor.dtype = *known;
  const Json* shape = json.Find("shape");
  if (shape == nullptr || shape->array() == nullptr) return Corrupt("\"shape\" is not a list");
  for (const Json& size : *shape->array()) {
    SYNCLINE_ASSIGN(const std::uint64_t number, Number(&size, "shape"));
    tensor.shape.push_back(number);
  }
  if (hashed) {
    const std::string_view hash = Name(tensor::HashKind::kXxh3);
    SYNCLINE_ASSIGN(tensor.hash, Hex(json.Find(hash), hash, kXxh3Digits));
  }
  if (const Json* digest = json.Find(kDigestMember); digest != nullptr) {
    SYNCLINE_ASSIGN(const std::string text, Text(digest, kDigestMember));
    tensor.digest = tensor::Digest::Parse(text);
    if (!tensor.digest) return Corrupt("\"digest\" is not 32 lower-case hex digits");
  }
  return tensor;
}

Result<ManifestFile> ParseFile(const std::string& name, const Json& json) {
  if (!base::IsInsidePath(name)) return Corrupt("is not inside the directory");
  if (name == kManifestName || name == kSignatureName) return Corrupt("cannot be listed");
  ManifestFile file{.name = name};
  SYNCLINE_ASSIGN(file.bytes, Number(json.Find("bytes"), "bytes"));
  SYNCLINE_ASSIGN(file.sha256, Hex(json.Find("sha256"), "sha256", kSha256Digits));
  return file;
}

bool Add(std::uint64_t& sum, std::uint64_t value) {
  return !__builtin_add_overflow(sum, value, &sum);
}

// What tensors add up to must fit the totals: be the same, if they are `all` of the model.
Status CheckTensorSums(const Manifest& manifest, const std::vector<ManifestTensor>& tensors,
                       bool all) {
  std::uint64_t elements = 0;
  std::uint64_t bytes = 0;
  for (const ManifestTensor& tensor : tensors) {
    const auto fail = [&](std::string_view what) {
      return Corrupt(fmt::format("tensor {} of shape {} {}", tensor.name,
                                 tensor::ShapeText(tensor.shape), what));
    };
    const auto count = tensor::ElementCount(tensor.shape);
    const auto size = tensor::ByteCount(tensor.dtype, tensor.shape);
    if (!count || !size) return fail("cannot be");
    if (!Add(elements, *count) || !Add(bytes, *size)) return fail("makes the model too large");
  }
  const std::array<std::tuple<std::string_view, std::uint64_t, std::uint64_t>, 3> sums = {{
      {"tensors", tensors.size(), manifest.tensors_total},
      {"elements", elements, manifest.elements},
      {"bytes", bytes, manifest.full_bytes},
  }};
  for (const auto& [what, found, total] : sums) {
    if (all ? found == total : found <= total) continue;
    return Corrupt(fmt::format("its tensors have {} {}, the model {}", found, what, total));
  }
  return {};
}

Status CheckSums(const Manifest& manifest) {
  SYNCLINE_TRY(CheckTensorSums(manifest, manifest.tensors, !manifest.base_version));
  if (!manifest.copy_tensors.empty()) {
    if (!manifest.base_version || manifest.fold || !HasFullCopy(manifest)) {
      return Corrupt(fmt::format("\"{}\" of a version that carries no full copy", kCopyMember));
    }
    SYNCLINE_TRY(CheckTensorSums(manifest, manifest.copy_tensors, true));
  }
  if (manifest.elements_changed > manifest.elements) {
    return Corrupt(
        fmt::format("{} elements changed of {}", manifest.elements_changed, manifest.elements));
  }
  std::uint64_t file_bytes = 0;
  for (const ManifestFile& file : manifest.files) {
    if (!Add(file_bytes, file.bytes)) {
      return Corrupt(fmt::format("file {} of {} bytes makes it too large", file.name, file.bytes));
    }
  }
  return {};
}

Status ParseHead(const Json& json, Manifest& manifest) {
  SYNCLINE_ASSIGN(manifest.run, Hex(json.Find("run"), "run", kRunDigits));
  for (const Field& field : kFields) {
    SYNCLINE_ASSIGN(manifest.*field.value, Number(json.Find(field.name), field.name));
  }
  const Json* base = json.Find("base_version");
  if (base == nullptr) return Corrupt("\"base_version\" is missing");
  if (!base->is_null()) {
    SYNCLINE_ASSIGN(manifest.base_version, Number(base, "base_version"));
    if (*manifest.base_version >= manifest.version) {
      return Corrupt(fmt::format("version {} cannot build on version {}", manifest.version,
                                 *manifest.base_version));
    }
  }
  const Json* parent = json.Find("parent");
  if (parent == nullptr) return Corrupt("\"parent\" is missing");
  if (!parent->is_null()) {
    SYNCLINE_ASSIGN(manifest.parent, Hex(parent, "parent", kSha256Digits));
  }
  return {};
}

Status ParseFold(const Json& json, Manifest& manifest) {
  const Json* fold = json.Find("fold");
  if (fold == nullptr) return {};
  const Json* base = fold->Find("base");
  if (fold->object() == nullptr || base == nullptr) {
    return Corrupt("\"fold\" is not an object with a \"base\"");
  }
  ManifestFold ends;
  SYNCLINE_ASSIGN(ends.target, Hex(fold->Find("target"), "target", kSha256Digits));
  if (!base->is_null()) {
    SYNCLINE_ASSIGN(ends.base, Hex(base, "base", kSha256Digits));
  }
  if (!manifest.base_version || ends.base != manifest.parent) {
    return Corrupt("a fold must be a delta whose parent is its base");
  }
  manifest.fold = std::move(ends);
  return {};
}

// By name.
Result<std::vector<ManifestTensor>> ParseTensorsIn(const Json& json, std::string_view member,
                                                   bool hashed) {
  SYNCLINE_ASSIGN(const Json::Object* members, Members(json, member));
  std::vector<ManifestTensor> tensors;
  for (const auto& [name, value] : *members) {
    auto tensor = ParseTensor(name, value, hashed);
    if (!tensor) return Annotate(std::move(tensor).error(), "tensor " + name);
    tensors.push_back(*std::move(tensor));
  }
  std::ranges::sort(tensors, {}, &ManifestTensor::name);
  return tensors;
}

Status ParseTensors(const Json& json, Manifest& manifest) {
  const Json* found = json.Find("tensors");
  manifest.tensors_in_files = found != nullptr && found->is_null() && manifest.base_version;
  if (!manifest.tensors_in_files) {
    SYNCLINE_ASSIGN(manifest.tensors, ParseTensorsIn(json, "tensors", true));
  }
  if (json.Find(kCopyMember) == nullptr) return {};
  SYNCLINE_ASSIGN(manifest.copy_tensors, ParseTensorsIn(json, kCopyMember, false));
  return {};
}

Json TensorsJson(const std::vector<ManifestTensor>& tensors) {
  Json::Object object;
  for (const ManifestTensor& tensor : tensors) {
    Json::Object members = {{"dtype", Name(tensor.dtype)},
                            {"shape", Json::Array(tensor.shape.begin(), tensor.shape.end())}};
    if (!tensor.hash.empty()) {
      members.emplace_back(std::string(Name(tensor::HashKind::kXxh3)), tensor.hash);
    }
    if (tensor.digest) members.emplace_back(kDigestMember, tensor.digest->Hex());
    object.emplace_back(tensor.name, std::move(members));
  }
  return Json(std::move(object));
}

}  // namespace

std::string ManifestText(const Manifest& manifest) {
  Json::Object json = {{"format", kFormat}, {"run", manifest.run}};
  for (const Field& field : kFields) json.emplace_back(field.name, manifest.*field.value);
  json.emplace_back("base_version", manifest.base_version ? Json(*manifest.base_version) : Json());
  json.emplace_back("parent", manifest.parent.empty() ? Json() : Json(manifest.parent));
  if (manifest.fold) {
    const std::string& base = manifest.fold->base;
    json.emplace_back("fold", Json::Object{{"base", base.empty() ? Json() : Json(base)},
                                           {"target", manifest.fold->target}});
  }
  json.emplace_back("tensors", manifest.tensors_in_files ? Json() : TensorsJson(manifest.tensors));
  if (!manifest.copy_tensors.empty()) {
    json.emplace_back(kCopyMember, TensorsJson(manifest.copy_tensors));
  }
  Json::Object files;
  for (const ManifestFile& file : manifest.files) {
    files.emplace_back(file.name, Json::Object{{"bytes", file.bytes}, {"sha256", file.sha256}});
  }
  json.emplace_back("files", std::move(files));
  return ToText(Json(std::move(json))) + "\n";
}

Result<Manifest> ParseManifest(std::string_view text) {
  if (text.size() > kMaxManifestBytes) {
    return Fail(Code::kLimitExceeded, fmt::format("a manifest of {} bytes, the limit is {}",
                                                  text.size(), kMaxManifestBytes));
  }
  SYNCLINE_ASSIGN(const Json json, base::ParseJson(text));
  SYNCLINE_ASSIGN(const std::uint64_t format, Number(json.Find("format"), "format"));
  if (format != kFormat) {
    return Fail(Code::kIncompatible,
                fmt::format("manifest of format {}, expected {}", format, kFormat));
  }
  Manifest manifest;
  SYNCLINE_TRY(ParseHead(json, manifest));
  SYNCLINE_TRY(ParseFold(json, manifest));
  SYNCLINE_TRY(ParseTensors(json, manifest));
  SYNCLINE_ASSIGN(const Json::Object* files, Members(json, "files"));
  for (const auto& [name, value] : *files) {
    auto file = ParseFile(name, value);
    if (!file) return Annotate(std::move(file).error(), "file " + name);
    manifest.files.push_back(*std::move(file));
  }
  std::ranges::sort(manifest.files, {}, &ManifestFile::name);
  SYNCLINE_TRY(CheckSums(manifest));
  return manifest;
}

bool IsTree(const Manifest& manifest) {
  if (manifest.base_version) return false;
  bool in_folders = false;
  for (const ManifestFile& file : manifest.files) {
    if (!file.name.ends_with(".safetensors")) continue;
    if (!file.name.contains('/')) return false;
    in_folders = true;
  }
  return in_folders;
}

bool IsOfFullCopy(std::string_view name) {
  return name.starts_with(kFullCopyFolder) && name.substr(kFullCopyFolder.size()).starts_with('/');
}

bool HasFullCopy(const Manifest& manifest) {
  return std::ranges::any_of(manifest.files,
                             [](const ManifestFile& file) { return IsOfFullCopy(file.name); });
}

std::string Identity(std::string_view manifest_text) {
  return Sha256Hex(base::AsBytes(manifest_text));
}

std::string DrawRun() { return base::RandomHex(kRunDigits / 2); }

Result<ReadManifestResult> TakeManifest(std::string text, const std::string& where) {
  Result<Manifest> manifest = ParseManifest(text);
  if (!manifest) return Annotate(std::move(manifest).error(), where);
  std::string identity = Identity(text);
  return ReadManifestResult{*std::move(manifest), std::move(text), std::move(identity)};
}

Result<std::optional<ReadManifestResult>> ReadManifest(FileSystem& files,
                                                       const std::string& directory) {
  const std::string path = base::JoinPath(directory, kManifestName);
  SYNCLINE_ASSIGN(std::optional<std::string> text,
                  base::ReadTextIfThere(files, path, kMaxManifestBytes));
  if (!text) return std::nullopt;
  // An identity that came of a wrong read would be handed on for ever.
  SYNCLINE_ASSIGN(const std::string again, base::ReadText(files, path, kMaxManifestBytes));
  if (again != *text) {
    return Fail(Code::kCorrupt, fmt::format("{} changed while it was read", path));
  }
  return TakeManifest(*std::move(text), path);
}

Result<std::vector<ManifestFile>> ListFiles(FileSystem& files, const std::string& directory,
                                            std::span<const std::string> names,
                                            base::ThreadPool& pool,
                                            const base::CancelToken* cancel) {
  std::vector<std::string> paths;
  paths.reserve(names.size());
  for (const std::string& name : names) paths.push_back(base::JoinPath(directory, name));
  SYNCLINE_ASSIGN(std::vector<FileHash> hashes, HashFiles(files, paths, pool, cancel));
  SYNCLINE_ASSIGN(const std::vector<FileHash> again, HashFiles(files, paths, pool, cancel));
  std::vector<ManifestFile> listed;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    if (hashes[i].sha256 != again[i].sha256) {
      return Fail(Code::kChecksumMismatch,
                  fmt::format("{} was read as two different files", paths[i]));
    }
    listed.push_back({names[i], hashes[i].bytes, std::move(hashes[i].sha256)});
  }
  std::ranges::sort(listed, {}, &ManifestFile::name);
  return listed;
}

Status CheckFiles(FileSystem& files, const std::string& directory, const Manifest& manifest,
                  Part part, bool hash, base::ThreadPool& pool, const base::CancelToken* cancel) {
  std::vector<const ManifestFile*> wanted;
  std::vector<std::string> paths;
  for (const ManifestFile& file : manifest.files) {
    const bool of_copy = IsOfFullCopy(file.name);
    if (part == (of_copy ? Part::kVersion : Part::kFullCopy)) continue;
    const std::string path = base::JoinPath(directory, file.name);
    SYNCLINE_ASSIGN(const base::FileInfo info, files.Stat(path));
    if (info.kind != base::FileInfo::Kind::kFile || info.size != file.bytes) {
      return Corrupt(
          fmt::format("{} has {} bytes, the manifest says {}", path, info.size, file.bytes));
    }
    wanted.push_back(&file);
    paths.push_back(path);
  }
  if (!hash) return {};
  SYNCLINE_ASSIGN(const std::vector<FileHash> hashes, HashFiles(files, paths, pool, cancel));
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    if (hashes[i].bytes == wanted[i]->bytes && hashes[i].sha256 == wanted[i]->sha256) continue;
    return Fail(Code::kChecksumMismatch,
                fmt::format("{} has the SHA-256 {}, the manifest says {}", paths[i],
                            hashes[i].sha256, wanted[i]->sha256));
  }
  return {};
}

}  // namespace syncline::store
