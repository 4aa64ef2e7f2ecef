// 1. Real files show what programs see. Beside them stands, in Nodes, what is durable: the old
//    content of pages that were changed since the last sync, and the changes of names in a log.
// 2. Before a change of content the old pages are kept; a failed change has done no more than that.
//    A change of names is recorded when it has happened. A file that loses its last name is kept
//    open, since the name may come back.
// 3. CutPower chooses what survives of the log, moves every file and directory that does not stand
//    where it should into a holding folder, puts all in place, and then settles contents.
//
// Invariant: for every name that was ever asked for, `now` is what the real directory has.
#include "base/power_loss_file_system.h"

#include <fmt/core.h>

#include <mutex>
#include <random>
#include <utility>

#include "base/power_loss_nodes.h"

namespace syncline::base {

using power_loss::Node;

class PowerLossFileSystem::Recorder {
 public:
  Recorder(FileSystem& inner, std::string root) : inner_(inner), root_path_(std::move(root)) {
    while (root_path_.ends_with('/')) root_path_.pop_back();
    root_->directory = true;
  }

  FileSystem& inner() { return inner_; }
  Status CheckPower(const std::string& path) {
    const std::scoped_lock lock(mutex_);
    return Alive(path);
  }

  Result<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode);
  Status MakeDirectories(const std::string& path);
  Status Rename(const std::string& from, const std::string& to);
  Status Remove(const std::string& path);
  Status SyncDirectory(const std::string& path);
  Result<std::unique_ptr<FileLock>> Lock(const std::string& path, LockMode mode, bool wait);
  Status CutPower(std::uint64_t seed);

  Status Write(Node& node, File& file, ByteSpan from, std::uint64_t offset);
  // Truncate or Allocate.
  Status Resize(Node& node, File& file, std::uint64_t size, Status (File::*resize)(std::uint64_t));
  Status Sync(Node& node, File& file);

 private:
  // Where a path leads.
  struct Place {
    std::shared_ptr<Node> directory;  // null: the path is the root, or not below it
    std::string name;
    std::shared_ptr<Node> node;  // null: nothing has that name
  };
  struct SharedLock {
    std::unique_ptr<FileLock> lock;
  };
  class RecordedFile;
  class RecordedLock;

  Status Alive(const std::string& path) const {
    if (!cut_) return {};
    return Fail(Code::kIo, path + ": the power was cut");
  }
  Result<Place> Find(const std::string& path);
  Result<std::shared_ptr<Node>> FindName(const std::shared_ptr<Node>& directory,
                                         const std::string& name, const std::string& path);
  // The content of a file that loses its name, for the case that the name comes back.
  Result<std::unique_ptr<File>> OpenUnnamed(const Node* node, const std::string& path);
  void Link(const Place& place, std::shared_ptr<Node> node);
  Status MoveAside(Node& directory, const std::string& path);
  Status PutInPlace(Node& directory, const std::string& path, std::mt19937_64& random);
  Status PutOne(Node& node, bool stands, const std::string& path);
  std::string HoldingFolder() const { return root_path_ + "/.power_cut"; }

  FileSystem& inner_;
  std::string root_path_;
  std::mutex mutex_;  // guards all below, and that real files and records change together
  std::shared_ptr<Node> root_ = std::make_shared<Node>();
  power_loss::NameLog log_;
  std::vector<std::weak_ptr<SharedLock>> locks_;
  std::size_t held_ = 0;
  bool cut_ = false;
};

class PowerLossFileSystem::Recorder::RecordedFile final : public File {
 public:
  RecordedFile(Recorder& owner, std::unique_ptr<File> inner, std::shared_ptr<Node> node)
      : owner_(owner), inner_(std::move(inner)), node_(std::move(node)) {}

