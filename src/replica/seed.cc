// Bring:
// 1. Copy everything into `incoming`, hashing tensors on the way.
// 2. Sync files and folders, then write `incoming/.complete` (a head) durably.
// Swap:
// 3. Empty `previous`. If a whole version stands, and this is not itself a way back
//    (`incoming/.return`), keep its head as `previous/.complete`. Write `incoming/.begun`. All durably.
// 4. Withdraw the marker, durably.
// 5. Move the old files to `previous`: every file of the replica that is not one of the new ones in
//    its place already. Sync.
// 6. Move the new files into place. Sync.
// 7. Write the head, publish the marker, durably; remove what is left of `incoming`. (That it is gone
//    is durable before the next change of the replica: each withdraws the marker in the same folder,
//    durably, first.)
// From 3 to 7 `incoming/.begun` says that a swap has begun, and where each file lies says how far it
// has come: each step may be repeated from 4 on, which recovery does. A marker with the new token
// says that it ended.
#include "replica/seed.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/index.h"
#include "replica/changes.h"
#include "replica/hash_tensors.h"
#include "replica/install.h"
#include "store/file_hash.h"
#include "store/version.h"

namespace syncline::replica {
namespace {

using base::Code;
using base::Fail;
using base::FileSystem;
using base::Result;
using base::Status;
using checkpoint::Checkpoint;
using checkpoint::CheckpointTensor;

constexpr std::string_view kIncoming = "incoming";
constexpr std::string_view kPrevious = "previous";
constexpr std::string_view kComplete = ".complete";
// In `incoming`: what is replaced is not kept; and: `previous` is ready for what is replaced.
constexpr std::string_view kReturn = ".return";
constexpr std::string_view kBegun = ".begun";

std::string Folder(const std::string& name) {
  const std::size_t slash = name.rfind('/');
  return slash == std::string::npos ? "" : name.substr(0, slash);
}

// The folders of these files, each with its parents, the outermost first; "" is one of them.
std::set<std::string> Folders(const std::vector<std::string>& names) {
  std::set<std::string> folders = {""};
  for (const std::string& name : names) {
    for (std::string folder = Folder(name); !folder.empty(); folder = Folder(folder)) {
      folders.insert(folder);
    }
  }
  return folders;
}

std::string Join(const std::string& directory, const std::string& folder) {
  return folder.empty() ? directory : base::JoinPath(directory, folder);
}

Status MakeFolders(FileSystem& files, const std::string& directory,
                   const std::vector<std::string>& names) {
  for (const std::string& folder : Folders(names)) {
    SYNCLINE_TRY(files.MakeDirectories(Join(directory, folder)));
  }
  return {};
}

Status SyncFolders(FileSystem& files, const std::string& directory,
                   const std::vector<std::string>& names) {
  for (const std::string& folder : Folders(names)) {
    SYNCLINE_TRY(files.SyncDirectory(Join(directory, folder)));
  }
  return {};
}

// Step 1 and 2.
class Copier {
 public:
  Copier(const ReplicaState& state, const Checkpoint& from)
      : state_(state), files_(state.files()), from_(from), to_(state.Path(kIncoming)) {}

  Status CheckNamesAndSpace(bool consume) {
    SYNCLINE_ASSIGN(companions_, store::ListCompanions(files_, from_.directory()));
    for (const Checkpoint::WeightFile& file : from_.files()) {
      if (!base::IsInsidePath(file.name)) {
        return Fail(Code::kCorrupt,
                    fmt::format("file {} is not inside {}", file.name, from_.directory()));
      }
      names_.push_back(file.name);
      bytes_ += file.bytes;
    }
    names_.insert(names_.end(), companions_.begin(), companions_.end());
    for (const std::string& name : companions_) {
      SYNCLINE_ASSIGN(const base::FileInfo info,
                      files_.Stat(base::JoinPath(from_.directory(), name)));
      bytes_ += info.size;
    }
    if (consume) return {};  // it takes its room already
    SYNCLINE_ASSIGN(const std::uint64_t room, files_.FreeBytes(state_.directory()));
    if (room >= bytes_) return {};
    return Fail(Code::kNoSpace, fmt::format("{}: a copy of {} needs {} bytes, {} are free",
                                            state_.directory(), from_.directory(), bytes_, room));
  }

