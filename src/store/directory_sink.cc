// 1. Stage: .syncline/staging (of a fold: folding) is removed and made anew, with the version's
//    directory in it. The lock says that nobody else writes there.
// 2. The publisher writes and syncs the files.
// 3. Commit: signature and manifest are written, every directory of the version is synced, then it
//    is renamed to weight_vN. The rename is the commit: readers see all of a version or nothing.
// 4. The store directory is synced: from here on a loss of power leaves the version there too.
// 5. PointTo: the newest pointer is replaced by a rename.
// A process that dies before the rename of 3 leaves staging behind, which the next one removes; one
// that dies after it leaves a whole version, from which the next one goes on, and whose pointer it
// moves.
#include "store/directory_sink.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "store/signature.h"
#include "store/version.h"

namespace syncline::store {
namespace {

using base::FileSystem;
using base::Result;
using base::Status;

class DirectorySink final : public Sink {
 public:
  DirectorySink(FileSystem& files, std::string store, bool durable, SinkUse use,
                std::unique_ptr<base::FileLock> lock)
      : files_(files),
        store_(std::move(store)),
        durable_(durable),
        use_(use),
        lock_(std::move(lock)) {}

  const std::string& url() const override { return store_; }
  std::string local_path() const override { return store_; }
  std::string OwnPath(std::string_view name) const override {
    return base::JoinPath(OwnDirectory(store_), name);
  }

  std::string FolderUrl(std::string_view name) const override {
    return base::JoinPath(store_, name);
  }

  Result<std::optional<NewestVersion>> FindNewest(const base::CancelToken*) override {
    SYNCLINE_ASSIGN(const std::vector<std::uint64_t> versions, ListVersions(files_, store_));
    if (versions.empty()) return std::nullopt;
    // Whoever put it there may have died before it was durable; what is built on it must not be.
    if (durable_) SYNCLINE_TRY(files_.SyncDirectory(store_));
    NewestVersion newest{.version = versions.back(), .manifest = {}};
    SYNCLINE_ASSIGN(newest.manifest, ReadManifest(files_, FolderUrl(VersionName(newest.version))));
    return newest;
  }

  Result<std::string> Stage(const std::string& name) override {
    const std::string staging = OwnPath(NamesOf(use_).staging);
    SYNCLINE_TRY(files_.RemoveAll(staging));
    std::string directory = base::JoinPath(staging, name);
    SYNCLINE_TRY(files_.MakeDirectories(directory));
    return directory;
  }

  CommitResult Commit(const StagedVersion& staged, base::Progress&,
                      const base::CancelToken* cancel) override {
    if (Status status = Seal(staged, cancel); !status) return {Outcome::kNothing, status};
    const std::string target = FolderUrl(staged.name);
    if (Status renamed = files_.Rename(staged.directory, target); !renamed) {
      const auto there = base::Exists(files_, staged.directory);
      return {there && *there ? Outcome::kNothing : Outcome::kUnknown, renamed};
    }
    if (!durable_) return {Outcome::kCommitted, {}};
    return {Outcome::kCommitted, files_.SyncDirectory(store_)};
  }

  Status PointTo(const Latest& latest, const base::CancelToken*) override {
    const auto now = ReadLatest(files_, store_);
    if (now && *now == latest) return {};
    return base::WriteTextAtomically(files_, base::JoinPath(store_, kLatestName),
                                     LatestText(latest), durable_);
  }

 private:
  // The manifest is the last file; then all names are on the device.
  Status Seal(const StagedVersion& staged, const base::CancelToken* cancel) {
    if (!staged.signature_text.empty()) {
      SYNCLINE_TRY(base::WriteTextAtomically(files_,
                                             base::JoinPath(staged.directory, kSignatureName),
                                             staged.signature_text, durable_));
    }
    SYNCLINE_TRY(base::WriteTextAtomically(files_, base::JoinPath(staged.directory, kManifestName),
                                           staged.manifest_text, durable_));
    if (durable_) {
      std::set<std::string> folders = {staged.directory};
      for (const std::string& file : staged.files) {
        for (std::size_t slash = file.find('/'); slash != std::string::npos;
             slash = file.find('/', slash + 1)) {
          folders.insert(base::JoinPath(staged.directory, file.substr(0, slash)));
        }
      }
      for (const std::string& folder : folders) SYNCLINE_TRY(files_.SyncDirectory(folder));
    }
    return cancel != nullptr ? cancel->Check() : Status();
  }

  FileSystem& files_;
  std::string store_;
  bool durable_;
  SinkUse use_;
  std::unique_ptr<base::FileLock> lock_;
};

}  // namespace

std::string OwnDirectory(const std::string& store) { return base::JoinPath(store, ".syncline"); }

Result<std::unique_ptr<Sink>> OpenDirectorySink(FileSystem& files, const std::string& store,
                                                bool durable, bool exclusive, SinkUse use) {
  const SinkNames names = NamesOf(use);
  const std::string own = OwnDirectory(store);
  SYNCLINE_TRY(base::MakeDirectoriesDurably(files, own, durable));
  if (!exclusive) return std::make_unique<DirectorySink>(files, store, durable, use, nullptr);
  auto lock = files.Lock(base::JoinPath(own, names.lock), base::LockMode::kExclusive, false);
  if (!lock) {
    return Annotate(std::move(lock).error(), fmt::format("another {} is at work", names.who));
  }
  SYNCLINE_TRY(files.RemoveAll(base::JoinPath(own, names.staging)));
  return std::make_unique<DirectorySink>(files, store, durable, use, *std::move(lock));
}

}  // namespace syncline::store
