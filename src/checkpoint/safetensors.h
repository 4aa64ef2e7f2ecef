// The safetensors file format: 8 bytes of header length, a JSON header, the data of all tensors
// without gaps.
//
// Source of the rules: the format page and the reference implementation (0.8) of the safetensors
// project. We accept what it accepts, and in addition refuse names that are held twice. What we
// write, it can open.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"
#include "tensor/dtype.h"

namespace syncline::checkpoint {

// The reference implementation opens no longer header, so we write none.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

struct TensorInfo {
  std::string name;
  tensor::Dtype dtype = tensor::Dtype::kU8;
  std::vector<std::uint64_t> shape;
  std::uint64_t offset = 0;  // of its first byte in the file
  std::uint64_t bytes = 0;
};

using Metadata = std::vector<std::pair<std::string, std::string>>;

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // by rising offset
  Metadata metadata;
  std::uint64_t file_bytes = 0;
};

// Reads and checks the header of a file against its real size. Nothing is allocated by a number
// that was not checked before. Errors name the file: kCorrupt (with expected and actual),
// kIncompatible for a dtype that we do not know.
base::Result<SafetensorsHeader> ReadSafetensorsHeader(base::File& file);

// The same for a file at hand; errors do not name it.
base::Result<SafetensorsHeader> ReadSafetensorsHeader(base::ByteSpan file);

// The same for a header at hand: `header` is what stands between the length field and the data.
base::Result<SafetensorsHeader> ParseSafetensorsHeader(std::string_view header,
                                                       std::uint64_t file_bytes);

struct TensorSpec {
  std::string name;
  tensor::Dtype dtype = tensor::Dtype::kU8;
  std::vector<std::uint64_t> shape;
};

// No fewer bytes than the tensor, or the member of the metadata, takes in a header. For writers that
// cut files before a header grows beyond kMaxHeaderBytes.
std::uint64_t HeaderBytesBound(const std::string& name, std::size_t rank);
std::uint64_t MetadataBytesBound(std::string_view key, std::string_view value);

struct SafetensorsLayout {
  std::string head;  // length field and header, padded so that the data starts aligned
  SafetensorsHeader header;
};

// What others write, and the least that they expect.
inline constexpr std::size_t kDataAlignment = 8;
// Of files that engines load. Tensors' sizes are mostly multiples of it too, and copying a file's
// pages to where weights lie, which is aligned, is up to 1.5 times as fast where both are alike.
inline constexpr std::size_t kLoadAlignment = 64;

// Where everything goes in a new file: by falling dtype size, then by name. The data starts at a
// multiple of `alignment`. kInvalidArgument for a name held twice or reserved, kLimitExceeded for a
// header above kMaxHeaderBytes.
base::Result<SafetensorsLayout> LayOutSafetensors(std::vector<TensorSpec> tensors,
                                                  const Metadata& metadata,
                                                  std::size_t alignment = kDataAlignment);

// A file that is written aside as `path`.tmp at its full size and takes its name at Commit().
// WriteAt may be called from several threads for different ranges. Without Commit the file aside is
// removed.
class SafetensorsWriter {
 public:
  static base::Result<SafetensorsWriter> Create(base::FileSystem& files, const std::string& path,
                                                SafetensorsLayout layout);
  SafetensorsWriter(SafetensorsWriter&&) = default;
  ~SafetensorsWriter();

  const SafetensorsHeader& header() const { return header_; }
  // `offset` counts from the start of the file, as TensorInfo::offset does.
  base::Status WriteAt(base::ByteSpan bytes, std::uint64_t offset);
  base::Status Commit(bool durable);

 private:
  SafetensorsWriter() = default;

  base::FileSystem* files_ = nullptr;
  std::string path_;
  SafetensorsHeader header_;
  std::unique_ptr<base::File> file_;
};

}  // namespace syncline::checkpoint
