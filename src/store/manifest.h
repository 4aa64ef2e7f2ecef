// syncline.manifest.json: what a publisher of ours says of a version beyond the shared format.
// Foreign readers ignore the file, foreign versions have none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"

namespace syncline::store {

inline constexpr std::string_view kManifestName = "syncline.manifest.json";
inline constexpr std::uint64_t kMaxManifestBytes = 256'000'000;

struct Manifest {
  std::uint64_t version = 0;
  std::optional<std::uint64_t> base_version;  // nothing: a full version
  std::uint64_t created_ns = 0;               // since the epoch
  std::uint64_t tensors = 0;                  // of the model
  std::uint64_t tensors_changed = 0;
  std::uint64_t elements = 0;
  std::uint64_t elements_changed = 0;
  std::uint64_t full_bytes = 0;  // of all tensors
  std::vector<std::pair<std::string, std::uint64_t>>
      files;  // every other file of the version, with its size
};

std::string ManifestText(const Manifest& manifest);
// kIncompatible for a format number that we do not know.
base::Result<Manifest> ParseManifest(std::string_view text);

// Nothing if the version directory has none.
base::Result<std::optional<Manifest>> ReadManifest(base::FileSystem& files,
                                                   const std::string& version_directory);

// Every file that the manifest names is there with its size. kCorrupt (with both sizes) or
// kNotFound.
base::Status CheckFiles(base::FileSystem& files, const std::string& version_directory,
                        const Manifest& manifest);

}  // namespace syncline::store