  const std::string& path() const override { return inner_->path(); }
  Result<FileInfo> Stat() override {
    SYNCLINE_TRY(owner_.CheckPower(path()));
    return inner_->Stat();
  }
  Result<std::size_t> ReadAt(MutableByteSpan into, std::uint64_t offset) override {
    SYNCLINE_TRY(owner_.CheckPower(path()));
    return inner_->ReadAt(into, offset);
  }
  Status WriteAt(ByteSpan from, std::uint64_t offset) override {
    return owner_.Write(*node_, *inner_, from, offset);
  }
  Status Allocate(std::uint64_t size) override {
    return owner_.Resize(*node_, *inner_, size, &File::Allocate);
  }
  Status Truncate(std::uint64_t size) override {
    return owner_.Resize(*node_, *inner_, size, &File::Truncate);
  }
  Status Sync() override { return owner_.Sync(*node_, *inner_); }
  Result<Mapping> Map(bool writable) override {
    SYNCLINE_TRY(owner_.CheckPower(path()));
    if (writable) {
      return Fail(Code::kInvalidArgument, path() + ": stores through a mapping cannot be recorded");
    }
    return inner_->Map(false);
  }

 private:
  Recorder& owner_;
  std::unique_ptr<File> inner_;
  std::shared_ptr<Node> node_;
};

class PowerLossFileSystem::Recorder::RecordedLock final : public FileLock {
 public:
  explicit RecordedLock(std::shared_ptr<SharedLock> lock) : lock_(std::move(lock)) {}

 private:
  std::shared_ptr<SharedLock> lock_;
};

Status PowerLossFileSystem::Recorder::Write(Node& node, File& file, ByteSpan from,
                                            std::uint64_t offset) {
  const std::scoped_lock lock(mutex_);
  SYNCLINE_TRY(Alive(file.path()));
  SYNCLINE_TRY(KeepOldPages(node, file, offset, offset + from.size()));
  Status written = file.WriteAt(from, offset);
  // A failed write may have written a part.
  SYNCLINE_ASSIGN(const FileInfo info, file.Stat());
  node.size = info.size;
  return written;
}

Status PowerLossFileSystem::Recorder::Resize(Node& node, File& file, std::uint64_t size,
                                             Status (File::*resize)(std::uint64_t)) {
  const std::scoped_lock lock(mutex_);
  SYNCLINE_TRY(Alive(file.path()));
  if (size < node.size) SYNCLINE_TRY(KeepOldPages(node, file, size, node.size));
  Status resized = (file.*resize)(size);
  SYNCLINE_ASSIGN(const FileInfo info, file.Stat());
  node.size = info.size;
  return resized;
}

Status PowerLossFileSystem::Recorder::Sync(Node& node, File& file) {
  const std::scoped_lock lock(mutex_);
  SYNCLINE_TRY(Alive(file.path()));
  MarkSynced(node);
  return {};
}

Result<std::shared_ptr<Node>> PowerLossFileSystem::Recorder::FindName(
    const std::shared_ptr<Node>& directory, const std::string& name, const std::string& path) {
  const auto known = directory->now.find(name);
  auto info = inner_.Stat(path);
  if (!info) {
    if (info.error().code != Code::kNotFound) return std::unexpected(std::move(info).error());
    if (known != directory->now.end()) {  // removed behind our back
      directory->now.erase(known);
      log_.AddDurable(directory, name, nullptr);
    }
    return nullptr;
  }
  const bool is_directory = info->kind == FileInfo::Kind::kDirectory;
  if (known != directory->now.end() && known->second->directory == is_directory) {
    if (!is_directory) known->second->size = info->size;
    return known->second;
  }
  // It was there before us (or was made behind our back).
  auto node = std::make_shared<Node>();
  node->directory = is_directory;
  node->size = node->durable_size = info->size;
  directory->now.insert_or_assign(name, node);
  log_.AddDurable(directory, name, node);
  return node;
}

