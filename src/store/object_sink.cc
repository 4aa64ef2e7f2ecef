// 1. Stage: a directory on the local disk, where nobody else writes (its lock says so).
// 2. Commit: if the version has no manifest yet, its files are uploaded, the index last, so that a
//    foreign reader does not see half a version; then the signature.
// 3. The manifest is put if it is absent. That is the commit: the store itself decides between two
//    publishers. Where the answer is lost, the manifest that is there tells.
// 4. PointTo: the newest pointer is replaced.
// A publisher that ends before 3 leaves objects that no manifest names; the next one uploads over
// them, as the names of a version's files come again. One that ends after 3 leaves a whole version.
#include "store/object_sink.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <utility>

#include "base/thread_pool.h"
#include "checkpoint/index.h"
#include "store/file_hash.h"
#include "store/signature.h"
#include "store/version.h"

namespace syncline::store {
namespace {

using base::CancelToken;
using base::Code;
using base::Fail;
using base::FileSystem;
using base::Result;
using base::Status;
using objects::ObjectStore;

constexpr std::size_t kUploads = 4;  // at once

// The folder in $TMPDIR can be foreseen, so it must be ours alone.
Status CheckOwned(const std::string& path) {
  struct stat info = {};
  if (lstat(path.c_str(), &info) != 0) return base::FailErrno(errno, "cannot stat " + path);
  if (S_ISDIR(info.st_mode) && info.st_uid == geteuid() && (info.st_mode & 022) == 0) return {};
  return Fail(Code::kPermissionDenied,
              path + " is not a directory of this user alone; choose another work directory");
}

// Where files wait for their upload.
class WorkDirectory {
 public:
  static Result<WorkDirectory> Open(FileSystem& files, const std::string& asked,
                                    const std::string& store, SinkUse use) {
    WorkDirectory work;
    work.files_ = &files;
    work.path_ = asked;
    work.names_ = NamesOf(use);
    if (asked.empty()) {
      const char* temp = std::getenv("TMPDIR");
      const std::string name =
          fmt::format("syncline-{}{}-{}", use == SinkUse::kFold ? "fold-" : "", geteuid(),
                      Sha256Hex(base::AsBytes(store)).substr(0, 16));
      work.path_ = base::JoinPath(temp != nullptr && *temp != '\0' ? temp : "/tmp", name);
    }
    SYNCLINE_TRY(files.MakeDirectories(work.path_));
    if (asked.empty()) SYNCLINE_TRY(CheckOwned(work.path_));
    auto lock = files.Lock(work.Path(work.names_.lock), base::LockMode::kExclusive, false);
    if (!lock) {
      return Annotate(std::move(lock).error(),
                      fmt::format("another {} is at work", work.names_.who));
    }
    work.lock_ = *std::move(lock);
    SYNCLINE_TRY(files.RemoveAll(work.Staging()));
    work.remove_ = asked.empty();
    return work;
  }
  WorkDirectory(WorkDirectory&&) = default;
  ~WorkDirectory() {
    if (lock_ == nullptr) return;
    (void)files_->RemoveAll(remove_ ? path_ : Staging());
  }

  std::string Path(std::string_view name) const { return base::JoinPath(path_, name); }
  std::string Staging() const { return Path(names_.staging); }
  std::string_view who() const { return names_.who; }

 private:
  WorkDirectory() = default;
  FileSystem* files_ = nullptr;
  std::string path_;
  SinkNames names_;
  std::unique_ptr<base::FileLock> lock_;
  bool remove_ = false;
};

class ObjectSink final : public Sink {
 public:
  ObjectSink(FileSystem& files, std::unique_ptr<ObjectStore> objects, WorkDirectory work)
      : files_(files), objects_(std::move(objects)), work_(std::move(work)), pool_(kUploads) {}

  const std::string& url() const override { return objects_->url(); }
  std::string local_path() const override { return {}; }
  std::string OwnPath(std::string_view name) const override { return work_.Path(name); }

  std::string FolderUrl(std::string_view name) const override {
    return base::JoinPath(url(), name);
  }

  Result<std::optional<NewestVersion>> FindNewest(const CancelToken* cancel) override {
    SYNCLINE_ASSIGN(const std::vector<std::uint64_t> listed, ListVersionFolders(*objects_, cancel));
    std::set<std::uint64_t, std::greater<>> versions(listed.begin(), listed.end());
    // Not every server lists what was written a moment ago.
    if (const auto latest = ReadPointer(cancel)) versions.insert(latest->version);
    for (const std::uint64_t version : versions) {
      SYNCLINE_ASSIGN(std::optional<ReadManifestResult> manifest, Manifest(version, cancel));
      if (manifest) return NewestVersion{version, std::move(manifest)};
    }
    return std::nullopt;
  }

  Result<std::string> Stage(const std::string& name) override {
    SYNCLINE_TRY(files_.RemoveAll(work_.Staging()));
    std::string directory = base::JoinPath(work_.Staging(), name);
    SYNCLINE_TRY(files_.MakeDirectories(directory));
    return directory;
  }

