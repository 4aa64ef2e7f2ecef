#include "store/history.h"

#include "checkpoint/checkpoint.h"
#include "store/manifest.h"
#include "store/version.h"

namespace syncline::store {
namespace {

using base::FileSystem;
using base::Result;
using base::Status;

Status Summarise(FileSystem& files, const std::string& store, VersionSummary& summary,
                 base::ThreadPool& pool) {
  const std::string directory = base::JoinPath(store, VersionName(summary.version));
  SYNCLINE_ASSIGN(const std::vector<std::string> names, files.List(directory));
  for (const std::string& name : names) {
    SYNCLINE_ASSIGN(const base::FileInfo info, files.Stat(base::JoinPath(directory, name)));
    if (info.kind == base::FileInfo::Kind::kFile) summary.bytes += info.size;
  }
  SYNCLINE_ASSIGN(const Version version, ReadVersion(files, store, summary.version));
  if (version.delta) {
    summary.base_version = version.delta->base_version;
    summary.tensors = version.tensors.size();
  } else {
    SYNCLINE_ASSIGN(const auto checkpoint, checkpoint::Checkpoint::Open(files, directory));
    summary.tensors = checkpoint.tensors().size();
  }
  SYNCLINE_ASSIGN(const auto manifest, ReadManifest(files, directory));
  if (!manifest) return {};
  summary.elements = manifest->manifest.elements;
  summary.elements_changed = manifest->manifest.elements_changed;
  summary.created_ns = manifest->manifest.created_ns;
  return CheckFiles(files, directory, manifest->manifest, Part::kAll, false, pool, nullptr);
}

}  // namespace

Result<std::vector<VersionSummary>> ReadHistory(FileSystem& files, const std::string& store) {
  SYNCLINE_ASSIGN(const std::vector<std::uint64_t> versions, ListVersions(files, store));
  base::ThreadPool pool(1);
  std::vector<VersionSummary> history;
  for (const std::uint64_t version : versions) {
    VersionSummary& summary = history.emplace_back(VersionSummary{.version = version});
    const Status status = Summarise(files, store, summary, pool);
    if (!status) summary.fault = status.error().message;
  }
  return history;
}

}  // namespace syncline::store
