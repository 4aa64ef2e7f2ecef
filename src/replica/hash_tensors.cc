#include "replica/hash_tensors.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>

#include "store/version.h"

namespace syncline::replica {
namespace {

using base::FileSystem;
using base::Result;
using base::Status;
using checkpoint::Checkpoint;
using checkpoint::CheckpointTensor;

constexpr std::size_t kPieceBytes =
    std::size_t{256} * 1024;  // stays in the cache from reading to hashing

}  // namespace

Result<std::vector<TensorHash>> HashTensors(FileSystem& files, const Checkpoint& checkpoint,
                                            const KindOf& kind_of, const CopyPiece& copy,
                                            base::ThreadPool& pool, base::Progress& progress,
                                            const base::CancelToken* cancel) {
  std::vector<std::unique_ptr<base::File>> open_files;
  for (std::size_t i = 0; i < checkpoint.files().size(); ++i) {
    SYNCLINE_ASSIGN(auto file, files.Open(checkpoint.FilePath(i), base::OpenMode::kRead));
    open_files.push_back(std::move(file));
  }
  const std::vector<CheckpointTensor>& tensors = checkpoint.tensors();
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::ranges::greater(),
                           [&](std::size_t i) { return tensors[i].bytes; });
  std::vector<TensorHash> hashes(tensors.size());
  SYNCLINE_TRY(pool.ParallelFor(
      order.size(),
      [&](std::size_t i) -> Status {
        const CheckpointTensor& tensor = tensors[order[i]];
        TensorHash& hash = hashes[order[i]];
        if (kind_of) {
          const auto kind = kind_of(tensor.name);
          if (!kind) return {};
          hash.kind = *kind;
        }
        const auto hasher = tensor::MakeHasher(hash.kind);
        std::vector<std::byte> buffer(std::min<std::uint64_t>(kPieceBytes, tensor.bytes));
        for (std::uint64_t done = 0; done < tensor.bytes; done += kPieceBytes) {
          const auto piece =
              std::span(buffer).first(std::min<std::uint64_t>(kPieceBytes, tensor.bytes - done));
          SYNCLINE_TRY(base::ReadExactly(*open_files[tensor.file], piece, tensor.offset + done));
          hasher->Update(piece);
          if (copy) SYNCLINE_TRY(copy(tensor, tensor.offset + done, piece));
          progress.Add(piece.size());
        }
        hash.hex = hasher->Hex();
        return {};
      },
      cancel));
  return hashes;
}

std::vector<std::pair<std::uint64_t, std::uint64_t>> UncoveredRanges(const Checkpoint& checkpoint,
                                                                     std::size_t file) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> covered;
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    if (tensor.file == file) covered.emplace_back(tensor.offset, tensor.offset + tensor.bytes);
  }
  std::ranges::sort(covered);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  std::uint64_t at = 0;
  for (const auto& [begin, end] : covered) {
    if (begin > at) ranges.emplace_back(at, begin);
    at = std::max(at, end);
  }
  const std::uint64_t size = checkpoint.files()[file].bytes;
  if (size > at) ranges.emplace_back(at, size);
  return ranges;
}

namespace {

Status AddRange(base::File& file, std::uint64_t begin, std::uint64_t end, tensor::Hasher& hasher) {
  std::vector<std::byte> buffer(std::min<std::uint64_t>(kPieceBytes, end - begin));
  for (std::uint64_t at = begin; at < end; at += buffer.size()) {
    const auto piece = std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), end - at));
    SYNCLINE_TRY(base::ReadExactly(file, piece, at));
    hasher.Update(piece);
  }
  return {};
}

bool HoldsWeights(std::string_view name) {
  return name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
}

bool MeansDamage(const base::Error& error) {
  return error.code == base::Code::kCorrupt || error.code == base::Code::kNotFound ||
         error.code == base::Code::kIncompatible || error.code == base::Code::kInvalidArgument;
}

// Is the file there, and if it is a weight file, can its header be read?
Result<bool> CanBeOpened(FileSystem& files, const std::string& path) {
  const auto look = [&]() -> Status {
    SYNCLINE_ASSIGN(const auto file, files.Open(path, base::OpenMode::kRead));
    if (path.ends_with(".safetensors")) SYNCLINE_TRY(checkpoint::ReadSafetensorsHeader(*file));
    return {};
  };
  const Status status = look();
  if (status) return true;
  if (MeansDamage(status.error())) return false;
  return std::unexpected(status.error());
}

class DamageFinder {
 public:
  DamageFinder(const ReplicaState& state, const Head& head) : state_(state), head_(head) {}

  // Companions, and files that cannot be opened.
  Status LookAtFiles() {
    for (const auto& [name, hash] : head_.rests) {
      const std::string path = base::JoinPath(state_.directory(), name);
      SYNCLINE_ASSIGN(const bool open, CanBeOpened(state_.files(), path));
      if (!open) {
        (HoldsWeights(name) ? damage_.files : damage_.companions).push_back(name);
      } else if (!name.ends_with(".safetensors")) {
        SYNCLINE_ASSIGN(const std::string now, HashFile(state_.files(), path));
        if (now != hash) (HoldsWeights(name) ? damage_.files : damage_.companions).push_back(name);
      }
    }
    return {};
  }

