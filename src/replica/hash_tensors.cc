#include "replica/hash_tensors.h"

#include <algorithm>
#include <memory>
#include <numeric>

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

Result<std::vector<TensorHash>> HashTensors(
    FileSystem& files, const Checkpoint& checkpoint,
    const std::function<tensor::HashKind(const std::string&)>& kind_of, const CopyPiece& copy,
    base::ThreadPool& pool, base::Progress& progress, const base::CancelToken* cancel) {
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
        hash.kind = kind_of ? kind_of(tensor.name) : tensor::HashKind::kXxh3;
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

Result<std::vector<std::string>> FindWrongTensors(FileSystem& files, const Checkpoint& checkpoint,
                                                  const Head& head, base::ThreadPool& pool,
                                                  base::Progress& progress,
                                                  const base::CancelToken* cancel) {
  progress.Begin("hash", checkpoint.total_bytes());
  const auto kind_of = [&](const std::string& name) {
    const auto found = head.hashes.find(name);
    return found == head.hashes.end() ? tensor::HashKind::kXxh3 : found->second.kind;
  };
  SYNCLINE_ASSIGN(const std::vector<TensorHash> hashes,
                  HashTensors(files, checkpoint, kind_of, nullptr, pool, progress, cancel));
  std::vector<std::string> wrong;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    const std::string& name = checkpoint.tensors()[i].name;
    const auto found = head.hashes.find(name);
    if (found == head.hashes.end() || found->second.hex != hashes[i].hex) wrong.push_back(name);
  }
  return wrong;
}

}  // namespace syncline::replica
