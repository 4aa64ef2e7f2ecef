// The content hash and the additive digest of a tensor, in one pass over its bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/bytes.h"
#include "tensor/digest.h"
#include "tensor/dtype.h"
#include "tensor/hash.h"

namespace syncline::tensor {

// Takes the bytes of one tensor as they come, from the first to the last. One thread.
class TensorSums {
 public:
  TensorSums(HashKind kind, Dtype dtype);

  // Whole units of the digest (see DigestUnitBytes).
  void Update(base::ByteSpan bytes);

  // Of everything so far, lower-case hex.
  std::string hash() const { return hasher_->Hex(); }
  const Digest& digest() const { return digest_; }

 private:
  std::unique_ptr<Hasher> hasher_;
  std::size_t unit_bytes_;
  std::uint64_t units_ = 0;
  Digest digest_;
};

}  // namespace syncline::tensor
