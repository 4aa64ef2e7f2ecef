#include "replica/seed.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/index.h"
#include "replica/hash_tensors.h"
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

constexpr std::size_t kCopyBytes = 1 << 20;

std::string Folder(const std::string& name) {
  const std::size_t slash = name.rfind('/');
  return slash == std::string::npos ? "" : name.substr(0, slash);
}

Status CopyRange(base::File& from, base::File& to, std::uint64_t begin, std::uint64_t end) {
  std::vector<std::byte> buffer(std::min<std::uint64_t>(kCopyBytes, end - begin));
  for (std::uint64_t at = begin; at < end; at += buffer.size()) {
    const auto piece = std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), end - at));
    SYNCLINE_TRY(base::ReadExactly(from, piece, at));
    SYNCLINE_TRY(to.WriteAt(piece, at));
  }
  return {};
}

class Seeder {
 public:
  Seeder(FileSystem& files, const ReplicaState& state, const std::string& source)
      : files_(files), state_(state), source_(source), incoming_(state.Path("incoming")) {}

  Result<std::uint64_t> Run(std::uint64_t version, base::ThreadPool& pool, base::Progress& progress,
                            const base::CancelToken* cancel) {
    SYNCLINE_TRY(files_.RemoveAll(incoming_));
    SYNCLINE_TRY(files_.MakeDirectories(incoming_));
    SYNCLINE_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(files_, source_));
    SYNCLINE_TRY(CopyCompanions(checkpoint.directory()));
    SYNCLINE_ASSIGN(Head head, CopyWeights(checkpoint, pool, progress, cancel));
    head.version = version;
    head.boot_id = state_.BootId();
    SYNCLINE_TRY(Swap(head));
    return bytes_;
  }

 private:
  // Everything beside the weight files that the replica takes over: the index and the companions.
  Status CopyCompanions(const std::string& directory) {
    SYNCLINE_ASSIGN(const std::vector<std::string> names, files_.List(directory));
    for (const std::string& name : names) {
      if (name != checkpoint::kIndexName && !store::IsCompanionFile(name)) continue;
      const std::string path = base::JoinPath(directory, name);
      SYNCLINE_ASSIGN(const base::FileInfo info, files_.Stat(path));
      if (info.kind != base::FileInfo::Kind::kFile) continue;
      SYNCLINE_ASSIGN(const auto from, files_.Open(path, base::OpenMode::kRead));
      SYNCLINE_ASSIGN(const auto to,
                      files_.Open(base::JoinPath(incoming_, name), base::OpenMode::kCreate));
      SYNCLINE_TRY(CopyRange(*from, *to, 0, info.size));
      names_.push_back(name);
      bytes_ += info.size;
    }
    return {};
  }

  Result<Head> CopyWeights(const Checkpoint& checkpoint, base::ThreadPool& pool,
                           base::Progress& progress, const base::CancelToken* cancel) {
    std::vector<std::unique_ptr<base::File>> copies;
    for (std::size_t i = 0; i < checkpoint.files().size(); ++i) {
      const Checkpoint::WeightFile& file = checkpoint.files()[i];
      if (!base::IsInsidePath(file.name)) {
        return Fail(Code::kCorrupt, fmt::format("file {} is not inside {}", file.name, source_));
      }
      SYNCLINE_TRY(files_.MakeDirectories(base::JoinPath(incoming_, Folder(file.name))));
      SYNCLINE_ASSIGN(auto copy,
                      files_.Open(base::JoinPath(incoming_, file.name), base::OpenMode::kCreate));
      SYNCLINE_TRY(copy->Allocate(file.bytes));
      SYNCLINE_ASSIGN(const auto from, files_.Open(checkpoint.FilePath(i), base::OpenMode::kRead));
      SYNCLINE_TRY(CopyUncovered(checkpoint, i, *from, *copy));
      copies.push_back(std::move(copy));
      names_.push_back(file.name);
      bytes_ += file.bytes;
    }
    progress.Begin("seed", checkpoint.total_bytes());
    SYNCLINE_ASSIGN(
        std::vector<TensorHash> hashes,
        HashTensors(
            files_, checkpoint, nullptr,
            [&](const CheckpointTensor& tensor, std::uint64_t offset, base::ByteSpan bytes) {
              return copies[tensor.file]->WriteAt(bytes, offset);
            },
            pool, progress, cancel));
    Head head;
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      head.hashes.emplace(checkpoint.tensors()[i].name, std::move(hashes[i]));
    }
    return head;
  }

  // What no tensor of the checkpoint covers: the header, and tensors that the index leaves out.
  Status CopyUncovered(const Checkpoint& checkpoint, std::size_t file, base::File& from,
                       base::File& to) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
    for (const CheckpointTensor& tensor : checkpoint.tensors()) {
      if (tensor.file == file) ranges.emplace_back(tensor.offset, tensor.offset + tensor.bytes);
    }
    std::ranges::sort(ranges);
    std::uint64_t at = 0;
    for (const auto& [begin, end] : ranges) {
      if (begin > at) SYNCLINE_TRY(CopyRange(from, to, at, begin));
      at = std::max(at, end);
    }
    return CopyRange(from, to, at, checkpoint.files()[file].bytes);
  }

  Status Swap(const Head& head) {
    SYNCLINE_TRY(state_.WithdrawMarker());
    SYNCLINE_TRY(RemoveStale());
    std::set<std::string> folders;
    for (const std::string& name : names_) {
      if (const std::string folder = Folder(name); folders.insert(folder).second) {
        SYNCLINE_TRY(files_.MakeDirectories(base::JoinPath(state_.directory(), folder)));
      }
      SYNCLINE_TRY(
          files_.Rename(base::JoinPath(incoming_, name), base::JoinPath(state_.directory(), name)));
    }
    SYNCLINE_TRY(files_.RemoveAll(incoming_));
    SYNCLINE_TRY(state_.WriteHead(head));
    return state_.PublishMarker(head.version);
  }

  // Files of an older content that would be taken for part of the new one.
  Status RemoveStale() {
    SYNCLINE_ASSIGN(const std::vector<std::string> names, files_.List(state_.directory()));
    for (const std::string& name : names) {
      if (name.starts_with('.') || std::ranges::find(names_, name) != names_.end()) continue;
      const std::string path = base::JoinPath(state_.directory(), name);
      SYNCLINE_ASSIGN(const base::FileInfo info, files_.Stat(path));
      if (info.kind == base::FileInfo::Kind::kFile) SYNCLINE_TRY(files_.Remove(path));
    }
    return {};
  }

  FileSystem& files_;
  const ReplicaState& state_;
  const std::string& source_;
  std::string incoming_;
  std::vector<std::string> names_;  // of all files in incoming_
  std::uint64_t bytes_ = 0;
};

}  // namespace

Result<std::uint64_t> Seed(FileSystem& files, const ReplicaState& state, const std::string& source,
                           std::uint64_t version, base::ThreadPool& pool, base::Progress& progress,
                           const base::CancelToken* cancel) {
  Seeder seeder(files, state, source);
  return seeder.Run(version, pool, progress, cancel);
}

}  // namespace syncline::replica
