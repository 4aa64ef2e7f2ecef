#include "checkpoint/writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/pool.h"
#include "checkpoint/index.h"
#include "checkpoint/safetensors.h"

namespace syncline::checkpoint {
namespace {

using base::Result;
using base::Status;
using tensor::TensorView;

constexpr std::uint64_t kPartBytes = 16 << 20;
constexpr std::uint64_t kHeaderReserve = 64;  // for metadata and padding

struct Part {
  std::size_t file;
  const TensorView* tensor;
  std::uint64_t begin;  // in the tensor
  std::uint64_t size;
  std::uint64_t offset;  // in the file
};

// Tensors in the order given, cut into files where the next one would pass the limit of data or of
// the header.
std::vector<std::vector<const TensorView*>> Split(std::span<const TensorView> tensors,
                                                  std::uint64_t max_file_bytes) {
  std::vector<std::vector<const TensorView*>> groups(1);
  std::uint64_t bytes = 0;
  std::uint64_t header = kHeaderReserve;
  for (const TensorView& view : tensors) {
    const std::uint64_t more = HeaderBytesBound(view.name, view.shape.size());
    if (!groups.back().empty() &&
        (bytes + view.bytes.size() > max_file_bytes || header + more > kMaxHeaderBytes)) {
      groups.emplace_back();
      bytes = 0;
      header = kHeaderReserve;
    }
    groups.back().push_back(&view);
    bytes += view.bytes.size();
    header += more;
  }
  return groups;
}

// Writes each group as the file of that name.
Result<WeightMap> WriteGroups(base::FileSystem& files, const std::string& directory,
                              const std::vector<std::vector<const TensorView*>>& groups,
                              const std::vector<std::string>& names,
                              std::span<const TensorView> tensors, const WriteOptions& options,
                              base::ThreadPool& pool, base::Progress& progress,
                              const base::CancelToken* cancel) {
  std::vector<SafetensorsWriter> writers;
  std::vector<Part> parts;
  WeightMap map;
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    std::vector<TensorSpec> specs;
    for (const TensorView* view : groups[i])
      specs.push_back({view->name, view->dtype, view->shape});
    SYNCLINE_ASSIGN(SafetensorsLayout layout,
                    LayOutSafetensors(std::move(specs), {{"format", "pt"}}));
    std::vector<const TensorView*> sorted = groups[i];
    std::ranges::sort(sorted, {}, &TensorView::name);
    for (const TensorInfo& info : layout.header.tensors) {
      const TensorView& view = **std::ranges::lower_bound(sorted, info.name, {}, &TensorView::name);
      for (std::uint64_t done = 0; done < info.bytes; done += kPartBytes) {
        const std::uint64_t size = std::min(kPartBytes, info.bytes - done);
        parts.push_back({i, &view, done, size, info.offset + done});
      }
      map.emplace_back(info.name, names[i]);
      total += info.bytes;
    }
    SYNCLINE_ASSIGN(
        SafetensorsWriter writer,
        SafetensorsWriter::Create(files, base::JoinPath(directory, names[i]), std::move(layout)));
    writers.push_back(std::move(writer));
  }
  base::Pool<std::vector<std::byte>> buffers;
  progress.Begin("write", total);
  SYNCLINE_TRY(pool.ParallelFor(
      parts.size(),
      [&](std::size_t i) -> Status {
        const Part& part = parts[i];
        const base::Pool<std::vector<std::byte>>::Lease buffer(buffers);
        base::ByteSpan bytes;
        if (options.loader == nullptr) {
          bytes = part.tensor->bytes.subspan(part.begin, part.size);
        } else {
          const auto index = static_cast<std::size_t>(part.tensor - tensors.data());
          SYNCLINE_ASSIGN(bytes, options.loader->Load(index, part.begin, part.size, *buffer));
        }
        SYNCLINE_TRY(writers[part.file].WriteAt(bytes, part.offset));
        progress.Add(part.size);
        return {};
      },
      cancel));
  for (SafetensorsWriter& writer : writers) SYNCLINE_TRY(writer.Commit(options.durable));
  return map;
}

}  // namespace

Status WriteCheckpoint(base::FileSystem& files, const std::string& directory,
                       std::span<const TensorView> tensors, const WriteOptions& options,
                       base::ThreadPool& pool, base::Progress& progress,
                       const base::CancelToken* cancel) {
  const auto groups = Split(tensors, options.max_file_bytes);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    names.push_back(groups.size() == 1 ? std::string(kSingleFileName)
                                       : ShardName(i + 1, groups.size()));
  }
  Index index;
  SYNCLINE_ASSIGN(index.weight_map, WriteGroups(files, directory, groups, names, tensors, options,
                                                pool, progress, cancel));
  if (groups.size() == 1) return {};
  std::uint64_t total = 0;
  for (const TensorView& view : tensors) total += view.bytes.size();
  index.metadata.emplace_back("total_size", total);
  SYNCLINE_ASSIGN(const std::string text, BoundedIndexText(std::move(index)));
  return base::WriteTextAtomically(files, base::JoinPath(directory, kIndexName), text,
                                   options.durable);
}

Result<WeightMap> WriteShards(base::FileSystem& files, const std::string& directory,
                              std::span<const TensorView> tensors, const std::string& prefix,
                              const WriteOptions& options, base::ThreadPool& pool,
                              base::Progress& progress, const base::CancelToken* cancel) {
  if (tensors.empty()) return WeightMap();
  const auto groups = Split(tensors, options.max_file_bytes);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    names.push_back(fmt::format("{}{:05}.safetensors", prefix, i));
  }
  return WriteGroups(files, directory, groups, names, tensors, options, pool, progress, cancel);
}

}  // namespace syncline::checkpoint
