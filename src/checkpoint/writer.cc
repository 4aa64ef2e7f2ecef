#include "checkpoint/writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
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

// One file to be written.
struct Shard {
  std::string folder;  // of a tree; it is no part of the tensors' names in the file
  std::string file;
  std::vector<std::size_t> tensors;
};

struct Part {
  std::size_t shard;
  std::size_t tensor;
  std::uint64_t begin;  // in the tensor
  std::uint64_t size;
  std::uint64_t offset;  // in the file
};

std::string NameInFile(const Shard& shard, const TensorView& view) {
  return shard.folder.empty() ? view.name : view.name.substr(shard.folder.size() + 1);
}

// Tensors in the order given, cut into files where the next one would pass the limit of data or of
// the header. The files have no names yet.
std::vector<Shard> Split(const std::string& folder, const std::vector<std::size_t>& chosen,
                         std::span<const TensorView> tensors, std::uint64_t max_file_bytes) {
  std::vector<Shard> shards = {{.folder = folder}};
  std::uint64_t bytes = 0;
  std::uint64_t header = kHeaderReserve;
  for (const std::size_t i : chosen) {
    const TensorView& view = tensors[i];
    const std::uint64_t more = HeaderBytesBound(view.name, view.shape.size());
    if (!shards.back().tensors.empty() &&
        (bytes + view.bytes.size() > max_file_bytes || header + more > kMaxHeaderBytes)) {
      shards.push_back({.folder = folder});
      bytes = 0;
      header = kHeaderReserve;
    }
    shards.back().tensors.push_back(i);
    bytes += view.bytes.size();
    header += more;
  }
  return shards;
}

// What of the shards' tensors goes where: fills `writers`, one for each shard.
Result<std::vector<Part>> LayOut(base::FileSystem& files, const std::string& directory,
                                 const std::vector<Shard>& shards,
                                 std::span<const TensorView> tensors,
                                 std::vector<SafetensorsWriter>& writers) {
  std::vector<Part> parts;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const Shard& shard = shards[i];
    std::vector<TensorSpec> specs;
    std::map<std::string, std::size_t> numbers;
    for (const std::size_t number : shard.tensors) {
      const TensorView& view = tensors[number];
      specs.push_back({NameInFile(shard, view), view.dtype, view.shape});
      numbers.emplace(specs.back().name, number);
    }
    SYNCLINE_ASSIGN(SafetensorsLayout layout,
                    LayOutSafetensors(std::move(specs), {{"format", "pt"}}, kLoadAlignment));
    for (const TensorInfo& info : layout.header.tensors) {
      const std::size_t number = numbers.at(info.name);
      for (std::uint64_t done = 0; done < info.bytes; done += kPartBytes) {
        const std::uint64_t size = std::min(kPartBytes, info.bytes - done);
        parts.push_back({i, number, done, size, info.offset + done});
      }
    }
    const std::string folder = base::JoinPath(directory, shard.folder);
    SYNCLINE_ASSIGN(
        SafetensorsWriter writer,
        SafetensorsWriter::Create(files, base::JoinPath(folder, shard.file), std::move(layout)));
    writers.push_back(std::move(writer));
  }
  return parts;
}

Status WriteShardFiles(base::FileSystem& files, const std::string& directory,
                       const std::vector<Shard>& shards, std::span<const TensorView> tensors,
                       const WriteOptions& options, base::ThreadPool& pool,
                       base::Progress& progress, const base::CancelToken* cancel) {
  std::vector<SafetensorsWriter> writers;
  SYNCLINE_ASSIGN(const std::vector<Part> parts,
                  LayOut(files, directory, shards, tensors, writers));
  std::uint64_t total = 0;
  for (const Part& part : parts) total += part.size;
  base::Pool<std::vector<std::byte>> buffers;
  progress.Begin("write", total);
  SYNCLINE_TRY(pool.ParallelFor(
      parts.size(),
      [&](std::size_t i) -> Status {
        const Part& part = parts[i];
        const base::Pool<std::vector<std::byte>>::Lease buffer(buffers);
        base::ByteSpan bytes;
        if (options.loader == nullptr) {
          bytes = tensors[part.tensor].bytes.subspan(part.begin, part.size);
        } else {
          SYNCLINE_ASSIGN(bytes, options.loader->Load(part.tensor, part.begin, part.size, *buffer));
        }
        SYNCLINE_TRY(writers[part.shard].WriteAt(bytes, part.offset));
        progress.Add(part.size);
        return {};
      },
      cancel));
  for (SafetensorsWriter& writer : writers) SYNCLINE_TRY(writer.Commit(options.durable));
  return {};
}

