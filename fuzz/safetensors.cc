// checkpoint::ReadSafetensorsHeader of a whole file.
//
// - What is accepted covers the file from the end of the header to its own end, tensor by tensor,
//   each of the size that dtype and shape ask for, under names that differ.
// - A writer given these tensors makes a file that reads as the same tensors and metadata, with its
//   data at a multiple of 8.
// - A file whose content ends before the size that it claimed is refused.
// - Memory stays within a multiple of the header's size.
#include "checkpoint/safetensors.h"

#include <algorithm>
#include <set>

#include "support.h"

namespace syncline::fuzz {
namespace {

using checkpoint::SafetensorsHeader;
using checkpoint::TensorInfo;

void CheckCoverage(const SafetensorsHeader& header, std::uint64_t data_start,
                   std::uint64_t file_bytes) {
  std::set<std::string> names;
  std::uint64_t end = data_start;
  for (const TensorInfo& info : header.tensors) {
    Must(names.insert(info.name).second, "names differ");
    Must(info.offset == end, "tensors follow each other");
    const auto bytes = tensor::ByteCount(info.dtype, info.shape);
    Must(bytes.has_value() && *bytes == info.bytes, "a tensor has the size of its shape");
    end += info.bytes;
  }
  Must(end == file_bytes && header.file_bytes == file_bytes, "the file is covered");
}

void CheckWritten(const SafetensorsHeader& header) {
  std::vector<checkpoint::TensorSpec> specs;
  for (const TensorInfo& info : header.tensors)
    specs.push_back({info.name, info.dtype, info.shape});
  const auto layout = checkpoint::LayOutSafetensors(specs, header.metadata);
  Must(layout.has_value(), "what can be read can be written");
  Must(layout->head.size() % 8 == 0, "data is aligned");
  const auto again = checkpoint::ParseSafetensorsHeader(std::string_view(layout->head).substr(8),
                                                        layout->header.file_bytes);
  Must(again.has_value(), "what is written can be read");
  Must(again->metadata == header.metadata, "metadata survives writing");
  const auto sorted = [](const SafetensorsHeader& of) {
    std::vector<std::tuple<std::string, tensor::Dtype, std::vector<std::uint64_t>>> tensors;
    for (const TensorInfo& info : of.tensors)
      tensors.emplace_back(info.name, info.dtype, info.shape);
    std::ranges::sort(tensors);
    return tensors;
  };
  Must(sorted(*again) == sorted(header), "tensors survive writing");
}

void Check(base::ByteSpan content) {
  MemoryFile file(content, content.size());
  const MemoryWatch watch;
  const auto header = checkpoint::ReadSafetensorsHeader(file);
  Must(watch.peak() <= 65536 + 400 * content.size(), "memory is bounded by the header");
  MemoryFile cut(content, content.size() + 4096);
  Must(!checkpoint::ReadSafetensorsHeader(cut).has_value(), "a file that was cut is refused");
  if (!header) {
    Must(header.error().message.starts_with("memory: "), "an error names the file");
    return;
  }
  const std::uint64_t length = base::Load<std::uint64_t>(content.data());
  CheckCoverage(*header, 8 + length, content.size());
  CheckWritten(*header);
}

}  // namespace
}  // namespace syncline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  syncline::fuzz::Check(syncline::fuzz::Bytes(data, size));
  return 0;
}
