#include "checkpoint/reader.h"

#include <fmt/format.h>

#include <utility>

namespace syncline::checkpoint {

using base::Result;

Result<CheckpointReader> CheckpointReader::Open(base::FileSystem& files, const std::string& path) {
  SYNCLINE_ASSIGN(Checkpoint checkpoint, Checkpoint::Open(files, path));
  CheckpointReader reader(std::move(checkpoint));
  for (std::size_t i = 0; i < reader.checkpoint_.files().size(); ++i) {
    SYNCLINE_ASSIGN(auto file, files.Open(reader.checkpoint_.FilePath(i), base::OpenMode::kRead));
    reader.files_.push_back(std::move(file));
  }
  return reader;
}

std::vector<tensor::TensorView> CheckpointReader::Views() const {
  std::vector<tensor::TensorView> views;
  for (const CheckpointTensor& tensor : checkpoint_.tensors()) {
    views.push_back({tensor.name,
                     tensor.dtype,
                     tensor.shape,
                     {static_cast<const std::byte*>(nullptr), tensor.bytes}});
  }
  return views;
}

Result<base::ByteSpan> CheckpointReader::Load(std::size_t tensor, std::uint64_t begin,
                                              std::uint64_t size,
                                              std::vector<std::byte>& buffer) const {
  const CheckpointTensor& info = checkpoint_.tensors().at(tensor);
  if (buffer.size() < size) buffer.resize(size);
  const base::MutableByteSpan into = std::span(buffer).first(size);
  base::File& file = *files_[info.file];
  SYNCLINE_ASSIGN(const std::size_t got, file.ReadAt(into, info.offset + begin));
  if (got < into.size()) {
    SYNCLINE_ASSIGN(const base::FileInfo now, file.Stat());
    return base::Fail(base::Code::kCorrupt,
                      fmt::format("{} is truncated: expected {} bytes, found {}", file.path(),
                                  checkpoint_.files()[info.file].bytes, now.size));
  }
  return into;
}

}  // namespace syncline::checkpoint