// The index of one folder.
Status WriteIndexFile(base::FileSystem& files, const std::string& directory, std::string_view stem,
                      std::span<const Shard> shards, std::span<const TensorView> tensors,
                      bool durable) {
  Index index;
  std::uint64_t total = 0;
  for (const Shard& shard : shards) {
    for (const std::size_t i : shard.tensors) {
      index.weight_map.emplace_back(NameInFile(shard, tensors[i]), shard.file);
      total += tensors[i].bytes.size();
    }
  }
  index.metadata.emplace_back("total_size", total);
  SYNCLINE_ASSIGN(const std::string text, BoundedIndexText(std::move(index)));
  return base::WriteTextAtomically(
      files, base::JoinPath(base::JoinPath(directory, shards.front().folder), IndexNameOf(stem)),
      text, durable);
}

// Numbers of the tensors of each folder; of one folder "".
Result<std::map<std::string, std::vector<std::size_t>>> ByFolder(
    std::span<const TensorView> tensors, const Stems& components) {
  std::map<std::string, std::vector<std::size_t>> by_folder;
  if (components.empty()) by_folder[""];
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    std::string folder;
    if (!components.empty()) {
      folder = FolderOfTensor(tensors[i].name);
      if (!components.contains(folder)) {
        return base::Fail(base::Code::kInvalidArgument,
                          fmt::format("tensor {} belongs to no component", tensors[i].name));
      }
    }
    by_folder[folder].push_back(i);
  }
  return by_folder;
}

}  // namespace

Status WriteCheckpoint(base::FileSystem& files, const std::string& directory,
                       std::span<const TensorView> tensors, const WriteOptions& options,
                       base::ThreadPool& pool, base::Progress& progress,
                       const base::CancelToken* cancel) {
  SYNCLINE_ASSIGN(const auto by_folder, ByFolder(tensors, options.components));
  const auto stem_of = [&](const std::string& folder) -> std::string_view {
    const auto stem = options.components.find(folder);
    return stem == options.components.end() ? kModelStem : std::string_view(stem->second);
  };
  std::vector<Shard> shards;
  std::vector<std::pair<std::size_t, std::size_t>> ranges;  // of each folder: first, count
  for (const auto& [folder, chosen] : by_folder) {
    if (!folder.empty()) {
      SYNCLINE_TRY(files.MakeDirectories(base::JoinPath(directory, folder)));
    }
    std::vector<Shard> own = Split(folder, chosen, tensors, options.max_file_bytes);
    for (std::size_t i = 0; i < own.size(); ++i) {
      own[i].file = own.size() == 1 ? SingleFileNameOf(stem_of(folder))
                                    : ShardName(i + 1, own.size(), stem_of(folder));
    }
    ranges.emplace_back(shards.size(), own.size());
    std::ranges::move(own, std::back_inserter(shards));
  }
  SYNCLINE_TRY(WriteShardFiles(files, directory, shards, tensors, options, pool, progress, cancel));
  for (const auto& [first, count] : ranges) {
    if (count == 1) continue;
    SYNCLINE_TRY(WriteIndexFile(files, directory, stem_of(shards[first].folder),
                                std::span(shards).subspan(first, count), tensors, options.durable));
  }
  return {};
}

Result<WeightMap> WriteShards(base::FileSystem& files, const std::string& directory,
                              std::span<const TensorView> tensors, const std::string& prefix,
                              const WriteOptions& options, base::ThreadPool& pool,
                              base::Progress& progress, const base::CancelToken* cancel) {
  WeightMap map;
  if (tensors.empty()) return map;
  SYNCLINE_ASSIGN(const auto by_folder, ByFolder(tensors, options.components));
  std::vector<Shard> shards;
  for (const auto& [folder, chosen] : by_folder) {
    std::vector<Shard> own = Split(folder, chosen, tensors, options.max_file_bytes);
    if (!folder.empty()) {
      SYNCLINE_TRY(files.MakeDirectories(base::JoinPath(directory, folder)));
    }
    for (std::size_t i = 0; i < own.size(); ++i) {
      own[i].file = fmt::format("{}{:05}.safetensors", prefix, i);
      for (const std::size_t tensor : own[i].tensors) {
        map.emplace_back(tensors[tensor].name, base::JoinPath(folder, own[i].file));
      }
    }
    std::ranges::move(own, std::back_inserter(shards));
  }
  SYNCLINE_TRY(WriteShardFiles(files, directory, shards, tensors, options, pool, progress, cancel));
  return map;
}

}  // namespace syncline::checkpoint
