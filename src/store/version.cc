#include "store/version.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <set>
#include <utility>

#include "checkpoint/components.h"
#include "checkpoint/safetensors.h"
#include "store/manifest.h"

namespace syncline::store {
namespace {

using base::Code;
using base::Fail;
using base::FileSystem;
using base::Json;
using base::Result;
using base::Status;

constexpr std::string_view kPrefix = "weight_v";
constexpr std::ptrdiff_t kMaxFolderDepth = 8;  // a link may lead in a circle

std::optional<std::uint64_t> ParseNumber(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

const Json* FindIn(const Json::Object& object, std::string_view key) {
  const auto found = std::ranges::find(object, key, &Json::Member::first);
  return found == object.end() ? nullptr : &found->second;
}

Result<std::string> StringField(const Json::Object& metadata, std::string_view key) {
  const Json* value = FindIn(metadata, key);
  if (value == nullptr || value->string() == nullptr) {
    return Fail(Code::kCorrupt, fmt::format("metadata \"{}\" is missing or not a string", key));
  }
  return *value->string();
}

Result<std::uint64_t> NumberField(const Json::Object& metadata, std::string_view key) {
  const Json* value = FindIn(metadata, key);
  if (const auto number = VersionNumber(value)) return *number;
  return Fail(Code::kCorrupt, fmt::format("metadata \"{}\" is {}, not a version number", key,
                                          value == nullptr ? "missing" : ToText(*value)));
}

std::size_t HexDigits(tensor::HashKind kind) {
  switch (kind) {
    case tensor::HashKind::kXxh3:
      return 32;
    case tensor::HashKind::kBlake3:
      return 64;
    case tensor::HashKind::kAdler32:
      return 8;
  }
  return 0;
}

bool IsHex(std::string_view text) {
  return std::ranges::all_of(text, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
  });
}

std::string Lower(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

// One file of a delta: its frames, which must be those that the index expects of it.
Status AddDeltaFile(FileSystem& files, const std::string& name, std::set<std::string> expected,
                    Version& version) {
  const std::string path = base::JoinPath(version.directory, name);
  SYNCLINE_ASSIGN(const auto file, files.Open(path, base::OpenMode::kRead));
  SYNCLINE_ASSIGN(const checkpoint::SafetensorsHeader header,
                  checkpoint::ReadSafetensorsHeader(*file));
  const std::map<std::string, std::string> hashes(header.metadata.begin(), header.metadata.end());
  for (const checkpoint::TensorInfo& info : header.tensors) {
    const auto fail = [&](std::string_view what) {
      return Fail(Code::kCorrupt, fmt::format("{}: tensor {} {}", path, info.name, what));
    };
    if (expected.erase(info.name) == 0) return fail("is not in the index");
    if (info.dtype != tensor::Dtype::kU8) return fail("is not stored as U8");
    const auto hash = hashes.find(info.name);
    if (hash == hashes.end()) return fail("has no checksum");
    if (hash->second.size() != HexDigits(version.delta->checksum) || !IsHex(hash->second)) {
      return fail(fmt::format("has the checksum {}, which is no {}", hash->second,
                              Name(version.delta->checksum)));
    }
    version.tensors.push_back({.name = info.name,
                               .hash = Lower(hash->second),
                               .file = version.files.size(),
                               .offset = info.offset,
                               .bytes = info.bytes});
  }
  if (!expected.empty()) {
    return Fail(Code::kCorrupt, fmt::format("{}: tensors that the index expects are missing: {}",
                                            path, fmt::join(expected, ", ")));
  }
  version.files.push_back(name);
  return {};
}

// One file of a compact delta.
Status AddCompactFile(FileSystem& files, const std::string& name, Version& version) {
  const std::string path = base::JoinPath(version.directory, name);
  SYNCLINE_ASSIGN(const auto file, files.Open(path, base::OpenMode::kRead));
  SYNCLINE_ASSIGN(const base::FileInfo info, file->Stat());
  const auto read = [&]() -> Result<delta::CompactTable> {
    if (info.size < delta::kCompactPreambleBytes + delta::kCompactTrailerBytes) {
      return Fail(Code::kCorrupt, fmt::format("a file of {} bytes is no delta file", info.size));
    }
    std::array<std::byte, delta::kCompactTrailerBytes> trailer;
    SYNCLINE_TRY(base::ReadExactly(*file, trailer, info.size - trailer.size()));
    SYNCLINE_ASSIGN(const delta::CompactTableRange range,
                    delta::ReadCompactTrailer(trailer, info.size));
    std::vector<std::byte> bytes(range.bytes + trailer.size());
    SYNCLINE_TRY(base::ReadExactly(*file, bytes, range.offset));
    std::array<std::byte, delta::kCompactPreambleBytes> preamble;
    SYNCLINE_TRY(base::ReadExactly(*file, preamble, 0));
    if (base::AsText(preamble) != delta::kCompactPreamble) {
      return Fail(Code::kIncompatible,
                  fmt::format("it does not begin with {}", delta::kCompactPreamble));
    }
    return delta::ReadCompactTable(bytes, range);
  };
  auto table = read();
  if (!table) return Annotate(std::move(table).error(), path);
  for (const delta::CompactCell& cell : table->cells) {
    std::uint64_t bytes = 0;
    for (const delta::CompactFrame& frame : cell.frames) bytes += frame.bytes;
    for (const delta::CompactTensor& tensor : cell.tensors) {
      version.tensors.push_back({.name = tensor.name,
                                 .hash = tensor.hash,
                                 .file = version.files.size(),
                                 .offset = cell.frames.front().offset,
                                 .bytes = std::exchange(bytes, 0),
                                 .digest = tensor.digest});
    }
  }
  version.tables.push_back(*std::move(table));
  version.files.push_back(name);
  return {};
}

Status ReadCompactFiles(FileSystem& files, const checkpoint::Index& index, Version& version) {
  std::set<std::string> names;
  for (const auto& [listing, file] : index.weight_map) {
    if (listing != CompactListing(file)) {
      return Fail(Code::kCorrupt, fmt::format("the index lists {} as {}, expected {}", file,
                                              listing, CompactListing(file)));
    }
    names.insert(file);
  }
  for (const std::string& name : names) SYNCLINE_TRY(AddCompactFile(files, name, version));
  std::ranges::sort(version.tensors, {}, &DeltaTensor::name);
  const auto twice = std::ranges::adjacent_find(version.tensors, {}, &DeltaTensor::name);
  if (twice == version.tensors.end()) return {};
  return Fail(Code::kCorrupt, fmt::format("tensor {} is in it twice", twice->name));
}

Status ReadDeltaFiles(FileSystem& files, const checkpoint::Index& index, Version& version) {
  if (version.delta->encoding == delta::Encoding::kCompact) {
    return ReadCompactFiles(files, index, version);
  }
  std::map<std::string, std::set<std::string>> by_file;
  for (const auto& [tensor, file] : index.weight_map) by_file[file].insert(tensor);
  for (auto& [file, tensors] : by_file) {
    SYNCLINE_TRY(AddDeltaFile(files, file, std::move(tensors), version));
  }
  std::ranges::sort(version.tensors, {}, &DeltaTensor::name);
  return {};
}

}  // namespace

std::uint64_t Version::LargestFrameBytes() const {
  std::uint64_t largest = 0;
  for (const delta::CompactTable& table : tables) {
    for (const delta::CompactCell& cell : table.cells) {
      for (const delta::CompactFrame& frame : cell.frames) largest = std::max(largest, frame.bytes);
    }
  }
  if (!tables.empty()) return largest;
  for (const DeltaTensor& tensor : tensors) largest = std::max(largest, tensor.bytes);
  return largest;
}

std::string CompactListing(std::string_view file) {
  return fmt::format("syncline.{}", file.substr(0, file.rfind('.')));
}

std::string VersionName(std::uint64_t version) { return fmt::format("{}{:06}", kPrefix, version); }

std::optional<std::uint64_t> ParseVersionName(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const auto number = ParseNumber(name.substr(kPrefix.size()));
  // Only the name that we would give it: weight_v7 and weight_v000007 must not be two versions 7.
  if (!number || VersionName(*number) != name) return std::nullopt;
  return number;
}

Json::Object DeltaMetadata(const DeltaInfo& info) {
  return {{"version", fmt::format("{:06}", info.version)},
          {"base_version", fmt::format("{:06}", info.base_version)},
          {"delta_encoding", Name(info.encoding)},
          {"compression_format", "zstd"},
          {"checksum_format", Name(info.checksum)}};
}

Result<std::optional<DeltaInfo>> ParseDeltaInfo(const Json::Object& metadata) {
  if (FindIn(metadata, "delta_encoding") == nullptr) {
    for (const std::string_view key : {"base_version", "compression_format", "checksum_format"}) {
      if (FindIn(metadata, key) == nullptr) continue;
      return Fail(Code::kCorrupt, fmt::format("metadata \"{}\" is there, \"delta_encoding\" is "
                                              "missing",
                                              key));
    }
    return std::nullopt;
  }
  DeltaInfo info;
  SYNCLINE_ASSIGN(info.version, NumberField(metadata, "version"));
  SYNCLINE_ASSIGN(info.base_version, NumberField(metadata, "base_version"));
  SYNCLINE_ASSIGN(const std::string encoding, StringField(metadata, "delta_encoding"));
  SYNCLINE_ASSIGN(const std::string compression, StringField(metadata, "compression_format"));
  SYNCLINE_ASSIGN(const std::string checksum, StringField(metadata, "checksum_format"));
  const auto known_encoding = delta::FindEncoding(encoding);
  const auto known_checksum = tensor::FindHashKind(checksum);
  if (!known_encoding) {
    return Fail(Code::kIncompatible, fmt::format("unknown delta_encoding \"{}\"", encoding));
  }
  if (compression != "zstd") {
    return Fail(Code::kIncompatible, fmt::format("unknown compression_format \"{}\"", compression));
  }
  if (!known_checksum) {
    return Fail(Code::kIncompatible, fmt::format("unknown checksum_format \"{}\"", checksum));
  }
  info.encoding = *known_encoding;
  info.checksum = *known_checksum;
  if (info.encoding == delta::Encoding::kCompact && info.checksum != tensor::HashKind::kXxh3) {
    return Fail(Code::kIncompatible,
                fmt::format("compact with the checksum {}, expected {}", Name(info.checksum),
                            Name(tensor::HashKind::kXxh3)));
  }
  return info;
}

namespace {

// Does a directory without index hold a full version?
Result<bool> HoldsFull(FileSystem& files, const std::string& directory) {
  SYNCLINE_ASSIGN(const bool single,
                  base::Exists(files, base::JoinPath(directory, checkpoint::kSingleFileName)));
  if (single) return true;
  SYNCLINE_ASSIGN(const auto manifest, ReadManifest(files, directory));
  if (manifest) return IsTree(manifest->manifest);
  return base::Exists(files, base::JoinPath(directory, checkpoint::kPipelineIndexName));
}

struct DeltaIndex {
  checkpoint::Index index;
  DeltaInfo info;
};

// Nothing for a full version.
Result<std::optional<DeltaIndex>> ReadDeltaIndex(FileSystem& files, const std::string& store,
                                                 const std::string& folder, std::uint64_t number) {
  const std::string directory = base::JoinPath(store, folder);
  const std::string index_path = base::JoinPath(directory, checkpoint::kIndexName);
  const Result<std::string> text = base::ReadText(files, index_path, checkpoint::kMaxIndexBytes);
  if (!text && text.error().code != Code::kNotFound) return std::unexpected(text.error());
  if (!text) {
    auto full = HoldsFull(files, directory);
    if (!full) return Annotate(std::move(full).error(), fmt::format("version {}", number));
    if (*full) return std::nullopt;
    SYNCLINE_ASSIGN(const bool there, base::Exists(files, directory));
    if (!there) {
      return Fail(Code::kNotFound, fmt::format("version {} is not in {}", number, store));
    }
    return Fail(Code::kCorrupt, fmt::format("version {}: index missing: neither {} nor {}", number,
                                            index_path, checkpoint::kSingleFileName));
  }
  const auto annotate = [&](base::Error error) {
    return Annotate(std::move(error), fmt::format("version {}: {}", number, index_path));
  };
  Result<checkpoint::Index> index = checkpoint::ParseIndex(*text);
  if (!index) return annotate(std::move(index).error());
  auto info = ParseDeltaInfo(index->metadata);
  if (!info) return annotate(std::move(info).error());
  if (!*info) return std::nullopt;
  if ((*info)->version != number || (*info)->base_version >= number) {
    return annotate({Code::kOutOfOrder, fmt::format("it says version {} on base {}",
                                                    (*info)->version, (*info)->base_version)});
  }
  return DeltaIndex{*std::move(index), **info};
}

}  // namespace

Result<std::optional<DeltaInfo>> ReadDeltaInfoIn(FileSystem& files, const std::string& store,
                                                 const std::string& folder, std::uint64_t number) {
  SYNCLINE_ASSIGN(const auto index, ReadDeltaIndex(files, store, folder, number));
  if (!index) return std::nullopt;
  return index->info;
}

Result<std::optional<DeltaInfo>> ReadDeltaInfo(FileSystem& files, const std::string& store,
                                               std::uint64_t number) {
  return ReadDeltaInfoIn(files, store, VersionName(number), number);
}

Result<Version> ReadVersionIn(FileSystem& files, const std::string& store,
                              const std::string& folder, std::uint64_t number) {
  Version version{.number = number, .directory = base::JoinPath(store, folder)};
  SYNCLINE_ASSIGN(const auto index, ReadDeltaIndex(files, store, folder, number));
  if (!index) return version;
  version.delta = index->info;
  if (Status status = ReadDeltaFiles(files, index->index, version); !status) {
    return Annotate(std::move(status).error(), fmt::format("version {}", number));
  }
  return version;
}

Result<Version> ReadVersion(FileSystem& files, const std::string& store, std::uint64_t number) {
  return ReadVersionIn(files, store, VersionName(number), number);
}

Result<std::vector<std::uint64_t>> ListVersions(FileSystem& files, const std::string& store) {
  SYNCLINE_ASSIGN(const std::vector<std::string> names, files.List(store));
  std::vector<std::uint64_t> versions;
  for (const std::string& name : names) {
    if (const auto version = ParseVersionName(name)) versions.push_back(*version);
  }
  std::ranges::sort(versions);
  return versions;
}

Result<std::vector<std::uint64_t>> ListVersionFolders(objects::ObjectStore& store,
                                                      const base::CancelToken* cancel) {
  SYNCLINE_ASSIGN(const std::vector<objects::ObjectInfo> folders,
                  store.List("", /*folders_only=*/true, cancel));
  std::vector<std::uint64_t> versions;
  for (const objects::ObjectInfo& folder : folders) {
    std::string_view name = folder.key;
    if (name.ends_with('/')) name.remove_suffix(1);
    if (const auto version = ParseVersionName(name)) versions.push_back(*version);
  }
  std::ranges::sort(versions);
  return versions;
}

std::optional<std::uint64_t> VersionNumber(const Json* json) {
  if (json == nullptr) return std::nullopt;
  if (json->unsigned_integer() != nullptr) return *json->unsigned_integer();
  return json->string() != nullptr ? ParseNumber(*json->string()) : std::nullopt;
}

bool IsCompanionFile(std::string_view name) {
  constexpr std::array<std::string_view, 9> kWeights = {
      ".safetensors", ".index.json", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".tmp"};
  return !name.starts_with('.') && !name.starts_with("syncline.") &&
         !name.contains(".safetensors.index.") &&  // of a variant
         std::ranges::none_of(kWeights, [&](std::string_view end) { return name.ends_with(end); });
}

Result<std::vector<std::string>> ListCompanions(FileSystem& files, const std::string& directory) {
  std::vector<std::string> found;
  std::vector<std::string> folders = {""};
  while (!folders.empty()) {
    const std::string folder = std::move(folders.back());
    folders.pop_back();
    const std::string where = folder.empty() ? directory : base::JoinPath(directory, folder);
    SYNCLINE_ASSIGN(const std::vector<std::string> names, files.List(where));
    for (const std::string& name : names) {
      if (name.starts_with('.')) continue;
      const std::string relative = base::JoinPath(folder, name);
      SYNCLINE_ASSIGN(const base::FileInfo info, files.Stat(base::JoinPath(where, name)));
      if (info.kind == base::FileInfo::Kind::kDirectory) {
        if (std::ranges::count(relative, '/') < kMaxFolderDepth) folders.push_back(relative);
      } else if (info.kind == base::FileInfo::Kind::kFile &&
                 (IsCompanionFile(name) || name.ends_with(".safetensors.index.json"))) {
        found.push_back(relative);
      }
    }
  }
  std::ranges::sort(found);
  return found;
}

namespace {

// Weight files and indexes of a full version that has no index in its root.
Status AddWeightFiles(FileSystem& files, const std::string& directory,
                      std::set<std::string>& names) {
  const std::string single(checkpoint::kSingleFileName);
  SYNCLINE_ASSIGN(const bool pipeline,
                  base::Exists(files, base::JoinPath(directory, checkpoint::kPipelineIndexName)));
  SYNCLINE_ASSIGN(const bool there, base::Exists(files, base::JoinPath(directory, single)));
  if (there || !pipeline) {
    names.insert(single);
    return {};
  }
  SYNCLINE_ASSIGN(const auto components, checkpoint::FindComponents(files, directory));
  for (const checkpoint::Component& component : components) {
    for (const std::string& file : component.files) {
      names.insert(base::JoinPath(component.folder, file));
    }
    if (!component.indexed) continue;
    const std::string index_name =
        base::JoinPath(component.folder, checkpoint::IndexNameOf(component.stem));
    SYNCLINE_ASSIGN(
        const std::string text,
        base::ReadText(files, base::JoinPath(directory, index_name), checkpoint::kMaxIndexBytes));
    SYNCLINE_ASSIGN(const checkpoint::Index index, checkpoint::ParseIndex(text));
    names.insert(index_name);
    for (const auto& [tensor, file] : index.weight_map) {
      names.insert(base::JoinPath(component.folder, file));
    }
  }
  return {};
}

}  // namespace

Result<std::vector<std::string>> ListForeignFiles(FileSystem& files, const std::string& directory,
                                                  bool delta, bool can_list) {
  constexpr std::array<std::string_view, 13> kUsual = {"config.json",
                                                       checkpoint::kPipelineIndexName,
                                                       "generation_config.json",
                                                       "tokenizer.json",
                                                       "tokenizer_config.json",
                                                       "special_tokens_map.json",
                                                       "added_tokens.json",
                                                       "vocab.json",
                                                       "merges.txt",
                                                       "tokenizer.model",
                                                       "chat_template.jinja",
                                                       "preprocessor_config.json",
                                                       "chat_template.json"};
  std::set<std::string> names;
  const Result<std::string> text = base::ReadText(
      files, base::JoinPath(directory, checkpoint::kIndexName), checkpoint::kMaxIndexBytes);
  if (text) {
    names.emplace(checkpoint::kIndexName);
    SYNCLINE_ASSIGN(const checkpoint::Index index, checkpoint::ParseIndex(*text));
    for (const auto& [tensor, file] : index.weight_map) names.insert(file);
  } else if (text.error().code == Code::kNotFound) {
    SYNCLINE_TRY(AddWeightFiles(files, directory, names));
  } else {
    return std::unexpected(text.error());
  }
  if (!delta && can_list) {
    SYNCLINE_ASSIGN(const std::vector<std::string> companions, ListCompanions(files, directory));
    names.insert(companions.begin(), companions.end());
  } else if (!delta) {
    for (const std::string_view name : kUsual) {
      SYNCLINE_ASSIGN(const bool there, base::Exists(files, base::JoinPath(directory, name)));
      if (there) names.emplace(name);
    }
  }
  return std::vector<std::string>(names.begin(), names.end());
}

}  // namespace syncline::store
