// Decodes a delta over an image of its base in memory: what a reader of frames has to do, without
// the files, the journal and the writes of a replica.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "store/version.h"
#include "tensor/dtype.h"

namespace syncline::bench {

// A tensor of the image: as the base has it before, as the version has it afterwards.
struct ImageTensor {
  std::string name;
  tensor::Dtype dtype = tensor::Dtype::kU8;
  base::MutableByteSpan bytes;
};

// The bytes of a file of a version, with room for delta::kBytesBefore in front of them.
class FrameFile {
 public:
  explicit FrameFile(std::uint64_t size);
  base::MutableByteSpan bytes();
  base::ByteSpan bytes() const;

 private:
  std::vector<std::byte> memory_;
};

// `files`: those of version.files, in their order; `image`: by name. Cells of the compact encoding
// (tensors of the others) are decoded in parallel, the largest first; within a cell block by block,
// each hashed, if `hash` is set, while it is in the cache, and compared with the version's hashes
// (kChecksumMismatch). After an error the image is anything.
base::Status DecodeInPlace(const store::Version& version, std::span<const FrameFile> files,
                           std::span<const ImageTensor> image, bool hash, base::ThreadPool& pool);

}  // namespace syncline::bench
