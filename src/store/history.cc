#include "store/history.h"

#include <fmt/format.h>

#include "checkpoint/checkpoint.h"
#include "store/manifest.h"
#include "store/signature.h"
#include "store/version.h"

namespace syncline::store {
namespace {

using base::FileSystem;
using base::Result;
using base::Status;

constexpr int kMaxDepth = 4;  // of folders in a version
constexpr std::uint64_t kMaxSignatureBytes = 4096;

Result<std::uint64_t> SumBytes(FileSystem& files, const std::string& directory, int depth) {
  SYNCLINE_ASSIGN(const std::vector<std::string> names, files.List(directory));
  std::uint64_t bytes = 0;
  for (const std::string& name : names) {
    const std::string path = base::JoinPath(directory, name);
    SYNCLINE_ASSIGN(const base::FileInfo info, files.Stat(path));
    if (info.kind == base::FileInfo::Kind::kFile) bytes += info.size;
    if (info.kind != base::FileInfo::Kind::kDirectory || depth == 0) continue;
    SYNCLINE_ASSIGN(const std::uint64_t inside, SumBytes(files, path, depth - 1));
    bytes += inside;
  }
  return bytes;
}

// Empty if the version has no signature, or one that cannot be read.
Result<std::string> ReadSigner(FileSystem& files, const std::string& directory) {
  const std::string path = base::JoinPath(directory, kSignatureName);
  SYNCLINE_ASSIGN(const auto text, base::ReadTextIfThere(files, path, kMaxSignatureBytes));
  return text ? ClaimedSigner(*text) : std::string();
}

// Where a folder cannot be listed, the manifest says what is in it.
std::uint64_t ManifestBytes(const ReadManifestResult& manifest) {
  std::uint64_t bytes = manifest.text.size();
  for (const ManifestFile& file : manifest.manifest.files) bytes += file.bytes;
  return bytes;
}

Status Summarise(Source& source, VersionSummary& summary, base::ThreadPool& pool) {
  FileSystem& files = source.files();
  const std::string directory = base::JoinPath(source.path(), VersionName(summary.version));
  const bool can_list = source.objects().can_list();
  if (can_list) {
    SYNCLINE_ASSIGN(summary.bytes, SumBytes(files, directory, kMaxDepth));
  }
  SYNCLINE_ASSIGN(const Version version, ReadVersion(files, source.path(), summary.version));
  if (version.delta) {
    summary.base_version = version.delta->base_version;
    summary.tensors = version.tensors.size();
  } else {
    SYNCLINE_ASSIGN(const auto checkpoint, checkpoint::Checkpoint::Open(files, directory));
    summary.tensors = checkpoint.tensors().size();
  }
  SYNCLINE_ASSIGN(const auto manifest, ReadManifest(files, directory));
  if (!manifest) return {};
  if (!can_list) summary.bytes = ManifestBytes(*manifest);
  summary.elements = manifest->manifest.elements;
  summary.elements_changed = manifest->manifest.elements_changed;
  summary.created_ns = manifest->manifest.created_ns;
  summary.full_copy = summary.base_version && HasFullCopy(manifest->manifest);
  SYNCLINE_ASSIGN(summary.signed_by, ReadSigner(files, directory));
  if (manifest->manifest.version != summary.version) {
    return base::Fail(base::Code::kCorrupt, fmt::format("its manifest is that of version {}",
                                                        manifest->manifest.version));
  }
  return CheckFiles(files, directory, manifest->manifest, Part::kAll, false, pool, nullptr);
}

// Of a source that trusts keys: a version that none of them has signed cannot be read.
Status CheckSigner(Source& source, VersionSummary& summary) {
  if (!source.trusts_keys()) return {};
  SYNCLINE_ASSIGN(Described described, source.Describe(summary.version));
  summary.signed_by = std::move(described.signed_by);
  return {};
}

Status SummariseFold(Source& source, FoldSummary& summary, base::ThreadPool& pool) {
  FileSystem& files = source.files();
  const std::string folder = FoldName(summary.range);
  const std::string directory = base::JoinPath(source.path(), folder);
  if (source.objects().can_list()) {
    SYNCLINE_ASSIGN(summary.bytes, SumBytes(files, directory, kMaxDepth));
  }
  SYNCLINE_ASSIGN(const Described described, source.DescribeFold(summary.range));
  const Manifest& manifest = described.manifest->manifest;
  if (!source.objects().can_list()) summary.bytes = ManifestBytes(*described.manifest);
  summary.elements = manifest.elements;
  summary.elements_changed = manifest.elements_changed;
  summary.created_ns = manifest.created_ns;
  SYNCLINE_ASSIGN(summary.signed_by, ReadSigner(files, directory));
  SYNCLINE_ASSIGN(const Version version,
                  ReadVersionIn(files, source.path(), folder, summary.range.to));
  summary.tensors = version.tensors.size();
  SYNCLINE_TRY(CheckFiles(files, directory, manifest, Part::kVersion, false, pool, nullptr));
  SYNCLINE_ASSIGN(const bool there, source.Has(summary.range.to));
  if (!there) {
    return base::Fail(base::Code::kNotFound,
                      fmt::format("version {}, to which it leads, is gone", summary.range.to));
  }
  SYNCLINE_ASSIGN(const Described target, source.Describe(summary.range.to));
  if (target.identity == described.identity) return {};
  return base::Fail(base::Code::kOutOfOrder,
                    fmt::format("it leads to another version {} than is there: {:.12}…, found "
                                "{:.12}…",
                                summary.range.to, described.identity, target.identity));
}

}  // namespace

std::optional<double> Density(std::optional<std::uint64_t> elements,
                              std::optional<std::uint64_t> changed) {
  if (!elements || !changed || *elements == 0) return std::nullopt;
  return static_cast<double>(*changed) / static_cast<double>(*elements);
}

Result<std::vector<FoldSummary>> ReadFolds(Source& source) {
  SYNCLINE_ASSIGN(const std::vector<FoldRange> ranges, source.ListFolds());
  base::ThreadPool pool(1);
  std::vector<FoldSummary> folds;
  for (const FoldRange& range : ranges) {
    FoldSummary& summary = folds.emplace_back(FoldSummary{.range = range});
    const Status status = SummariseFold(source, summary, pool);
    if (!status) summary.fault = status.error().message;
  }
  return folds;
}

Result<std::vector<VersionSummary>> ReadHistory(Source& source) {
  SYNCLINE_ASSIGN(const std::vector<std::uint64_t> versions, source.ListVersions());
  base::ThreadPool pool(1);
  std::vector<VersionSummary> history;
  for (const std::uint64_t version : versions) {
    VersionSummary& summary = history.emplace_back(VersionSummary{.version = version});
    Status status = Summarise(source, summary, pool);
    if (status) status = CheckSigner(source, summary);
    if (!status) summary.fault = status.error().message;
  }
  return history;
}

}  // namespace syncline::store