  Status LookAtRests(const Checkpoint& checkpoint) {
    for (std::size_t i = 0; i < checkpoint.files().size(); ++i) {
      const std::string& name = checkpoint.files()[i].name;
      const auto known = head_.rests.find(name);
      SYNCLINE_ASSIGN(const std::string now, HashRest(state_.files(), checkpoint, i));
      if (known == head_.rests.end() || known->second != now) damage_.files.push_back(name);
    }
    return {};
  }

  Status LookAtTensors(const Checkpoint& checkpoint, const std::set<std::string>* only,
                       base::ThreadPool& pool, base::Progress& progress,
                       const base::CancelToken* cancel) {
    const auto kind_of = [&](const std::string& name) -> std::optional<tensor::HashKind> {
      const auto found = head_.hashes.find(name);
      if (found == head_.hashes.end() || (only != nullptr && !only->contains(name)))
        return std::nullopt;
      return found->second.kind;
    };
    progress.Begin("hash", checkpoint.total_bytes());
    SYNCLINE_ASSIGN(
        const std::vector<TensorHash> hashes,
        HashTensors(state_.files(), checkpoint, kind_of, nullptr, pool, progress, cancel));
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      const std::string& name = checkpoint.tensors()[i].name;
      if (only != nullptr && !only->contains(name)) continue;
      const auto found = head_.hashes.find(name);
      if (found == head_.hashes.end() || found->second.hex != hashes[i].hex) {
        damage_.tensors.push_back(name);
      }
    }
    for (const auto& [name, hash] : head_.hashes) {
      if (checkpoint.Find(name) == nullptr) damage_.tensors.push_back(name);
    }
    std::ranges::sort(damage_.tensors);
    return {};
  }

  Damage& damage() { return damage_; }

 private:
  const ReplicaState& state_;
  const Head& head_;
  Damage damage_;
};

}  // namespace

Result<std::string> HashRange(base::File& file, std::uint64_t offset, std::uint64_t bytes,
                              tensor::HashKind kind) {
  const auto hasher = tensor::MakeHasher(kind);
  SYNCLINE_TRY(AddRange(file, offset, offset + bytes, *hasher));
  return hasher->Hex();
}

Result<std::string> HashRest(FileSystem& files, const Checkpoint& checkpoint, std::size_t file) {
  SYNCLINE_ASSIGN(const auto open, files.Open(checkpoint.FilePath(file), base::OpenMode::kRead));
  const auto hasher = tensor::MakeHasher(tensor::HashKind::kXxh3);
  for (const auto& [begin, end] : UncoveredRanges(checkpoint, file)) {
    SYNCLINE_TRY(AddRange(*open, begin, end, *hasher));
  }
  return hasher->Hex();
}

Result<std::string> HashFile(FileSystem& files, const std::string& path) {
  SYNCLINE_ASSIGN(const auto open, files.Open(path, base::OpenMode::kRead));
  SYNCLINE_ASSIGN(const base::FileInfo info, open->Stat());
  return HashRange(*open, 0, info.size, tensor::HashKind::kXxh3);
}

Result<std::map<std::string, std::string, std::less<>>> HashRests(FileSystem& files,
                                                                  const Checkpoint& checkpoint) {
  std::map<std::string, std::string, std::less<>> rests;
  for (std::size_t i = 0; i < checkpoint.files().size(); ++i) {
    SYNCLINE_ASSIGN(rests[checkpoint.files()[i].name], HashRest(files, checkpoint, i));
  }
  SYNCLINE_ASSIGN(const std::vector<std::string> names,
                  store::ListCompanions(files, checkpoint.directory()));
  for (const std::string& name : names) {
    SYNCLINE_ASSIGN(rests[name], HashFile(files, base::JoinPath(checkpoint.directory(), name)));
  }
  return rests;
}

Result<Damage> FindDamage(const ReplicaState& state, const Head& head,
                          const std::set<std::string>* only, base::ThreadPool& pool,
                          base::Progress& progress, const base::CancelToken* cancel) {
  DamageFinder finder(state, head);
  if (only == nullptr) SYNCLINE_TRY(finder.LookAtFiles());
  if (!finder.damage().files.empty()) return std::move(finder.damage());
  const auto checkpoint = Checkpoint::Open(state.files(), state.directory());
  if (!checkpoint) {
    if (!MeansDamage(checkpoint.error())) return std::unexpected(checkpoint.error());
    if (only != nullptr) SYNCLINE_TRY(finder.LookAtFiles());
    // Whatever is wrong lies in files that open one by one but do not fit together.
    if (finder.damage().files.empty()) {
      for (const auto& [name, hash] : head.rests) {
        if (HoldsWeights(name)) finder.damage().files.push_back(name);
      }
    }
    return std::move(finder.damage());
  }
  if (only == nullptr) SYNCLINE_TRY(finder.LookAtRests(*checkpoint));
  SYNCLINE_TRY(finder.LookAtTensors(*checkpoint, only, pool, progress, cancel));
  return std::move(finder.damage());
}

}  // namespace syncline::replica
