#include "checkpoint/digests.h"

#include <algorithm>
#include <cstdint>
#include <memory>

#include "base/pool.h"

namespace syncline::checkpoint {
namespace {

using base::Result;
using base::Status;
using tensor::Digest;

constexpr std::uint64_t kPartBytes = 16 << 20;    // of a tensor, read by one thread
constexpr std::uint64_t kBlockBytes = 256 << 10;  // stays in the cache from reading to summing
static_assert(kPartBytes % kBlockBytes == 0);

struct Part {
  std::size_t tensor = 0;
  std::uint64_t begin = 0;  // in the tensor
  std::uint64_t end = 0;
};

Result<Digest> DigestPart(base::File& file, const CheckpointTensor& tensor, const Part& part,
                          base::Buffer& buffer) {
  const std::size_t unit_bytes = DigestUnitBytes(tensor.dtype);
  Digest digest;
  for (std::uint64_t at = part.begin; at < part.end; at += kBlockBytes) {
    const auto block = buffer.Get(std::min(kBlockBytes, part.end - at));
    SYNCLINE_TRY(base::ReadExactly(file, block, tensor.offset + at));
    digest += tensor::DigestOf(block, unit_bytes, at / unit_bytes);
  }
  return digest;
}

}  // namespace

Result<std::vector<Digest>> DigestCheckpoint(base::FileSystem& files, const Checkpoint& checkpoint,
                                             base::ThreadPool& pool,
                                             const base::CancelToken* cancel) {
  std::vector<std::unique_ptr<base::File>> open;
  for (std::size_t i = 0; i < checkpoint.files().size(); ++i) {
    SYNCLINE_ASSIGN(auto file, files.Open(checkpoint.FilePath(i), base::OpenMode::kRead));
    open.push_back(std::move(file));
  }
  const std::vector<CheckpointTensor>& tensors = checkpoint.tensors();
  std::vector<Part> parts;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    for (std::uint64_t at = 0; at < tensors[i].bytes; at += kPartBytes) {
      parts.push_back({i, at, std::min(tensors[i].bytes, at + kPartBytes)});
    }
  }
  std::vector<Digest> sums(parts.size());
  base::Pool<base::Buffer> buffers;
  SYNCLINE_TRY(pool.ParallelFor(
      parts.size(),
      [&](std::size_t i) -> Status {
        const CheckpointTensor& tensor = tensors[parts[i].tensor];
        const base::Pool<base::Buffer>::Lease buffer(buffers);
        auto sum = DigestPart(*open[tensor.file], tensor, parts[i], *buffer);
        if (!sum) return Annotate(std::move(sum).error(), "tensor " + tensor.name);
        sums[i] = *sum;
        return {};
      },
      cancel));
  std::vector<Digest> digests(tensors.size());
  for (std::size_t i = 0; i < parts.size(); ++i) digests[parts[i].tensor] += sums[i];
  return digests;
}

}  // namespace syncline::checkpoint
