// Reads take no lock: a file is there whole, or not at all.
//
// A write:
// 1. Under the store's lock: folders are made, a file aside (in the same folder, under a name of
//    our own) is made and locked, and files aside that no one holds a lock on (their writers died)
//    are removed.
// 2. The content is written aside and synced.
// 3. Under the store's lock: with if_absent, nothing may stand there; the file is renamed to its
//    name. That is the commit: all writers through this store, in any process, come one after the
//    other here. Then the folders are synced, from the file's own up to the store's.
//
// A removal removes, under the lock too, folders that it leaves empty: a folder is there because of
// its objects, as in every other store. So step 1 holds the lock: the folder of a file aside is not
// empty any more.
//
// The lock is flock(2): it goes with the process that holds it.
#include "objects/directory_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "objects/remote_store.h"

namespace syncline::objects {
namespace {

using base::CancelToken;
using base::Code;
using base::Fail;
using base::FileInfo;
using base::FileLock;
using base::FileSystem;
using base::Result;
using base::Status;

constexpr std::uint64_t kBlockBytes = 4 << 20;

Status Check(const CancelToken* cancel) { return cancel == nullptr ? Status() : cancel->Check(); }

bool HasOwnName(std::string_view key) {
  return key.starts_with(kOwnNames) || key.find(fmt::format("/{}", kOwnNames)) != key.npos;
}

std::string FolderOf(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

class DirectoryStore final : public ObjectStore {
 public:
  DirectoryStore(FileSystem& files, std::string url, std::string path)
      : files_(files), url_(std::move(url)), path_(std::move(path)) {}

  const std::string& url() const override { return url_; }
  const std::string& local_path() const override { return path_; }
  bool can_list() const override { return true; }
  bool can_write() const override { return true; }

  Result<std::vector<ObjectInfo>> List(const std::string& prefix, bool folders_only,
                                       const CancelToken* cancel) override;
  Result<ObjectInfo> Stat(const std::string& key, const CancelToken* cancel) override;
  Status ReadAt(const std::string& key, base::MutableByteSpan into, std::uint64_t offset,
                const std::string& tag, const std::function<void(std::uint64_t)>& received,
                const CancelToken* cancel) override;
  Result<std::string> ReadText(const std::string& key, std::uint64_t limit,
                               const CancelToken* cancel) override;
  Status Put(const std::string& key, base::File& from,
             const std::function<void(std::uint64_t)>& sent, const CancelToken* cancel) override;
  Status PutText(const std::string& key, std::string_view text, bool if_absent,
                 const CancelToken* cancel) override;
  Status Remove(const std::string& key, const CancelToken* cancel) override;

 private:
  using Fill = std::function<Status(base::File&)>;
  struct Aside {
    std::string path;
    std::unique_ptr<FileLock> lock;
    std::unique_ptr<base::File> file;
  };

  Status CheckName(const std::string& key) const;
  std::string Path(const std::string& key) const { return base::JoinPath(path_, key); }
  Status Walk(const std::string& folder, const std::string& prefix, bool folders_only,
              const CancelToken* cancel, std::vector<ObjectInfo>& found);
  Result<std::unique_ptr<FileLock>> Lock(const CancelToken* cancel);
  Result<Aside> MakeAside(const std::string& folder, const CancelToken* cancel);
  Status RemoveDeadAsides(const std::string& folder);
  Status Write(const std::string& key, std::uint64_t bytes, const Fill& fill, bool if_absent,
               const CancelToken* cancel);
  Status Commit(const std::string& aside, const std::string& key, bool if_absent,
                const CancelToken* cancel);

  FileSystem& files_;
  std::string url_;
  std::string path_;
};

Status DirectoryStore::CheckName(const std::string& key) const {
  SYNCLINE_TRY(CheckKey(url_, key));
  if (!HasOwnName(key)) return {};
  return Fail(Code::kInvalidArgument,
              fmt::format("'{}' is no name of an object in {}: names with {} are the store's own",
                          key, url_, kOwnNames));
}

// Adds what is below `folder` (empty or with '/') and begins with `prefix`.
Status DirectoryStore::Walk(const std::string& folder, const std::string& prefix, bool folders_only,
                            const CancelToken* cancel, std::vector<ObjectInfo>& found) {
  SYNCLINE_TRY(Check(cancel));
  const auto names = files_.List(folder.empty() ? path_ : Path(folder));
  if (!names) {
    // Below the store's own directory a folder that is not there is one without objects.
    const Code code = names.error().code;
    const bool no_folder = code == Code::kNotFound || code == Code::kInvalidArgument;
    if (!folder.empty() && no_folder) return {};
    return std::unexpected(names.error());
  }
  for (const std::string& name : *names) {
    const std::string key = folder + name;
    if (name.starts_with(kOwnNames) || !key.starts_with(prefix)) continue;
    const auto info = files_.Stat(Path(key));
    if (!info) {
      if (info.error().code == Code::kNotFound) continue;  // gone since, or a link to nothing
      return std::unexpected(info.error());
    }
    if (info->kind == FileInfo::Kind::kDirectory) {
      if (folders_only) {
        found.push_back({.key = key + "/"});
      } else {
        SYNCLINE_TRY(Walk(key + "/", prefix, false, cancel, found));
      }
    } else if (info->kind == FileInfo::Kind::kFile && !folders_only) {
      found.push_back({.key = key, .bytes = info->size});
    }
  }
  return {};
}

Result<std::vector<ObjectInfo>> DirectoryStore::List(const std::string& prefix, bool folders_only,
                                                     const CancelToken* cancel) {
  SYNCLINE_TRY(CheckPrefix(url_, prefix, folders_only));
  std::vector<ObjectInfo> found;
  const std::string folder = prefix.substr(0, prefix.rfind('/') + 1);
  SYNCLINE_TRY(Walk(folder, prefix, folders_only, cancel, found));
  std::ranges::sort(found, {}, &ObjectInfo::key);
  return found;
}

Result<ObjectInfo> DirectoryStore::Stat(const std::string& key, const CancelToken* cancel) {
  SYNCLINE_TRY(CheckName(key));
  SYNCLINE_TRY(Check(cancel));
  SYNCLINE_ASSIGN(const FileInfo info, files_.Stat(Path(key)));
  if (info.kind == FileInfo::Kind::kFile) return ObjectInfo{.key = key, .bytes = info.size};
  return Fail(Code::kNotFound, Path(key) + " is no file");
}

Status DirectoryStore::ReadAt(const std::string& key, base::MutableByteSpan into,
                              std::uint64_t offset, const std::string&,
                              const std::function<void(std::uint64_t)>& received,
                              const CancelToken* cancel) {
  SYNCLINE_TRY(Stat(key, cancel));
  SYNCLINE_ASSIGN(const auto file, files_.Open(Path(key), base::OpenMode::kRead));
  while (!into.empty()) {
    SYNCLINE_TRY(Check(cancel));
    const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(kBlockBytes, into.size()));
    SYNCLINE_TRY(base::ReadExactly(*file, into.first(size), offset));
    if (received) received(size);
    into = into.subspan(size);
    offset += size;
  }
  return {};
}

Result<std::string> DirectoryStore::ReadText(const std::string& key, std::uint64_t limit,
                                             const CancelToken* cancel) {
  SYNCLINE_TRY(Stat(key, cancel));
  return base::ReadText(files_, Path(key), limit);
}

Result<std::unique_ptr<FileLock>> DirectoryStore::Lock(const CancelToken* cancel) {
  const std::string path = Path(fmt::format("{}lock", kOwnNames));
  while (true) {
    auto lock = files_.Lock(path, base::LockMode::kExclusive, false);
    if (lock || lock.error().code != Code::kLocked) return lock;
    // Held for a few system calls only. A blocking wait could not be cancelled.
    SYNCLINE_TRY(Check(cancel));
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

Status DirectoryStore::RemoveDeadAsides(const std::string& folder) {
  const std::string part = fmt::format("{}part-", kOwnNames);
  SYNCLINE_ASSIGN(const std::vector<std::string> names, files_.List(folder));
  for (const std::string& name : names) {
    if (!name.starts_with(part)) continue;
    const std::string path = base::JoinPath(folder, name);
    if (files_.Lock(path, base::LockMode::kExclusive, false)) SYNCLINE_TRY(files_.RemoveAll(path));
  }
  return {};
}

Result<DirectoryStore::Aside> DirectoryStore::MakeAside(const std::string& folder,
                                                        const CancelToken* cancel) {
  SYNCLINE_TRY(files_.MakeDirectories(path_));
  SYNCLINE_ASSIGN(const auto lock, Lock(cancel));
  SYNCLINE_TRY(files_.MakeDirectories(folder));
  SYNCLINE_TRY(RemoveDeadAsides(folder));
  Aside aside;
  aside.path = base::JoinPath(folder, fmt::format("{}part-{}", kOwnNames, base::RandomHex(8)));
  SYNCLINE_ASSIGN(aside.file, files_.Open(aside.path, base::OpenMode::kCreateNew));
  SYNCLINE_ASSIGN(aside.lock, files_.Lock(aside.path, base::LockMode::kExclusive, false));
  return aside;
}

Status DirectoryStore::Commit(const std::string& aside, const std::string& key, bool if_absent,
                              const CancelToken* cancel) {
  SYNCLINE_ASSIGN(const auto lock, Lock(cancel));
  const std::string path = Path(key);
  if (if_absent) {
    SYNCLINE_ASSIGN(const bool there, base::Exists(files_, path));
    if (there) return Fail(Code::kAlreadyExists, path + " is there already");
  }
  SYNCLINE_TRY(files_.Rename(aside, path));
  for (std::string folder = FolderOf(key); !folder.empty(); folder = FolderOf(folder)) {
    SYNCLINE_TRY(files_.SyncDirectory(Path(folder)));
  }
  return files_.SyncDirectory(path_);
}

Status DirectoryStore::Write(const std::string& key, std::uint64_t bytes, const Fill& fill,
                             bool if_absent, const CancelToken* cancel) {
  SYNCLINE_TRY(CheckName(key));
  SYNCLINE_TRY(Check(cancel));
  SYNCLINE_ASSIGN(const Aside aside, MakeAside(FolderOf(Path(key)), cancel));
  Status done = aside.file->Allocate(bytes);
  if (done) done = fill(*aside.file);
  if (done) done = aside.file->Sync();
  if (done) done = Commit(aside.path, key, if_absent, cancel);
  if (!done) (void)files_.RemoveAll(aside.path);
  return done;
}

Status DirectoryStore::Put(const std::string& key, base::File& from,
                           const std::function<void(std::uint64_t)>& sent,
                           const CancelToken* cancel) {
  SYNCLINE_ASSIGN(const FileInfo info, from.Stat());
  const auto copy = [&](base::File& into) -> Status {
    std::vector<std::byte> block(
        static_cast<std::size_t>(std::min<std::uint64_t>(info.size, kBlockBytes)));
    for (std::uint64_t offset = 0; offset < info.size; offset += block.size()) {
      SYNCLINE_TRY(Check(cancel));
      const auto size =
          static_cast<std::size_t>(std::min<std::uint64_t>(info.size - offset, block.size()));
      const auto bytes = std::span(block).first(size);
      SYNCLINE_TRY(base::ReadExactly(from, bytes, offset));
      SYNCLINE_TRY(into.WriteAt(bytes, offset));
      if (sent) sent(size);
    }
    return {};
  };
  return Write(key, info.size, copy, false, cancel);
}

Status DirectoryStore::PutText(const std::string& key, std::string_view text, bool if_absent,
                               const CancelToken* cancel) {
  return Write(
      key, text.size(), [&](base::File& into) { return into.WriteAt(base::AsBytes(text), 0); },
      if_absent, cancel);
}

Status DirectoryStore::Remove(const std::string& key, const CancelToken* cancel) {
  SYNCLINE_TRY(CheckName(key));
  if (const auto info = Stat(key, cancel); !info) {
    if (info.error().code == Code::kNotFound) return {};
    return std::unexpected(info.error());
  }
  SYNCLINE_ASSIGN(const auto lock, Lock(cancel));
  if (auto removed = files_.Remove(Path(key));
      !removed && removed.error().code != Code::kNotFound) {
    return removed;
  }
  std::string folder = FolderOf(key);
  for (; !folder.empty(); folder = FolderOf(folder)) {
    const auto left = files_.List(Path(folder));
    if (!left || !left->empty() || !files_.Remove(Path(folder))) break;
  }
  return files_.SyncDirectory(folder.empty() ? path_ : Path(folder));
}

}  // namespace

std::unique_ptr<ObjectStore> OpenDirectory(FileSystem& files, std::string url, std::string path) {
  return std::make_unique<DirectoryStore>(files, std::move(url), std::move(path));
}

}  // namespace syncline::objects
