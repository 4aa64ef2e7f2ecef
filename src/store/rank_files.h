// What the writing ranks of one trainer tell each other, in files of `.syncline/writers/` of a store
// directory (docs/format.md). Written atomically; a file of another leader or attempt is stale.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "checkpoint/components.h"
#include "store/manifest.h"

namespace syncline::store {

inline constexpr std::string_view kLeaderName = "leader.json";
inline constexpr std::uint64_t kMaxRankFileBytes = kMaxManifestBytes;

// leader.json: what rank 0 wants of the others.
struct Announcement {
  enum class State {
    kIdle,    // nothing; call and attempt are over
    kSurvey,  // which tensors have you?
    kOpen,    // write your part
    kFailed,  // the call failed: `error`
  };
  std::string token;  // of the leading process, 32 hex digits
  std::uint64_t world = 0;
  std::uint64_t call = 0;     // of Publish, counted by the leader; 0: none yet
  std::uint64_t attempt = 0;  // counted too; a call may take several
  State state = State::kIdle;
  std::uint64_t version = 0;
  std::optional<std::uint64_t> base_version;  // nothing: a full version
  bool full_copy = false;                     // also a full copy
  checkpoint::Stems components;               // of the full version or copy, if it is a tree
  base::Error error;                          // of kFailed
  // Tensors that several ranks hold: not to be written by that rank, only hashed.
  std::map<std::uint64_t, std::vector<std::string>> skip;
};

// part-00001.json: what one rank contributes to an attempt.
struct RankPart {
  std::string token;
  std::uint64_t attempt = 0;
  std::uint64_t rank = 0;
  std::uint64_t world = 0;
  std::optional<base::Error> failed;  // the rank cannot; nothing else counts then
  std::string names_hash;             // of names, dtypes and shapes of all its tensors
  std::uint64_t tensors_total = 0;    // that it writes: without the skipped ones
  std::uint64_t elements = 0;
  std::uint64_t elements_changed = 0;
  std::uint64_t full_bytes = 0;
  // Of a survey all it has, without hashes; else those written: all of a full version, the changed
  // ones of a delta.
  std::vector<ManifestTensor> tensors;
  std::vector<ManifestTensor> skipped;                          // likewise, of those to be skipped
  std::vector<std::pair<std::string, std::string>> weight_map;  // tensor, file
  std::vector<std::pair<std::string, std::string>> copy_map;    // of the full copy
  std::vector<ManifestTensor> copy_tensors;                     // of Manifest, those it writes
  std::vector<ManifestFile> files;                              // with those of the copy
};

std::string AnnouncementText(const Announcement& announcement);
base::Result<Announcement> ParseAnnouncement(std::string_view text);
std::string RankPartText(const RankPart& part);
base::Result<RankPart> ParseRankPart(std::string_view text);

}  // namespace syncline::store
