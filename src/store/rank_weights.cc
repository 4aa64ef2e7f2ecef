#include "store/rank_weights.h"

#include <vector>

#include "checkpoint/safetensors.h"

namespace syncline::store {
namespace {

using base::FileSystem;
using base::Result;
using base::Status;
using tensor::TensorView;

// A checkpoint's folders.
std::vector<std::string> FoldersOf(const std::string& directory, const checkpoint::Stems& stems) {
  std::vector<std::string> folders = {directory};
  for (const auto& [folder, stem] : stems) folders.push_back(base::JoinPath(directory, folder));
  return folders;
}

Status RemoveUnlistedIn(FileSystem& files, const std::string& directory, const std::string& folder,
                        const std::set<std::string>& listed) {
  SYNCLINE_ASSIGN(const std::vector<std::string> names,
                  files.List(folder.empty() ? directory : base::JoinPath(directory, folder)));
  for (const std::string& name : names) {
    const std::string relative = base::JoinPath(folder, name);
    if (listed.contains(relative)) continue;
    const auto inside = listed.lower_bound(relative + "/");
    if (inside != listed.end() && inside->starts_with(relative + "/")) {
      SYNCLINE_TRY(RemoveUnlistedIn(files, directory, relative, listed));
    } else {
      SYNCLINE_TRY(files.RemoveAll(base::JoinPath(directory, relative)));
    }
  }
  return {};
}

}  // namespace

Status RemoveOwnFiles(FileSystem& files, const std::string& directory, const std::string& prefix) {
  SYNCLINE_ASSIGN(const bool there, base::Exists(files, directory));
  if (!there) return {};
  SYNCLINE_ASSIGN(const std::vector<std::string> names, files.List(directory));
  for (const std::string& name : names) {
    if (name.starts_with(prefix)) SYNCLINE_TRY(files.RemoveAll(base::JoinPath(directory, name)));
  }
  return {};
}

Result<checkpoint::WeightMap> WriteOwnWeights(FileSystem& files, const std::string& directory,
                                              std::span<const TensorView> owned,
                                              const std::string& prefix,
                                              const checkpoint::WriteOptions& options,
                                              base::ThreadPool& pool, base::Progress& progress,
                                              const base::CancelToken* cancel) {
  const std::vector<std::string> folders = FoldersOf(directory, options.components);
  for (const std::string& folder : folders) SYNCLINE_TRY(RemoveOwnFiles(files, folder, prefix));
  for (const std::string& folder : folders) SYNCLINE_TRY(files.MakeDirectories(folder));
  SYNCLINE_ASSIGN(auto map, checkpoint::WriteShards(files, directory, owned, prefix, options, pool,
                                                    progress, cancel));
  if (options.durable) {
    for (const std::string& folder : folders) SYNCLINE_TRY(files.SyncDirectory(folder));
  }
  return map;
}

Result<std::uint64_t> TensorBytes(FileSystem& files, const std::string& directory,
                                  const std::set<std::string>& names) {
  std::uint64_t bytes = 0;
  for (const std::string& name : names) {
    SYNCLINE_ASSIGN(const auto file,
                    files.Open(base::JoinPath(directory, name), base::OpenMode::kRead));
    SYNCLINE_ASSIGN(const auto header, checkpoint::ReadSafetensorsHeader(*file));
    for (const checkpoint::TensorInfo& tensor : header.tensors) bytes += tensor.bytes;
  }
  return bytes;
}

Status RemoveUnlisted(FileSystem& files, const std::string& directory,
                      const std::set<std::string>& listed) {
  return RemoveUnlistedIn(files, directory, "", listed);
}

}  // namespace syncline::store
