#include "checkpoint/index.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/file.h"

namespace syncline::checkpoint {

using base::Code;
using base::Fail;
using base::Json;
using base::Result;

Result<Index> ParseIndex(std::string_view text) {
  SYNCLINE_ASSIGN(const Json json, base::ParseJson(text));
  if (json.object() == nullptr) return Fail(Code::kCorrupt, "the index is not a JSON object");
  Index index;
  if (const Json* metadata = json.Find("metadata"); metadata != nullptr && !metadata->is_null()) {
    if (metadata->object() == nullptr) return Fail(Code::kCorrupt, "\"metadata\" is not an object");
    index.metadata = *metadata->object();
  }
  const Json* map = json.Find("weight_map");
  if (map == nullptr || map->object() == nullptr) {
    return Fail(Code::kCorrupt, "the index has no \"weight_map\" object");
  }
  for (const auto& [tensor, file] : *map->object()) {
    if (file.string() == nullptr) {
      return Fail(Code::kCorrupt, fmt::format("the file of tensor {} is not a string", tensor));
    }
    if (!base::IsInsidePath(*file.string())) {
      return Fail(Code::kCorrupt,
                  fmt::format("the file {} of tensor {} is not inside the directory", ToText(file),
                              tensor));
    }
    index.weight_map.emplace_back(tensor, *file.string());
  }
  return index;
}

std::string IndexText(Index index) {
  std::ranges::sort(index.weight_map);
  Json::Object map;
  map.reserve(index.weight_map.size());
  for (auto& [tensor, file] : index.weight_map) map.emplace_back(std::move(tensor), Json(file));
  Json::Object json;
  json.emplace_back("metadata", std::move(index.metadata));
  json.emplace_back("weight_map", std::move(map));
  return ToText(Json(std::move(json)), true) + "\n";
}

Result<std::string> BoundedIndexText(Index index) {
  std::string text = IndexText(std::move(index));
  if (text.size() <= kMaxIndexBytes) return text;
  return Fail(Code::kLimitExceeded,
              fmt::format("an index of {} bytes, the limit is {}", text.size(), kMaxIndexBytes));
}

std::string ShardName(std::size_t number, std::size_t count, std::string_view stem) {
  return fmt::format("{}-{:05}-of-{:05}.safetensors", stem, number, count);
}

}  // namespace syncline::checkpoint