  CommitResult Commit(const StagedVersion& staged, base::Progress& progress,
                      const CancelToken* cancel) override {
    if (Status status = Upload(staged, progress, cancel); !status) {
      return {Outcome::kNothing, std::move(status)};
    }
    CommitResult result = PutManifest(staged, cancel);
    (void)files_.RemoveAll(work_.Staging());  // at the latest the next Stage() does it
    return result;
  }

  Status PointTo(const Latest& latest, const CancelToken* cancel) override {
    if (ReadPointer(cancel) == latest) return {};
    return objects_->PutText(std::string(kLatestName), LatestText(latest), false, cancel);
  }

 private:
  // A pointer that cannot be read says nothing.
  std::optional<Latest> ReadPointer(const CancelToken* cancel) {
    const auto text = objects_->ReadText(std::string(kLatestName), kMaxLatestBytes, cancel);
    if (!text) return std::nullopt;
    auto latest = ParseLatest(*text);
    return latest ? std::optional(*std::move(latest)) : std::nullopt;
  }

  Result<std::optional<ReadManifestResult>> Manifest(std::uint64_t version,
                                                     const CancelToken* cancel) {
    const std::string key = base::JoinPath(VersionName(version), kManifestName);
    auto text = objects_->ReadText(key, kMaxManifestBytes, cancel);
    if (!text && text.error().code == Code::kNotFound) return std::nullopt;
    if (!text) return std::unexpected(std::move(text).error());
    return TakeManifest(*std::move(text), base::JoinPath(url(), key));
  }

  static std::string Key(const StagedVersion& staged, std::string_view name) {
    return base::JoinPath(staged.name, name);
  }

  std::unexpected<base::Error> Taken(const StagedVersion& staged) const {
    const auto version = ParseVersionName(staged.name);
    return Fail(Code::kAlreadyExists,
                fmt::format("another {} made {} of {}", work_.who(),
                            version ? fmt::format("version {}", *version) : staged.name, url()));
  }

  // Step 2.
  Status Upload(const StagedVersion& staged, base::Progress& progress, const CancelToken* cancel) {
    const auto there = objects_->Stat(Key(staged, kManifestName), cancel);
    if (there) return Taken(staged);
    if (there.error().code != Code::kNotFound) return std::unexpected(there.error());
    std::vector<std::string> shards = staged.files;
    std::uint64_t total = 0;
    for (const std::string& name : shards) {
      SYNCLINE_ASSIGN(const base::FileInfo info,
                      files_.Stat(base::JoinPath(staged.directory, name)));
      total += info.size;
    }
    const bool indexed = std::erase(shards, checkpoint::kIndexName) != 0;
    progress.Begin("upload", total);
    SYNCLINE_TRY(pool_.ParallelFor(
        shards.size(), [&](std::size_t i) { return Put(staged, shards[i], progress, cancel); },
        cancel));
    if (indexed) {
      SYNCLINE_TRY(Put(staged, std::string(checkpoint::kIndexName), progress, cancel));
    }
    const std::string signature = Key(staged, kSignatureName);
    if (!staged.signature_text.empty()) {
      return objects_->PutText(signature, staged.signature_text, false, cancel);
    }
    return objects_->Remove(signature, cancel);  // one that a publisher with a key left behind
  }

  Status Put(const StagedVersion& staged, const std::string& name, base::Progress& progress,
             const CancelToken* cancel) {
    SYNCLINE_ASSIGN(const auto file,
                    files_.Open(base::JoinPath(staged.directory, name), base::OpenMode::kRead));
    return objects_->Put(
        Key(staged, name), *file, [&](std::uint64_t sent) { progress.Add(sent); }, cancel);
  }

  // Step 3.
  CommitResult PutManifest(const StagedVersion& staged, const CancelToken* cancel) {
    const std::string key = Key(staged, kManifestName);
    Status put = objects_->PutText(key, staged.manifest_text, true, cancel);
    if (put) return {Outcome::kCommitted, {}};
    // A request that was tried again may have found its own first try.
    const auto there = objects_->ReadText(key, kMaxManifestBytes, cancel);
    if (there && *there == staged.manifest_text) return {Outcome::kCommitted, {}};
    switch (put.error().code) {
      case Code::kAlreadyExists:
        if (!there) return {Outcome::kUnknown, std::unexpected(there.error())};
        return {Outcome::kNothing, Taken(staged)};
      case Code::kPermissionDenied:
      case Code::kInvalidArgument:
      case Code::kIncompatible:
        return {Outcome::kNothing, std::move(put)};
      default:
        return {Outcome::kUnknown, std::move(put)};
    }
  }

  FileSystem& files_;
  std::unique_ptr<ObjectStore> objects_;
  WorkDirectory work_;
  base::ThreadPool pool_;
};

}  // namespace

Result<std::unique_ptr<Sink>> OpenObjectSink(FileSystem& files,
                                             std::unique_ptr<ObjectStore> objects,
                                             const std::string& work, SinkUse use) {
  if (!objects->can_list() || !objects->can_write()) {
    return Fail(Code::kIncompatible,
                objects->url() + " cannot be published to: expected a directory or s3://");
  }
  SYNCLINE_ASSIGN(WorkDirectory directory, WorkDirectory::Open(files, work, objects->url(), use));
  return std::make_unique<ObjectSink>(files, std::move(objects), std::move(directory));
}

}  // namespace syncline::store
