// The directory of one published version: weight_v000123/, in the format that slime, miles and
// SGLang share (docs/format.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/index.h"
#include "delta/compact_table.h"
#include "delta/encoding.h"
#include "objects/object_store.h"
#include "tensor/digest.h"
#include "tensor/hash.h"

namespace syncline::store {

// "weight_v000123"
std::string VersionName(std::uint64_t version);
std::optional<std::uint64_t> ParseVersionName(std::string_view name);

// The name by which an index lists a file of a compact delta: "syncline.delta-00000" for
// "delta-00000.syncline".
std::string CompactListing(std::string_view file);

// What the index metadata of a delta says.
struct DeltaInfo {
  std::uint64_t version = 0;
  std::uint64_t base_version = 0;
  delta::Encoding encoding = delta::Encoding::kXor;
  tensor::HashKind checksum = tensor::HashKind::kXxh3;
};

base::Json::Object DeltaMetadata(const DeltaInfo& info);
// Nothing for the index of a full version. kIncompatible for an encoding, compression or checksum
// that we do not know, kCorrupt for fields that are missing or wrong.
base::Result<std::optional<DeltaInfo>> ParseDeltaInfo(const base::Json::Object& metadata);

// The frame of one changed tensor, or its part in frames of several (compact).
struct DeltaTensor {
  std::string name;
  std::string hash;          // of the new bytes, lower-case hex of DeltaInfo::checksum
  std::size_t file = 0;      // index into Version::files
  std::uint64_t offset = 0;  // of the frame in that file; of a cell's frames
  std::uint64_t bytes = 0;   // of the frame; of a cell's frames, and 0 for all but its first tensor
  // Of the whole new tensor. Nothing: the encoding carries none, as xor and overwrite.
  std::optional<tensor::Digest> digest;
};

// A version (or fold, see folds.h) whose index, and for a delta whose file headers, were read and
// agree with each other.
struct Version {
  std::uint64_t number = 0;
  std::string directory;
  std::optional<DeltaInfo> delta;           // nothing: a full version, to be opened as a checkpoint
  std::vector<std::string> files;           // of a delta, relative to the directory
  std::vector<DeltaTensor> tensors;         // of a delta, by name
  std::vector<delta::CompactTable> tables;  // of a compact delta, of each of its files

  // What a reader holds of it at a time.
  std::uint64_t LargestFrameBytes() const;
};

// Errors name the version and the file. A directory without index is a full version if it holds
// model.safetensors, or is a tree of components by its manifest or by model_index.json.
base::Result<Version> ReadVersion(base::FileSystem& files, const std::string& store,
                                  std::uint64_t version);

// The same of any folder of the store that holds a version of that number.
base::Result<Version> ReadVersionIn(base::FileSystem& files, const std::string& store,
                                    const std::string& folder, std::uint64_t version);

// What its index says of the base; nothing for a full version. Errors as of ReadVersion.
base::Result<std::optional<DeltaInfo>> ReadDeltaInfo(base::FileSystem& files,
                                                     const std::string& store,
                                                     std::uint64_t version);

base::Result<std::optional<DeltaInfo>> ReadDeltaInfoIn(base::FileSystem& files,
                                                       const std::string& store,
                                                       const std::string& folder,
                                                       std::uint64_t version);

// Numbers of all version directories, ascending. kNotFound if there is no such directory.
base::Result<std::vector<std::uint64_t>> ListVersions(base::FileSystem& files,
                                                      const std::string& store);

// The same of any store that can be listed. A version that is on its way up has a folder, too.
base::Result<std::vector<std::uint64_t>> ListVersionFolders(objects::ObjectStore& store,
                                                            const base::CancelToken* cancel);

// A version number as JSON has it: a number, or digits in a text. Nothing else.
std::optional<std::uint64_t> VersionNumber(const base::Json* json);

// Is that file of a checkpoint directory something to be carried along with the weights
// (configuration, tokenizer …), and not weights in whatever form, an index, or a hidden file?
bool IsCompanionFile(std::string_view name);

// What of a checkpoint directory, sub-folders included, goes with its weight files: companions, and
// the indexes. Relative paths, sorted. Links to files are followed by name; hidden folders, and our
// own of a version, are left out.
base::Result<std::vector<std::string>> ListCompanions(base::FileSystem& files,
                                                      const std::string& directory);

// The files of a version without manifest: those that its index names, the index, and of a full
// version its companions; of a tree those of all components. Where the folder cannot be listed,
// companions are those of the usual names that are there.
base::Result<std::vector<std::string>> ListForeignFiles(base::FileSystem& files,
                                                        const std::string& directory, bool delta,
                                                        bool can_list);

}  // namespace syncline::store
