// Tensors as Python trainers send them to /update_weights_from_tensor: pickles, read as data.
// Nothing is executed, only the classes below are known, and every size is bounded by what was
// received.
//
//   format               what the bytes hold
//   plain                a pickled list of (name, tensor), or a dict {name: tensor}
//   flattened_bucket     a pickled dict {"flattened_tensor": 1-D tensor, "metadata": [… name,
//                        shape, dtype, start_idx, end_idx, numel …]}; indices in bytes if the flat
//                        tensor is uint8, else in elements of its own type. An empty bucket is fine
//   verl                 a pickled list of (name, LocalSerializedTensor{values: [bytes of each
//                        rank]}); told from `plain` by the class. Each inner pickle is one tensor
//   safetensors          a safetensors file
// A tensor in a pickle is a view of a storage: on CPU in POSIX shared memory under a name (sharing
// strategy `file_system`: 64 bytes of header, then the data), of which a part may be expanded,
// transposed or strided; it is packed row-major here. A storage behind a file descriptor
// (`file_descriptor`, torch's default) cannot be had from another process family: kInvalidArgument
// says what to use. So it does for a tensor on a CUDA device: no code here reads device memory.
//
// A message with shared memory can be taken once (shared_memory.h): where several ranks of one host
// get the same bytes, one of them decodes for all, except in verl's form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "tensor/dtype.h"

namespace syncline::payload {

enum class Format : std::uint8_t { kPlain, kFlattenedBucket, kSafetensors };

struct NamedTensor {
  std::string name;
  tensor::Dtype dtype = tensor::Dtype::kBF16;
  std::vector<std::uint64_t> shape;
  base::ByteSpan bytes;  // row-major, of dtype and shape; no alignment is promised
};

// What came in one message. Keeps what `bytes` point to: shared memory stays mapped until it is
// destroyed, and the sender's reference count (in the header of the memory) is counted down then.
class Batch {
 public:
  virtual ~Batch() = default;
  virtual const std::vector<NamedTensor>& tensors() const = 0;
  // To be asked when everything has been read: kCorrupt if a sender took memory away meanwhile, so
  // that some of it was read as zeros.
  virtual base::Status Intact() const = 0;
};

// `message` must outlive the batch: tensors may point into it. `rank`: whose inner bytes count in
// verl's form. All that can be found wrong is found here, before anything is used.
//   kInvalidArgument  not such a payload; what, and where. An unknown class is named.
//   kNotFound         the shared memory of a tensor is gone
//   kLimitExceeded    too deep, too many elements for its bytes, or expanded views too large
//   others            the operating system refused to map shared memory
base::Result<std::unique_ptr<Batch>> Decode(base::ByteSpan message, Format format,
                                            std::uint32_t rank);

// Standard base64 with padding, strictly. kInvalidArgument with the place of the first wrong
// character.
base::Result<std::vector<std::byte>> DecodeBase64(std::string_view text);
std::string EncodeBase64(base::ByteSpan bytes);

}  // namespace syncline::payload
