#include "store/rank_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "base/json.h"
#include "store/fields.h"
#include "store/file_hash.h"

namespace syncline::store {
namespace {

using base::Code;
using base::Fail;
using base::Json;
using base::Result;
using base::Status;

constexpr std::uint64_t kFormat = 1;
constexpr std::array<std::string_view, 4> kStates = {"idle", "survey", "open", "failed"};

Result<std::string> Text(const Json& json, std::string_view name) {
  const Json* value = json.Find(name);
  if (value != nullptr && value->string() != nullptr) return *value->string();
  return Fail(Code::kCorrupt, fmt::format("\"{}\" is missing or not a string", name));
}

Result<const Json::Object*> Members(const Json& json, std::string_view name) {
  const Json* value = json.Find(name);
  if (value != nullptr && value->object() != nullptr) return value->object();
  return Fail(Code::kCorrupt, fmt::format("\"{}\" is missing or not an object", name));
}

Json ErrorJson(const base::Error& error) {
  return Json(Json::Object{{"code", std::uint64_t{static_cast<std::uint8_t>(error.code)}},
                           {"message", error.message}});
}

Result<base::Error> ParseError(const Json& json) {
  base::Error error;
  SYNCLINE_ASSIGN(const std::uint64_t code, NumberIn(json, "code"));
  if (code == 0 || code > base::CodeTable().size()) {
    return Fail(Code::kCorrupt, fmt::format("unknown error code {}", code));
  }
  error.code = static_cast<Code>(code);
  SYNCLINE_ASSIGN(error.message, Text(json, "message"));
  return error;
}

Json TensorsJson(const std::vector<ManifestTensor>& tensors) {
  Json::Object object;
  for (const ManifestTensor& tensor : tensors) {
    Json::Object members = {{"dtype", Name(tensor.dtype)},
                            {"shape", Json::Array(tensor.shape.begin(), tensor.shape.end())},
                            {"hash", tensor.hash}};
    if (tensor.digest) members.emplace_back("digest", tensor.digest->Hex());
    object.emplace_back(tensor.name, std::move(members));
  }
  return Json(std::move(object));
}

Result<std::vector<ManifestTensor>> ParseTensors(const Json& json, std::string_view name) {
  SYNCLINE_ASSIGN(const Json::Object* object, Members(json, name));
  std::vector<ManifestTensor> tensors;
  for (const auto& [tensor_name, value] : *object) {
    ManifestTensor tensor{.name = tensor_name, .dtype = {}, .shape = {}, .hash = {}};
    SYNCLINE_ASSIGN(const std::string dtype, Text(value, "dtype"));
    const auto known = tensor::FindDtype(dtype);
    const Json* shape = value.Find("shape");
    if (!known || shape == nullptr || shape->array() == nullptr) {
      return Fail(Code::kCorrupt, fmt::format("tensor {} has no dtype or shape", tensor_name));
    }
    tensor.dtype = *known;
    for (const Json& size : *shape->array()) {
      if (size.unsigned_integer() == nullptr) {
        return Fail(Code::kCorrupt, fmt::format("tensor {} has no shape", tensor_name));
      }
      tensor.shape.push_back(*size.unsigned_integer());
    }
    SYNCLINE_ASSIGN(tensor.hash, Text(value, "hash"));
    if (!tensor.hash.empty() && !IsLowerHex(tensor.hash, 32)) {
      return Fail(Code::kCorrupt,
                  fmt::format("tensor {} has the hash {}", tensor_name, tensor.hash));
    }
    if (value.Find("digest") != nullptr) {
      SYNCLINE_ASSIGN(const std::string digest, Text(value, "digest"));
      tensor.digest = tensor::Digest::Parse(digest);
      if (!tensor.digest) {
        return Fail(Code::kCorrupt,
                    fmt::format("tensor {} has the digest {}", tensor_name, digest));
      }
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

Json MapJson(const std::vector<std::pair<std::string, std::string>>& map) {
  Json::Object object;
  for (const auto& [tensor, file] : map) object.emplace_back(tensor, file);
  return Json(std::move(object));
}

Result<std::vector<std::pair<std::string, std::string>>> ParseMap(const Json& json,
                                                                  std::string_view name) {
  SYNCLINE_ASSIGN(const Json::Object* object, Members(json, name));
  std::vector<std::pair<std::string, std::string>> map;
  for (const auto& [tensor, file] : *object) {
    if (file.string() == nullptr || !base::IsInsidePath(*file.string())) {
      return Fail(Code::kCorrupt, fmt::format("tensor {} is in no file", tensor));
    }
    map.emplace_back(tensor, *file.string());
  }
  return map;
}

Result<std::vector<ManifestFile>> ParseFiles(const Json& json) {
  SYNCLINE_ASSIGN(const Json::Object* object, Members(json, "files"));
  std::vector<ManifestFile> files;
  for (const auto& [name, value] : *object) {
    ManifestFile file{.name = name, .bytes = 0, .sha256 = {}};
    SYNCLINE_ASSIGN(file.bytes, NumberIn(value, "bytes"));
    SYNCLINE_ASSIGN(file.sha256, Text(value, "sha256"));
    if (!base::IsInsidePath(name) || !IsLowerHex(file.sha256, 64)) {
      return Fail(Code::kCorrupt, fmt::format("file {} is none", name));
    }
    files.push_back(std::move(file));
  }
  return files;
}

Result<checkpoint::Stems> ParseComponents(const Json& json) {
  SYNCLINE_ASSIGN(const Json::Object* object, Members(json, "components"));
  checkpoint::Stems stems;
  for (const auto& [folder, stem] : *object) {
    const bool known = stem.string() != nullptr && (*stem.string() == checkpoint::kModelStem ||
                                                    *stem.string() == checkpoint::kDiffusersStem);
    if (!known || !checkpoint::IsComponentName(folder)) {
      return Fail(Code::kCorrupt, fmt::format("component {} is none", folder));
    }
    stems.emplace(folder, *stem.string());
  }
  return stems;
}

struct PartField {
  std::string_view name;
  std::uint64_t RankPart::* value;
};
constexpr std::array<PartField, 7> kPartFields = {{
    {"attempt", &RankPart::attempt},
    {"rank", &RankPart::rank},
    {"world", &RankPart::world},
    {"tensors_total", &RankPart::tensors_total},
    {"elements", &RankPart::elements},
    {"elements_changed", &RankPart::elements_changed},
    {"full_bytes", &RankPart::full_bytes},
}};

Status CheckFormat(const Json& json) {
  SYNCLINE_ASSIGN(const std::uint64_t format, NumberIn(json, "format"));
  if (format == kFormat) return {};
  return Fail(Code::kIncompatible, fmt::format("format {}, expected {}", format, kFormat));
}

}  // namespace

std::string AnnouncementText(const Announcement& announcement) {
  Json::Object components;
  for (const auto& [folder, stem] : announcement.components) components.emplace_back(folder, stem);
  Json::Object skip;
  for (const auto& [rank, names] : announcement.skip) {
    skip.emplace_back(fmt::format("{}", rank), Json::Array(names.begin(), names.end()));
  }
  return ToText(Json(
             Json::Object{{"format", kFormat},
                          {"token", announcement.token},
                          {"world", announcement.world},
                          {"call", announcement.call},
                          {"attempt", announcement.attempt},
                          {"state", kStates.at(static_cast<std::size_t>(announcement.state))},
                          {"version", announcement.version},
                          {"base_version",
                           announcement.base_version ? Json(*announcement.base_version) : Json()},
                          {"full_copy", announcement.full_copy},
                          {"components", std::move(components)},
                          {"error", announcement.state == Announcement::State::kFailed
                                        ? ErrorJson(announcement.error)
                                        : Json()},
                          {"skip", std::move(skip)}})) +
         "\n";
}

Result<Announcement> ParseAnnouncement(std::string_view text) {
  SYNCLINE_ASSIGN(const Json json, base::ParseJson(text));
  SYNCLINE_TRY(CheckFormat(json));
  Announcement announcement;
  SYNCLINE_ASSIGN(announcement.token, Text(json, "token"));
  SYNCLINE_ASSIGN(announcement.world, NumberIn(json, "world"));
  SYNCLINE_ASSIGN(announcement.call, NumberIn(json, "call"));
  SYNCLINE_ASSIGN(announcement.attempt, NumberIn(json, "attempt"));
  SYNCLINE_ASSIGN(const std::string state, Text(json, "state"));
  const auto* const known = std::ranges::find(kStates, state);
  if (known == kStates.end()) return Fail(Code::kCorrupt, "unknown state " + state);
  announcement.state = static_cast<Announcement::State>(known - kStates.begin());
  SYNCLINE_ASSIGN(announcement.version, NumberIn(json, "version"));
  if (const Json* base = json.Find("base_version"); base != nullptr && !base->is_null()) {
    SYNCLINE_ASSIGN(announcement.base_version, NumberIn(json, "base_version"));
  }
  const Json* copy = json.Find("full_copy");
  announcement.full_copy = copy != nullptr && std::get_if<bool>(&copy->value()) != nullptr &&
                           std::get<bool>(copy->value());
  SYNCLINE_ASSIGN(announcement.components, ParseComponents(json));
  if (announcement.state == Announcement::State::kFailed) {
    const Json* error = json.Find("error");
    SYNCLINE_ASSIGN(announcement.error, ParseError(error != nullptr ? *error : Json()));
  }
  SYNCLINE_ASSIGN(const Json::Object* skip, Members(json, "skip"));
  for (const auto& [rank, names] : *skip) {
    std::uint64_t number = 0;
    const auto [end, error] = std::from_chars(rank.data(), rank.data() + rank.size(), number);
    if (error != std::errc() || end != rank.data() + rank.size() || names.array() == nullptr) {
      return Fail(Code::kCorrupt, "\"skip\" is wrong");
    }
    for (const Json& name : *names.array()) {
      if (name.string() == nullptr) return Fail(Code::kCorrupt, "\"skip\" is wrong");
      announcement.skip[number].push_back(*name.string());
    }
  }
  return announcement;
}

std::string RankPartText(const RankPart& part) {
  Json::Object files;
  for (const ManifestFile& file : part.files) {
    files.emplace_back(file.name, Json::Object{{"bytes", file.bytes}, {"sha256", file.sha256}});
  }
  Json::Object json = {{"format", kFormat}, {"token", part.token}};
  for (const PartField& field : kPartFields) json.emplace_back(field.name, part.*field.value);
  json.emplace_back("failed", part.failed ? ErrorJson(*part.failed) : Json());
  json.emplace_back("names_hash", part.names_hash);
  json.emplace_back("tensors", TensorsJson(part.tensors));
  json.emplace_back("skipped", TensorsJson(part.skipped));
  json.emplace_back("weight_map", MapJson(part.weight_map));
  json.emplace_back("copy_map", MapJson(part.copy_map));
  json.emplace_back("copy_tensors", TensorsJson(part.copy_tensors));
  json.emplace_back("files", std::move(files));
  return ToText(Json(std::move(json))) + "\n";
}

Result<RankPart> ParseRankPart(std::string_view text) {
  SYNCLINE_ASSIGN(const Json json, base::ParseJson(text));
  SYNCLINE_TRY(CheckFormat(json));
  RankPart part;
  SYNCLINE_ASSIGN(part.token, Text(json, "token"));
  for (const PartField& field : kPartFields) {
    SYNCLINE_ASSIGN(part.*field.value, NumberIn(json, field.name));
  }
  if (const Json* failed = json.Find("failed"); failed != nullptr && !failed->is_null()) {
    SYNCLINE_ASSIGN(part.failed, ParseError(*failed));
  }
  SYNCLINE_ASSIGN(part.names_hash, Text(json, "names_hash"));
  SYNCLINE_ASSIGN(part.tensors, ParseTensors(json, "tensors"));
  SYNCLINE_ASSIGN(part.skipped, ParseTensors(json, "skipped"));
  SYNCLINE_ASSIGN(part.weight_map, ParseMap(json, "weight_map"));
  SYNCLINE_ASSIGN(part.copy_map, ParseMap(json, "copy_map"));
  if (json.Find("copy_tensors") != nullptr) {
    SYNCLINE_ASSIGN(part.copy_tensors, ParseTensors(json, "copy_tensors"));
  }
  SYNCLINE_ASSIGN(part.files, ParseFiles(json));
  return part;
}

}  // namespace syncline::store
