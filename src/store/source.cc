#include "store/source.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <thread>

#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/index.h"
#include "objects/object_files.h"
#include "store/fetch.h"
#include "store/latest.h"
#include "tensor/hash.h"

namespace syncline::store {
namespace {

using base::Code;
using base::Fail;
using base::FileSystem;
using base::Result;
using base::Status;

constexpr double kRemoteWaitSeconds = 30;
constexpr std::uint64_t kMaxSignatureBytes = 1 << 16;

void AddSizes(Described& described) {
  for (const ManifestFile& file : described.manifest->manifest.files) {
    if (IsOfFullCopy(file.name)) {
      described.full_copy_bytes = described.full_copy_bytes.value_or(0) + file.bytes;
    } else {
      described.bytes += file.bytes;
    }
  }
}

// For messages.
std::string NameOf(const Described& version) {
  return version.is_fold() ? version.folder : fmt::format("version {}", version.number);
}

// What another reading would not make better: then there are no folds, as nobody needs them.
bool MeansNoFolds(Code code) {
  return code == Code::kNotFound || code == Code::kCorrupt || code == Code::kIncompatible ||
         code == Code::kLimitExceeded || code == Code::kPermissionDenied;
}

}  // namespace

Result<std::unique_ptr<Source>> Source::Open(FileSystem& files, const std::string& url,
                                             SourceOptions options) {
  std::unique_ptr<Source> source(new Source);
  source->local_ = &files;
  SYNCLINE_ASSIGN(source->objects_, objects::Open(files, url, options.connection));
  if (source->is_directory()) {
    source->files_ = &files;
  } else {
    source->remote_files_ =
        std::make_unique<objects::ObjectFiles>(*source->objects_, options.cancel);
    source->files_ = source->remote_files_.get();
  }
  for (const std::string& path : options.trusted_keys) {
    SYNCLINE_ASSIGN(TrustedKey key, TrustedKey::Read(FileSystem::Posix(), path));
    source->keys_.push_back(std::move(key));
  }
  source->options_ = std::move(options);
  return source;
}

Status Source::Refresh(std::optional<std::uint64_t> version) {
  if (!options_.before_read) return {};
  Status status = options_.before_read(version);
  if (status) return {};
  return Annotate(std::move(status).error(), "the hook before reading failed");
}

double Source::WaitSeconds() const {
  return options_.wait_seconds.value_or(is_directory() ? 0 : kRemoteWaitSeconds);
}

// Tries again, with growing pauses, as long as something may appear and time is left.
template <typename Try>
auto Source::Wait(std::uint64_t version, const base::CancelToken* cancel, const Try& attempt)
    -> decltype(attempt()) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::duration<double>(WaitSeconds());
  auto pause = std::chrono::milliseconds(50);
  while (true) {
    auto result = attempt();
    if (result || !MayAppear(result.error()) || Clock::now() + pause > deadline) return result;
    const auto until = Clock::now() + pause;
    while (Clock::now() < until) {
      if (cancel != nullptr) SYNCLINE_TRY(cancel->Check());
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    pause = std::min(2 * pause, std::chrono::milliseconds(2000));
    SYNCLINE_TRY(Refresh(version));
  }
}

Result<std::vector<std::uint64_t>> Source::ListVersions() {
  if (is_directory()) return store::ListVersions(*files_, path());
  if (!objects_->can_list()) return WalkVersions();
  SYNCLINE_ASSIGN(std::vector<std::uint64_t> versions,
                  ListVersionFolders(*objects_, options_.cancel));
  // A version that is on its way up has a folder, too.
  while (!versions.empty()) {
    SYNCLINE_ASSIGN(const bool there, Has(versions.back()));
    if (there) break;
    versions.pop_back();
  }
  return versions;
}

Result<std::vector<std::uint64_t>> Source::WalkVersions() {
  SYNCLINE_ASSIGN(std::uint64_t at, Latest());
  std::vector<std::uint64_t> versions = {at};
  while (true) {
    SYNCLINE_ASSIGN(const auto delta, ReadDeltaInfo(*files_, path(), at));
    if (!delta) break;
    at = delta->base_version;
    SYNCLINE_ASSIGN(const bool there, Has(at));
    if (!there) break;
    versions.push_back(at);
  }
  std::ranges::reverse(versions);
  return versions;
}

Result<std::uint64_t> Source::Latest() {
  if (is_directory()) {
    SYNCLINE_ASSIGN(const std::vector<std::uint64_t> versions, ListVersions());
    if (!versions.empty()) return versions.back();
    return Fail(Code::kNotFound, fmt::format("{} holds no version", url()));
  }
  SYNCLINE_ASSIGN(const std::optional<store::Latest> pointer, ReadLatest(*files_, path()));
  has_pointer_ = pointer.has_value();
  if (!pointer && objects_->can_list()) {
    SYNCLINE_ASSIGN(const std::vector<std::uint64_t> versions, ListVersions());
    if (!versions.empty()) return versions.back();
  }
  if (!pointer) {
    return Fail(Code::kNotFound,
                fmt::format("{} does not say which version is the newest ({} is missing); ask for "
                            "one by its number",
                            url(), kLatestName));
  }
  // The pointer moves after the version was committed.
  std::uint64_t newest = pointer->version;
  while (true) {
    SYNCLINE_ASSIGN(const bool more, Has(newest + 1));
    if (!more) return newest;
    ++newest;
  }
}

Result<bool> Source::Has(std::uint64_t version) {
  const std::string directory = base::JoinPath(path(), VersionName(version));
  if (is_directory()) return base::Exists(*files_, directory);
  SYNCLINE_ASSIGN(const bool ours, base::Exists(*files_, base::JoinPath(directory, kManifestName)));
  if (ours) return true;
  if (!has_pointer_) {
    SYNCLINE_ASSIGN(const std::optional<store::Latest> pointer, ReadLatest(*files_, path()));
    has_pointer_ = pointer.has_value();
  }
  // Where we publish, the manifest is the commit.
  if (*has_pointer_) return false;
  for (const std::string_view name :
       {checkpoint::kIndexName, checkpoint::kSingleFileName, checkpoint::kPipelineIndexName}) {
    SYNCLINE_ASSIGN(const bool there, base::Exists(*files_, base::JoinPath(directory, name)));
    if (there) return true;
  }
  return false;
}

Result<Described> Source::Describe(std::uint64_t version) {
  auto described = Wait(version, options_.cancel, [&] { return DescribeNow(version); });
  if (!described && !is_directory() && described.error().message.find(url()) == std::string::npos) {
    return Annotate(std::move(described).error(), url());
  }
  if (described) SYNCLINE_TRY(CheckSigned(*described));
  return described;
}

Result<Described> Source::DescribeNow(std::uint64_t version) {
  const std::string folder = VersionName(version);
  Described described{
      .number = version, .folder = folder, .directory = base::JoinPath(path(), folder)};
  SYNCLINE_ASSIGN(described.manifest, ReadManifest(*files_, described.directory));
  if (!described.manifest) {
    SYNCLINE_ASSIGN(const bool there, Has(version));
    if (!there) {
      return Fail(Code::kNotFound, fmt::format("version {} is not in {}", version, url()));
    }
  }
  SYNCLINE_ASSIGN(described.delta, ReadDeltaInfo(*files_, path(), version));
  if (described.manifest) {
    const Manifest& manifest = described.manifest->manifest;
    const std::optional<std::uint64_t> base =
        described.delta ? std::optional(described.delta->base_version) : std::nullopt;
    if (manifest.version != version || manifest.base_version != base) {
      return Fail(
          Code::kCorrupt,
          fmt::format("version {} of {}: the manifest speaks of version {} on {}, the index "
                      "of a base {}",
                      version, url(), manifest.version, manifest.base_version.value_or(version),
                      base.value_or(version)));
    }
    if (manifest.fold) {
      return Fail(Code::kCorrupt,
                  fmt::format("version {} of {}: the manifest is that of a fold", version, url()));
    }
    described.identity = described.manifest->identity;
    AddSizes(described);
    return described;
  }
  const std::string index_path = base::JoinPath(described.directory, checkpoint::kIndexName);
  SYNCLINE_ASSIGN(const auto index,
                  base::ReadTextIfThere(*files_, index_path, checkpoint::kMaxIndexBytes));
  // Nothing else vouches for these bytes, so they are read twice.
  SYNCLINE_ASSIGN(const auto index_again,
                  base::ReadTextIfThere(*files_, index_path, checkpoint::kMaxIndexBytes));
  if (index != index_again) {
    return Fail(Code::kCorrupt, fmt::format("{} changed while it was read", index_path));
  }
  if (index) {
    described.identity = "index:" + tensor::HashHex(tensor::HashKind::kXxh3, base::AsBytes(*index));
  }
  return described;
}

Result<std::vector<FoldEntry>> Source::KnownFolds() {
  std::vector<FoldEntry> folds;
  if (is_directory()) {
    SYNCLINE_ASSIGN(const std::vector<std::string> names, files_->List(path()));
    for (const std::string& name : names) {
      if (const auto range = ParseFoldName(name)) folds.push_back({.range = *range});
    }
    return folds;
  }
  const auto text = objects_->ReadText(std::string(kFoldsName), kMaxFoldsBytes, options_.cancel);
  if (!text && MeansNoFolds(text.error().code)) return folds;
  if (!text) return std::unexpected(text.error());
  auto parsed = ParseFolds(*text);
  if (parsed) return parsed;
  base::Log(base::LogLevel::kWarning, fmt::format("{}/{} cannot be read, and is left alone: {}",
                                                  url(), kFoldsName, parsed.error().message));
  return folds;
}

Result<std::vector<FoldRange>> Source::ListFolds() {
  if (objects_->can_list()) return ListFoldFolders(*objects_, options_.cancel);
  SYNCLINE_ASSIGN(const std::vector<FoldEntry> known, KnownFolds());
  std::vector<FoldRange> ranges;
  ranges.reserve(known.size());
  for (const FoldEntry& fold : known) ranges.push_back(fold.range);
  std::ranges::sort(ranges);
  return ranges;
}

Result<Described> Source::DescribeFold(const FoldRange& range) {
  auto described = ReadFold(range);
  if (described) {
    if (Status trusted = CheckSigned(*described); !trusted) return std::unexpected(trusted.error());
    return described;
  }
  return Annotate(std::move(described).error(), fmt::format("{} of {}", FoldName(range), url()));
}

Result<Described> Source::ReadFold(const FoldRange& range) {
  const std::string folder = FoldName(range);
  Described described{
      .number = range.to, .folder = folder, .directory = base::JoinPath(path(), folder)};
  SYNCLINE_ASSIGN(described.manifest, ReadManifest(*files_, described.directory));
  if (!described.manifest) return Fail(Code::kNotFound, "there is no manifest");
  SYNCLINE_ASSIGN(described.delta, ReadDeltaInfoIn(*files_, path(), folder, range.to));
  const Manifest& manifest = described.manifest->manifest;
  if (!manifest.fold || !described.delta || manifest.version != range.to ||
      manifest.base_version != range.from || described.delta->base_version != range.from) {
    return Fail(Code::kCorrupt, "manifest and index do not speak of a fold of that name");
  }
  described.identity = manifest.fold->target;
  AddSizes(described);
  described.full_copy_bytes.reset();
  return described;
}

Result<std::string> Source::Stamp(const Described& version) {
  if (!is_directory() || version.delta) return "";
  SYNCLINE_ASSIGN(const checkpoint::Checkpoint checkpoint,
                  checkpoint::Checkpoint::Open(*files_, version.directory));
  std::string text;
  for (std::size_t i = 0; i < checkpoint.files().size(); ++i) {
    SYNCLINE_ASSIGN(const base::FileInfo info, files_->Stat(checkpoint.FilePath(i)));
    text += fmt::format("{} {} {} {} {}\n", checkpoint.files()[i].name, info.size, info.modified_ns,
                        info.changed_ns, info.number);
  }
  return tensor::HashHex(tensor::HashKind::kXxh3, base::AsBytes(text));
}

Status Source::CheckSigned(Described& version) {
  if (keys_.empty()) return {};
  if (!version.manifest) {
    return Fail(
        Code::kPermissionDenied,
        fmt::format("version {} of {} is not signed: it has no manifest", version.number, url()));
  }
  SYNCLINE_ASSIGN(const auto signature,
                  base::ReadTextIfThere(*files_, base::JoinPath(version.directory, kSignatureName),
                                        kMaxSignatureBytes));
  auto signer = CheckSignature(version.manifest->text, signature.value_or(""), keys_);
  if (!signer) {
    return Annotate(std::move(signer).error(), fmt::format("{} of {}", NameOf(version), url()));
  }
  version.signed_by = *std::move(signer);
  return {};
}

Result<std::string> Source::Bring(const Described& version, Part part, const std::string& spool,
                                  base::ThreadPool& pool, base::Progress& progress) {
  const auto bring = [&] { return BringNow(version, part, spool, pool, progress); };
  auto directory = version.is_fold() ? bring() : Wait(version.number, options_.cancel, bring);
  if (directory) return directory;
  return Annotate(std::move(directory).error(), NameOf(version));
}

Result<std::string> Source::BringNow(const Described& version, Part part, const std::string& spool,
                                     base::ThreadPool& pool, base::Progress& progress) {
  const std::string_view folder = part == Part::kFullCopy ? kFullCopyFolder : "";
  const auto inside = [&](const std::string& directory) {
    return folder.empty() ? directory : base::JoinPath(directory, folder);
  };
  if (is_directory()) {
    if (version.manifest) {
      // A checkpoint's copy is hashed by whoever makes it.
      const bool hash = version.delta && part == Part::kVersion;
      SYNCLINE_TRY(CheckFiles(*files_, version.directory, version.manifest->manifest, part, hash,
                              pool, options_.cancel));
    }
    return inside(version.directory);
  }
  SYNCLINE_ASSIGN(std::vector<FetchFile> wanted, WantedFiles(version, part, spool));
  SYNCLINE_ASSIGN(const auto fetch,
                  Fetch::Plan(*objects_, *local_, std::move(wanted), {}, options_.cancel));
  SYNCLINE_TRY(fetch->Run(pool, progress));
  return inside(base::JoinPath(spool, version.folder));
}

Result<std::vector<FetchFile>> Source::WantedFiles(const Described& version, Part part,
                                                   const std::string& spool) {
  const std::string to = base::JoinPath(spool, version.folder);
  std::vector<FetchFile> wanted;
  const auto add = [&](const std::string& name, std::uint64_t bytes, const std::string& sha256) {
    wanted.push_back({.version = version.number,
                      .key = base::JoinPath(version.directory, name),
                      .path = base::JoinPath(to, name),
                      .bytes = bytes,
                      .sha256 = sha256,
                      .may_appear = !version.is_fold()});
  };
  if (version.manifest) {
    for (const ManifestFile& file : version.manifest->manifest.files) {
      if (IsOfFullCopy(file.name) != (part == Part::kFullCopy)) continue;
      add(file.name, file.bytes, file.sha256);
    }
    return wanted;
  }
  // What the version's own files name, and what can be listed beside them.
  SYNCLINE_ASSIGN(const std::vector<std::string> names,
                  ListForeignFiles(*files_, version.directory, version.delta.has_value(),
                                   objects_->can_list()));
  for (const std::string& name : names) {
    SYNCLINE_ASSIGN(const base::FileInfo info,
                    files_->Stat(base::JoinPath(version.directory, name)));
    add(name, info.size, "");
  }
  return wanted;
}

Result<std::unique_ptr<Arrival>> Source::StartBringing(std::span<const Described> deltas,
                                                       const std::string& spool,
                                                       base::ThreadPool& pool,
                                                       base::Progress& progress) {
  if (is_directory()) return StartChecking(deltas, pool);
  std::vector<FetchFile> wanted;
  for (const Described& version : deltas) {
    if (!version.manifest) {
      SYNCLINE_TRY(Bring(version, Part::kVersion, spool, pool, progress));
      continue;
    }
    SYNCLINE_ASSIGN(std::vector<FetchFile> more, WantedFiles(version, Part::kVersion, spool));
    std::ranges::move(more, std::back_inserter(wanted));
  }
  return Arrival::Fetching(*objects_, *local_, spool, std::move(wanted),
                           {.wait_seconds = WaitSeconds(),
                            .refresh = [this](std::uint64_t version) { return Refresh(version); },
                            .ends_first = true},
                           pool.size(), progress, options_.cancel);
}

// Whether the files have their sizes is known when it returns.
Result<std::unique_ptr<Arrival>> Source::StartChecking(std::span<const Described> deltas,
                                                       base::ThreadPool& pool) {
  struct Delta {
    std::uint64_t number;
    std::string name;
    std::string directory;
    Manifest manifest;  // its files only
    bool may_appear;
  };
  std::vector<Delta> checked;
  for (const Described& version : deltas) {
    if (!version.manifest) continue;
    checked.push_back({version.number, NameOf(version), version.directory, {}, !version.is_fold()});
    checked.back().manifest.files = version.manifest->manifest.files;
  }
  const auto check = [this](const Delta& delta, bool hash, base::ThreadPool& with,
                            const base::CancelToken* cancel) -> Status {
    const auto look = [&] {
      return CheckFiles(*files_, delta.directory, delta.manifest, Part::kVersion, hash, with,
                        cancel);
    };
    Status status = delta.may_appear ? Wait(delta.number, cancel, look) : look();
    if (status) return {};
    return Annotate(std::move(status).error(), delta.name);
  };
  for (const Delta& delta : checked) {
    Status right = check(delta, false, pool, options_.cancel);
    if (!right) return Arrival::Ended(*files_, path(), {std::move(right), delta.number});
  }
  return Arrival::Checking(
      *files_, path(),
      [checked = std::move(checked), check](base::ThreadPool& own,
                                            const base::CancelToken* cancel) -> Arrival::Verdict {
        for (const Delta& delta : checked) {
          Status right = check(delta, true, own, cancel);
          if (!right) return {std::move(right), delta.number};
        }
        return {};
      },
      pool.size(), options_.cancel);
}

}  // namespace syncline::store
