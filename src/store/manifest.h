// syncline.manifest.json: what a publisher of ours says of a version beyond the shared format; the
// layout is in docs/format.md. Foreign readers ignore the file, foreign versions have none.
//
// A version's identity is the SHA-256 of its manifest's bytes. As the manifest holds the hash of
// every other file and the identity of the parent, an identity stands for the whole chain behind
// it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/cancel.h"
#include "base/file.h"
#include "base/thread_pool.h"
#include "tensor/digest.h"
#include "tensor/dtype.h"

namespace syncline::store {

inline constexpr std::string_view kManifestName = "syncline.manifest.json";
inline constexpr std::uint64_t kMaxManifestBytes = 256'000'000;
// Folder of a delta version that holds a full copy of the same version for readers that come late.
inline constexpr std::string_view kFullCopyFolder = "full";

struct ManifestFile {
  std::string name;  // relative to the version's directory; may lie in a sub-folder
  std::uint64_t bytes = 0;
  std::string sha256;  // 64 hex digits of the content
};

// A tensor that the version holds: of a delta those that changed.
struct ManifestTensor {
  std::string name;
  tensor::Dtype dtype = tensor::Dtype::kU8;
  std::vector<std::uint64_t> shape;
  std::string hash;  // xxh3-128 of the new bytes, 32 hex digits
  // Of the new bytes. Nothing: what wrote the manifest did not tell it.
  std::optional<tensor::Digest> digest = std::nullopt;
};

// What a fold (folds.h) leads from and to.
struct ManifestFold {
  std::string base;    // identity of the version that it builds on; empty: version 0, a checkpoint
                       // outside of the store
  std::string target;  // identity of the version that it makes
  bool operator==(const ManifestFold&) const = default;
};

struct Manifest {
  std::string run;  // 32 hex digits, drawn at random with the first version and kept by its heirs
  std::uint64_t version = 0;
  std::optional<std::uint64_t> base_version;  // nothing: a full version
  std::string parent;  // identity of the version published before; empty: the first one, or the one
                       // before has no manifest
  std::uint64_t created_ns = 0;     // since the epoch
  std::uint64_t tensors_total = 0;  // of the model
  std::uint64_t elements = 0;
  std::uint64_t elements_changed = 0;
  std::uint64_t full_bytes = 0;  // of all tensors of the model
  // Of the deltas that lead here from the last full version or full copy, or from a version 0 that
  // is not in the store, without their full copies. 0: this is one.
  std::uint64_t chain_bytes = 0;
  std::optional<ManifestFold> fold;     // nothing: a version
  std::vector<ManifestTensor> tensors;  // by name
  bool tensors_in_files = false;  // `tensors` is empty: the tables of the files say it (compact)
  // Of a delta with a full copy: all tensors of the model by name, without hashes. Empty: what wrote
  // it did not tell them.
  std::vector<ManifestTensor> copy_tensors;
  std::vector<ManifestFile> files;  // every other file of the version but the signature, by name
};

std::string ManifestText(const Manifest& manifest);
// Checks everything that can be checked without the files: kCorrupt for fields that are missing or
// wrong, names that leave the directory or stand twice; kIncompatible for a format number that we
// do not know.
base::Result<Manifest> ParseManifest(std::string_view text);
// 64 hex digits.
std::string Identity(std::string_view manifest_text);
// A new run: 32 hex digits.
std::string DrawRun();

struct ReadManifestResult {
  Manifest manifest;
  std::string text;
  std::string identity;
};
// Does it list files in kFullCopyFolder?
bool HasFullCopy(const Manifest& manifest);
// Is that a file of the full copy?
bool IsOfFullCopy(std::string_view name);
// Is it a full version whose weights lie in sub-folders only?
bool IsTree(const Manifest& manifest);

// The text of a manifest, taken apart; errors begin with `where`.
base::Result<ReadManifestResult> TakeManifest(std::string text, const std::string& where);

// Nothing if the version directory has none. Reads it twice: kCorrupt if that gives two texts.
base::Result<std::optional<ReadManifestResult>> ReadManifest(base::FileSystem& files,
                                                             const std::string& version_directory);

// What a manifest says of the files of these names below a directory, by name. Each is read twice:
// a hash that came of a wrong read would make what is announced one that nobody can use.
base::Result<std::vector<ManifestFile>> ListFiles(base::FileSystem& files,
                                                  const std::string& directory,
                                                  std::span<const std::string> names,
                                                  base::ThreadPool& pool,
                                                  const base::CancelToken* cancel);

// Every file that the manifest names (of the full copy, or all others) is there with its size and,
// with `hash`, its SHA-256. kCorrupt or kChecksumMismatch (with expected and actual) or kNotFound;
// errors name the file. Other files are not looked at.
enum class Part { kVersion, kFullCopy, kAll };
base::Status CheckFiles(base::FileSystem& files, const std::string& version_directory,
                        const Manifest& manifest, Part part, bool hash, base::ThreadPool& pool,
                        const base::CancelToken* cancel);

}  // namespace syncline::store