  Result<Head> Copy(bool consume, base::ThreadPool& pool, base::Progress& progress,
                    const base::CancelToken* cancel) {
    SYNCLINE_TRY(MakeFolders(files_, to_, names_));
    for (const std::string& name : companions_) {
      const std::string path = base::JoinPath(from_.directory(), name);
      SYNCLINE_ASSIGN(const auto in, files_.Open(path, base::OpenMode::kRead));
      SYNCLINE_ASSIGN(const auto out, files_.Open(To(name), base::OpenMode::kCreate));
      SYNCLINE_ASSIGN(const base::FileInfo info, in->Stat());
      SYNCLINE_TRY(base::CopyRange(*in, 0, *out, 0, info.size));
    }
    progress.Begin("seed", from_.total_bytes());
    SYNCLINE_ASSIGN(std::vector<TensorHash> hashes, consume ? MoveWeights(pool, progress, cancel)
                                                            : CopyWeights(pool, progress, cancel));
    Head head;
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      head.hashes.emplace(from_.tensors()[i].name, std::move(hashes[i]));
    }
    SYNCLINE_ASSIGN(const Checkpoint copy, Checkpoint::Open(files_, to_));
    SYNCLINE_ASSIGN(head.rests, HashRests(files_, copy));
    if (!consume) {  // what no tensor's hash covers is compared with where it came from
      SYNCLINE_ASSIGN(const auto rests, HashRests(files_, from_));
      if (rests != head.rests) {
        return Fail(
            Code::kChecksumMismatch,
            fmt::format("{} changed while it was copied, or was read wrongly", from_.directory()));
      }
    }
    return head;
  }

  Status Sync(base::ThreadPool& pool) const {
    SYNCLINE_TRY(SyncFiles(files_, to_, {names_.begin(), names_.end()}, pool));
    return SyncFolders(files_, to_, names_);
  }

  // The copy against the SHA-256 of each file in the manifest.
  Status CheckFiles(const store::Manifest& expected, store::Part part, base::ThreadPool& pool,
                    const base::CancelToken* cancel) const {
    const std::string folder =
        part == store::Part::kFullCopy ? fmt::format("{}/", store::kFullCopyFolder) : "";
    std::map<std::string, const store::ManifestFile*> known;
    for (const store::ManifestFile& file : expected.files) {
      if (file.name.starts_with(folder)) known.emplace(file.name.substr(folder.size()), &file);
    }
    std::vector<std::string> paths;
    for (const std::string& name : names_) {
      if (!known.contains(name)) {
        return Fail(Code::kCorrupt,
                    fmt::format("{}: the manifest does not name {}", from_.directory(), name));
      }
      paths.push_back(To(name));
    }
    SYNCLINE_ASSIGN(const std::vector<store::FileHash> hashes,
                    store::HashFiles(files_, paths, pool, cancel));
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      const store::ManifestFile& file = *known.find(names_[i])->second;
      if (hashes[i].sha256 == file.sha256) continue;
      return Fail(Code::kChecksumMismatch,
                  fmt::format("what was copied of {} has {} bytes and the SHA-256 {}, the manifest "
                              "says {} bytes and {}",
                              base::JoinPath(from_.directory(), names_[i]), hashes[i].bytes,
                              hashes[i].sha256, file.bytes, file.sha256));
    }
    return {};
  }

  std::uint64_t bytes() const { return bytes_; }

 private:
  std::string To(const std::string& name) const { return base::JoinPath(to_, name); }

  Result<std::vector<TensorHash>> CopyWeights(base::ThreadPool& pool, base::Progress& progress,
                                              const base::CancelToken* cancel) {
    std::vector<std::unique_ptr<base::File>> copies;
    for (std::size_t i = 0; i < from_.files().size(); ++i) {
      const Checkpoint::WeightFile& file = from_.files()[i];
      SYNCLINE_ASSIGN(auto copy, files_.Open(To(file.name), base::OpenMode::kCreate));
      SYNCLINE_TRY(copy->Allocate(file.bytes));
      SYNCLINE_ASSIGN(const auto in, files_.Open(from_.FilePath(i), base::OpenMode::kRead));
      for (const auto& [begin, end] : UncoveredRanges(from_, i)) {
        SYNCLINE_TRY(base::CopyRange(*in, begin, *copy, begin, end - begin));
      }
      copies.push_back(std::move(copy));
    }
    const CopyPiece copy_piece = [&](const CheckpointTensor& tensor, std::uint64_t offset,
                                     base::ByteSpan bytes) {
      return copies[tensor.file]->WriteAt(bytes, offset);
    };
    return HashTensors(files_, from_, nullptr, copy_piece, pool, progress, cancel);
  }

  Result<std::vector<TensorHash>> MoveWeights(base::ThreadPool& pool, base::Progress& progress,
                                              const base::CancelToken* cancel) {
    SYNCLINE_ASSIGN(std::vector<TensorHash> hashes,
                    HashTensors(files_, from_, nullptr, nullptr, pool, progress, cancel));
    for (std::size_t i = 0; i < from_.files().size(); ++i) {
      SYNCLINE_TRY(files_.Rename(from_.FilePath(i), To(from_.files()[i].name)));
    }
    return hashes;
  }

