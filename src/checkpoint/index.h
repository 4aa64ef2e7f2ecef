// model.safetensors.index.json: which file of a checkpoint directory holds which tensor.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "checkpoint/components.h"

namespace syncline::checkpoint {

inline constexpr std::string_view kIndexName = "model.safetensors.index.json";
inline constexpr std::string_view kSingleFileName = "model.safetensors";
inline constexpr std::uint64_t kMaxIndexBytes = 256'000'000;

struct Index {
  base::Json::Object metadata;
  std::vector<std::pair<std::string, std::string>>
      weight_map;  // tensor, file; in order of the text
};

// kCorrupt where the text is no index: not JSON, no "weight_map" object, a file name that is no
// string or leaves the directory.
base::Result<Index> ParseIndex(std::string_view text);

// Indented as usual, with "metadata" first and the map sorted by tensor.
std::string IndexText(Index index);

// The same; kLimitExceeded where it would be larger than kMaxIndexBytes, which no reader of ours opens.
base::Result<std::string> BoundedIndexText(Index index);

// "model-00001-of-00002.safetensors" for number 1 of 2.
std::string ShardName(std::size_t number, std::size_t count, std::string_view stem = kModelStem);

}  // namespace syncline::checkpoint