Result<PowerLossFileSystem::Recorder::Place> PowerLossFileSystem::Recorder::Find(
    const std::string& path) {
  Place place;
  if (!path.starts_with(root_path_)) return place;
  std::string_view rest = std::string_view(path).substr(root_path_.size());
  if (!rest.empty() && rest.front() != '/') return place;
  std::vector<std::string> parts;
  while (!rest.empty()) {
    rest.remove_prefix(1);
    const std::string_view part = rest.substr(0, rest.find('/'));
    if (!part.empty() && part != ".") parts.emplace_back(part);
    rest.remove_prefix(part.size());
  }
  if (parts.empty()) {
    place.node = root_;
    return place;
  }
  place.directory = root_;
  std::string at = root_path_;
  for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
    at += "/" + parts[i];
    const auto known = place.directory->now.find(parts[i]);
    if (known != place.directory->now.end() && known->second->directory) {
      place.directory = known->second;
      continue;
    }
    SYNCLINE_ASSIGN(auto next, FindName(place.directory, parts[i], at));
    if (next == nullptr || !next->directory) return Place{};  // the real call will fail
    place.directory = std::move(next);
  }
  place.name = parts.back();
  SYNCLINE_ASSIGN(place.node, FindName(place.directory, place.name, at + "/" + place.name));
  return place;
}

Result<std::unique_ptr<File>> PowerLossFileSystem::Recorder::OpenUnnamed(const Node* node,
                                                                         const std::string& path) {
  if (node == nullptr || node->directory) return nullptr;
  return inner_.Open(path, OpenMode::kRead);
}

void PowerLossFileSystem::Recorder::Link(const Place& place, std::shared_ptr<Node> node) {
  if (place.directory == nullptr) return;
  if (node != nullptr) {
    place.directory->now.insert_or_assign(place.name, node);
  } else {
    place.directory->now.erase(place.name);
  }
  log_.Add(place.directory, place.name, std::move(node));
}

Result<std::unique_ptr<File>> PowerLossFileSystem::Recorder::Open(const std::string& path,
                                                                  OpenMode mode) {
  const std::scoped_lock lock(mutex_);
  SYNCLINE_TRY(Alive(path));
  SYNCLINE_ASSIGN(Place place, Find(path));
  if (mode == OpenMode::kCreate && place.node != nullptr && !place.node->directory) {
    SYNCLINE_ASSIGN(const auto old, inner_.Open(path, OpenMode::kRead));
    SYNCLINE_TRY(KeepOldPages(*place.node, *old, 0, place.node->size));
  }
  SYNCLINE_ASSIGN(auto file, inner_.Open(path, mode));
  if (place.directory == nullptr) return file;
  if (place.node == nullptr) {
    place.node = std::make_shared<Node>();
    Link(place, place.node);
  }
  if (mode == OpenMode::kCreate) place.node->size = 0;
  return std::make_unique<RecordedFile>(*this, std::move(file), std::move(place.node));
}

Status PowerLossFileSystem::Recorder::MakeDirectories(const std::string& path) {
  const std::scoped_lock lock(mutex_);
  SYNCLINE_TRY(Alive(path));
  for (std::size_t end = path.find('/', 1); true; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    SYNCLINE_ASSIGN(const Place place, Find(part));
    if (place.node == nullptr) {
      SYNCLINE_TRY(inner_.MakeDirectories(part));
      if (place.directory != nullptr) {
        auto node = std::make_shared<Node>();
        node->directory = true;
        Link(place, std::move(node));
      }
    }
    if (end == std::string::npos) break;
  }
  return inner_.MakeDirectories(path);  // fails if something else has the name
}

