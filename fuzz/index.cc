// checkpoint::ParseIndex, and store::ParseDeltaInfo of its metadata.
//
// - Every file of an accepted map lies inside the directory.
// - An index that is written reads as the same one, and so does what a delta says of itself.
// - Memory stays within a multiple of the text's size.
#include "checkpoint/index.h"

#include <algorithm>

#include "store/version.h"
#include "support.h"

namespace syncline::fuzz {
namespace {

void CheckDelta(const base::Json::Object& metadata) {
  const auto info = store::ParseDeltaInfo(metadata);
  if (!info || !*info) return;
  const auto again = store::ParseDeltaInfo(store::DeltaMetadata(**info));
  Must(again.has_value() && again->has_value(), "what a delta says can be written and read");
  Must((*again)->version == (*info)->version && (*again)->base_version == (*info)->base_version &&
           (*again)->encoding == (*info)->encoding && (*again)->checksum == (*info)->checksum,
       "what a delta says survives writing");
}

void Check(std::string_view text) {
  const MemoryWatch watch;
  const auto index = checkpoint::ParseIndex(text);
  Must(watch.peak() <= 65536 + 300 * text.size(), "memory is bounded by the text");
  if (!index) {
    Must(index.error().code == base::Code::kCorrupt, "an index that is refused is corrupt");
    return;
  }
  for (const auto& [tensor, file] : index->weight_map) {
    Must(base::IsInsidePath(file), "files are inside the directory");
    Must(!file.starts_with('/') && file.find('\0') == std::string::npos &&
             ("/" + file + "/").find("/../") == std::string::npos,
         "a name cannot leave the directory");
  }
  const auto again = checkpoint::ParseIndex(checkpoint::IndexText(*index));
  Must(again.has_value(), "an index that is written can be read");
  auto sorted = index->weight_map;
  std::ranges::sort(sorted);
  Must(again->weight_map == sorted, "the map survives writing");
  Must(ToText(base::Json(again->metadata)) == ToText(base::Json(index->metadata)),
       "metadata survives writing");
  CheckDelta(index->metadata);
}

}  // namespace
}  // namespace syncline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  syncline::fuzz::Check(syncline::fuzz::Text(data, size));
  return 0;
}