  const ReplicaState& state_;
  FileSystem& files_;
  const Checkpoint& from_;
  std::string to_;
  std::vector<std::string> companions_;
  std::vector<std::string> names_;  // of all files
  std::uint64_t bytes_ = 0;
};

Status CheckTensors(const Checkpoint& from, const store::Manifest& expected,
                    const std::map<std::string, TensorHash, std::less<>>& hashes) {
  const auto corrupt = [&](const std::string& what) {
    return Fail(Code::kCorrupt, fmt::format("{}: {}", from.directory(), what));
  };
  if (expected.tensors_total != from.tensors().size()) {
    return corrupt(fmt::format("{} tensors, the manifest says {}", from.tensors().size(),
                               expected.tensors_total));
  }
  std::vector<std::string> wrong;
  // Of a full copy beside a delta the manifest lists the changed tensors only; its files have their
  // own hashes.
  for (const store::ManifestTensor& tensor : expected.tensors) {
    const CheckpointTensor* held = from.Find(tensor.name);
    if (held == nullptr) return corrupt(fmt::format("tensor {} is missing", tensor.name));
    if (held->dtype != tensor.dtype || held->shape != tensor.shape) {
      return corrupt(fmt::format("tensor {} is {} {}, the manifest says {} {}", tensor.name,
                                 Name(held->dtype), tensor::ShapeText(held->shape),
                                 Name(tensor.dtype), tensor::ShapeText(tensor.shape)));
    }
    if (hashes.find(tensor.name)->second.hex != tensor.hash) wrong.push_back(tensor.name);
  }
  if (wrong.empty()) return {};
  return Fail(Code::kChecksumMismatch,
              fmt::format("{}: checksum mismatch for {} tensors: {}", from.directory(),
                          wrong.size(), fmt::join(wrong, ", ")));
}

// A delta whose index has lost what makes it one looks like a full version of small U8 tensors; but
// its files carry a checksum under the name of each tensor.
Status CheckIsNoDelta(const Checkpoint& from) {
  for (const CheckpointTensor& tensor : from.tensors()) {
    for (const auto& [key, value] : from.files()[tensor.file].metadata) {
      if (key != tensor.name) continue;
      return Fail(Code::kCorrupt,
                  fmt::format("{} holds the frames of a delta, and its index does not say so",
                              from.FilePath(tensor.file)));
    }
    break;
  }
  return {};
}

Result<std::optional<Head>> ReadComplete(const ReplicaState& state, std::string_view folder) {
  return state.ReadHeadFile(base::JoinPath(state.Path(folder), kComplete));
}

// All files below a directory, hidden ones left out; relative paths.
Status ListFiles(FileSystem& files, const std::string& directory, const std::string& folder,
                 std::vector<std::string>& found) {
  SYNCLINE_ASSIGN(const std::vector<std::string> names, files.List(Join(directory, folder)));
  for (const std::string& name : names) {
    if (name.starts_with('.')) continue;
    const std::string relative = base::JoinPath(folder, name);
    SYNCLINE_ASSIGN(const bool link, files.IsShared(base::JoinPath(directory, relative)));
    const auto info = files.Stat(base::JoinPath(directory, relative));
    if (!link && info && info->kind == base::FileInfo::Kind::kDirectory) {
      SYNCLINE_TRY(ListFiles(files, directory, relative, found));
    } else {
      found.push_back(relative);
    }
  }
  return {};
}

}  // namespace

Result<std::uint64_t> Seeder::Bring(const std::string& checkpoint, const SeedOptions& options,
                                    const store::Manifest* expected, store::Part part,
                                    base::ThreadPool& pool, base::Progress& progress,
                                    const base::CancelToken* cancel) {
  FileSystem& files = state_.files();
  SYNCLINE_TRY(files.RemoveAll(state_.Path(kIncoming)));
  SYNCLINE_ASSIGN(const Checkpoint from, Checkpoint::Open(files, checkpoint));
  SYNCLINE_TRY(CheckIsNoDelta(from));
  Copier copier(state_, from);
  SYNCLINE_TRY(copier.CheckNamesAndSpace(options.consume));
  SYNCLINE_ASSIGN(Head head, copier.Copy(options.consume, pool, progress, cancel));
  if (expected != nullptr) {
    // Files that were moved here were hashed when they were fetched.
    if (!options.consume) SYNCLINE_TRY(copier.CheckFiles(*expected, part, pool, cancel));
    SYNCLINE_TRY(CheckTensors(from, *expected, head.hashes));
  }
  SYNCLINE_TRY(copier.Sync(pool));
  head.held = options.to;
  head.held.token = DrawToken();
  head.boot_id = state_.boot_id();
  head.source = options.source;
  head.seed = options.seed;
  head.stamp = options.stamp;
  const std::string incoming = state_.Path(kIncoming);
  SYNCLINE_TRY(state_.WriteHeadFile(base::JoinPath(incoming, kComplete), head));
  SYNCLINE_TRY(files.SyncDirectory(state_.Path("")));
  return copier.bytes();
}