Status PowerLossFileSystem::Recorder::Rename(const std::string& from, const std::string& to) {
  const std::scoped_lock lock(mutex_);
  SYNCLINE_TRY(Alive(from));
  SYNCLINE_ASSIGN(const Place source, Find(from));
  SYNCLINE_ASSIGN(const Place target, Find(to));
  SYNCLINE_ASSIGN(auto displaced, OpenUnnamed(target.node.get(), to));
  std::unique_ptr<File> leaving;
  if (target.directory == nullptr) {
    SYNCLINE_ASSIGN(leaving, OpenUnnamed(source.node.get(), from));
  }
  SYNCLINE_TRY(inner_.Rename(from, to));
  if (source.node != nullptr && source.node == target.node) return {};
  if (target.node != nullptr) target.node->unnamed = std::move(displaced);
  if (source.node == nullptr) {  // came from elsewhere
    if (target.directory == nullptr) return {};
    target.directory->now.erase(target.name);
    SYNCLINE_ASSIGN(const FileInfo info, inner_.Stat(to));
    auto node = std::make_shared<Node>();
    node->directory = info.kind == FileInfo::Kind::kDirectory;
    node->size = node->durable_size = info.size;
    Link(target, std::move(node));
    return {};
  }
  if (target.directory == nullptr) {
    source.node->unnamed = std::move(leaving);
    Link(source, nullptr);
    return {};
  }
  source.directory->now.erase(source.name);
  Link(target, source.node);
  return {};
}

Status PowerLossFileSystem::Recorder::Remove(const std::string& path) {
  const std::scoped_lock lock(mutex_);
  SYNCLINE_TRY(Alive(path));
  SYNCLINE_ASSIGN(const Place place, Find(path));
  SYNCLINE_ASSIGN(auto content, OpenUnnamed(place.node.get(), path));
  SYNCLINE_TRY(inner_.Remove(path));
  if (place.node == nullptr) return {};
  place.node->unnamed = std::move(content);
  Link(place, nullptr);
  return {};
}

Status PowerLossFileSystem::Recorder::SyncDirectory(const std::string& path) {
  const std::scoped_lock lock(mutex_);
  SYNCLINE_TRY(Alive(path));
  SYNCLINE_ASSIGN(const FileInfo info, inner_.Stat(path));
  if (info.kind != FileInfo::Kind::kDirectory) {
    return Fail(Code::kInvalidArgument, "cannot sync directory " + path + ": is none");
  }
  SYNCLINE_ASSIGN(const Place place, Find(path));
  if (place.node != nullptr) log_.SyncDirectory(*place.node);
  return {};
}

Result<std::unique_ptr<FileLock>> PowerLossFileSystem::Recorder::Lock(const std::string& path,
                                                                      LockMode mode, bool wait) {
  {
    const std::scoped_lock lock(mutex_);
    SYNCLINE_TRY(Alive(path));
    SYNCLINE_ASSIGN(const Place place, Find(path));
    if (place.directory != nullptr && place.node == nullptr) {
      SYNCLINE_TRY(inner_.Open(path, OpenMode::kCreateNew));
      Link(place, std::make_shared<Node>());
    }
  }
  SYNCLINE_ASSIGN(auto taken, inner_.Lock(path, mode, wait));  // may wait: others must go on
  const std::scoped_lock lock(mutex_);
  SYNCLINE_TRY(Alive(path));
  auto shared = std::make_shared<SharedLock>(std::move(taken));
  std::erase_if(locks_, [](const auto& old) { return old.expired(); });
  locks_.push_back(shared);
  return std::make_unique<RecordedLock>(std::move(shared));
}

Status PowerLossFileSystem::Recorder::CutPower(std::uint64_t seed) {
  const std::scoped_lock lock(mutex_);
  SYNCLINE_TRY(Alive(root_path_));
  cut_ = true;
  for (const auto& weak : locks_) {
    if (const auto held = weak.lock()) held->lock = nullptr;
  }
  std::mt19937_64 random(seed);
  log_.Settle(random);
  SYNCLINE_TRY(inner_.MakeDirectories(HoldingFolder()));
  SYNCLINE_TRY(MoveAside(*root_, root_path_));
  SYNCLINE_TRY(PutInPlace(*root_, root_path_, random));
  return inner_.RemoveAll(HoldingFolder());
}

// Deepest first, so that paths stay as they are.
Status PowerLossFileSystem::Recorder::MoveAside(Node& directory, const std::string& path) {
  for (const auto& [name, node] : directory.now) {
    const std::string at = JoinPath(path, name);
    if (node->directory) SYNCLINE_TRY(MoveAside(*node, at));
    const auto durable = directory.durable.find(name);
    if (durable != directory.durable.end() && durable->second == node) continue;
    node->held = JoinPath(HoldingFolder(), fmt::format("{}", held_++));
    SYNCLINE_TRY(inner_.Rename(at, node->held));
  }
  return {};
}

Status PowerLossFileSystem::Recorder::PutInPlace(Node& directory, const std::string& path,
                                                 std::mt19937_64& random) {
  for (const auto& [name, node] : directory.durable) {
    const std::string at = JoinPath(path, name);
    const auto now = directory.now.find(name);
    SYNCLINE_TRY(PutOne(*node, now != directory.now.end() && now->second == node, at));
    if (node->directory) {
      SYNCLINE_TRY(PutInPlace(*node, at, random));
    } else if (!node->old_pages.empty() || node->size != node->durable_size) {
      SYNCLINE_ASSIGN(const auto file, inner_.Open(at, OpenMode::kReadWrite));
      SYNCLINE_TRY(SettleContent(*node, *file, random));
    }
  }
  return {};
}

Status PowerLossFileSystem::Recorder::PutOne(Node& node, bool stands, const std::string& path) {
  if (stands) return {};
  if (!node.held.empty()) return inner_.Rename(node.held, path);
  if (node.directory) return inner_.MakeDirectories(path);
  if (node.unnamed == nullptr) return Fail(Code::kInternal, path + ": its content was not kept");
  std::vector<std::byte> content(node.size);
  SYNCLINE_TRY(ReadExactly(*node.unnamed, content, 0));
  SYNCLINE_ASSIGN(const auto file, inner_.Open(path, OpenMode::kCreateNew));
  return file->WriteAt(content, 0);
}

PowerLossFileSystem::PowerLossFileSystem(FileSystem& inner, std::string root)
    : recorder_(std::make_unique<Recorder>(inner, std::move(root))) {}
PowerLossFileSystem::~PowerLossFileSystem() = default;

Status PowerLossFileSystem::CutPower(std::uint64_t seed) { return recorder_->CutPower(seed); }

Result<std::unique_ptr<File>> PowerLossFileSystem::Open(const std::string& path, OpenMode mode) {
  return recorder_->Open(path, mode);
}
Result<FileInfo> PowerLossFileSystem::Stat(const std::string& path) {
  SYNCLINE_TRY(recorder_->CheckPower(path));
  return recorder_->inner().Stat(path);
}
Result<std::vector<std::string>> PowerLossFileSystem::List(const std::string& directory) {
  SYNCLINE_TRY(recorder_->CheckPower(directory));
  return recorder_->inner().List(directory);
}
Status PowerLossFileSystem::MakeDirectories(const std::string& path) {
  return recorder_->MakeDirectories(path);
}
Status PowerLossFileSystem::Rename(const std::string& from, const std::string& to) {
  return recorder_->Rename(from, to);
}
Status PowerLossFileSystem::Remove(const std::string& path) { return recorder_->Remove(path); }
Status PowerLossFileSystem::RemoveAll(const std::string& path) {
  const auto info = Stat(path);
  if (!info && info.error().code == Code::kNotFound) return {};
  SYNCLINE_TRY(info);
  if (info->kind == FileInfo::Kind::kDirectory) {
    SYNCLINE_ASSIGN(const std::vector<std::string> names, List(path));
    for (const std::string& name : names) SYNCLINE_TRY(RemoveAll(JoinPath(path, name)));
  }
  return Remove(path);
}
Status PowerLossFileSystem::SyncDirectory(const std::string& path) {
  return recorder_->SyncDirectory(path);
}
Result<std::unique_ptr<FileLock>> PowerLossFileSystem::Lock(const std::string& path, LockMode mode,
                                                            bool wait) {
  return recorder_->Lock(path, mode, wait);
}

}  // namespace syncline::base