Result<bool> Seeder::IsReady() const {
  SYNCLINE_ASSIGN(const auto head, ReadComplete(state_, kIncoming));
  return head.has_value();
}

Result<std::optional<Head>> Seeder::Previous() const { return ReadComplete(state_, kPrevious); }

Result<bool> Seeder::PrepareReturn() {
  SYNCLINE_ASSIGN(const auto head, Previous());
  if (!head) return false;
  FileSystem& files = state_.files();
  const std::string previous = state_.Path(kPrevious);
  SYNCLINE_TRY(files.RemoveAll(state_.Path(kIncoming)));
  SYNCLINE_TRY(base::WriteTextAtomically(files, base::JoinPath(previous, kReturn), "", true));
  SYNCLINE_TRY(files.Rename(previous, state_.Path(kIncoming)));
  SYNCLINE_TRY(files.SyncDirectory(state_.Path("")));
  return true;
}

Result<Head> Seeder::Swap() {
  FileSystem& files = state_.files();
  const std::string& home = state_.directory();
  const std::string incoming = state_.Path(kIncoming);
  const std::string previous = state_.Path(kPrevious);
  SYNCLINE_ASSIGN(const std::optional<Head> complete, ReadComplete(state_, kIncoming));
  if (!complete)
    return Fail(Code::kCorrupt, fmt::format("{}/{} cannot be read", incoming, kComplete));
  const Head& next = *complete;

  SYNCLINE_ASSIGN(const auto marker, state_.ReadMarker());
  SYNCLINE_ASSIGN(const std::optional<Head> old, state_.ReadHead());
  if (marker && marker->token == next.held.token) {  // it was interrupted at its very end
    SYNCLINE_TRY(files.RemoveAll(incoming));
    return next;
  }
  SYNCLINE_ASSIGN(const bool is_return, base::Exists(files, base::JoinPath(incoming, kReturn)));
  SYNCLINE_ASSIGN(const bool begun, base::Exists(files, base::JoinPath(incoming, kBegun)));
  if (!begun) {
    const bool held = marker && old && marker->token == old->held.token;
    SYNCLINE_TRY(files.RemoveAll(previous));
    SYNCLINE_TRY(files.MakeDirectories(previous));
    if (held && !is_return) {
      SYNCLINE_TRY(state_.WriteHeadFile(base::JoinPath(previous, kComplete), *old));
    }
    SYNCLINE_TRY(files.SyncDirectory(state_.Path("")));
    SYNCLINE_TRY(base::WriteTextAtomically(files, base::JoinPath(incoming, kBegun), "", true));
  }
  SYNCLINE_TRY(state_.WithdrawMarker());
  SYNCLINE_TRY(files.MakeDirectories(previous));

  std::vector<std::string> waiting;  // new files that are not in their place
  for (const auto& [name, hash] : next.rests) {
    SYNCLINE_ASSIGN(const bool there, base::Exists(files, base::JoinPath(incoming, name)));
    if (there) waiting.push_back(name);
  }
  std::vector<std::string> present;
  SYNCLINE_TRY(ListFiles(files, home, "", present));
  std::vector<std::string> stale;
  for (const std::string& name : present) {
    if (!next.rests.contains(name) || std::ranges::binary_search(waiting, name)) {
      stale.push_back(name);
    }
  }
  SYNCLINE_TRY(MakeFolders(files, previous, stale));
  for (const std::string& name : stale) {
    SYNCLINE_TRY(files.Rename(base::JoinPath(home, name), base::JoinPath(previous, name)));
  }
  SYNCLINE_TRY(SyncFolders(files, previous, stale));
  SYNCLINE_TRY(SyncFolders(files, home, stale));

  SYNCLINE_TRY(MakeFolders(files, home, waiting));
  for (const std::string& name : waiting) {
    SYNCLINE_TRY(files.Rename(base::JoinPath(incoming, name), base::JoinPath(home, name)));
  }
  SYNCLINE_TRY(SyncFolders(files, home, waiting));
  SYNCLINE_TRY(state_.WriteHead(next));
  SYNCLINE_TRY(state_.PublishMarker(next.held, /*durable=*/true));
  if (old && old->held.token != next.held.token) {
    RecordChange(state_, Change{.from = old->held, .to = next.held, .everything = true});
  }
  SYNCLINE_TRY(files.RemoveAll(incoming));
  return next;
}

}  // namespace syncline::replica
