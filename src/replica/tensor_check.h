// Whether a delta makes of a tensor what was published, told while the tensor goes by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/bytes.h"
#include "base/error.h"
#include "replica/replica.h"
#include "replica/state.h"
#include "store/source.h"
#include "store/version.h"
#include "tensor/digest.h"
#include "tensor/dtype.h"
#include "tensor/hash.h"

namespace syncline::replica {

// Do these deltas carry the digests that `by` needs? kIncompatible names the first version that
// does not. The first is for before they are fetched, when only their encodings are known.
base::Status CheckDigests(VerifyBy by, std::span<const store::Described> deltas);
base::Status CheckDigests(VerifyBy by, std::span<const store::Version> deltas);

// One tensor, whose pieces come in order: Old, as the replica holds it, then New of each block of
// it, with what the patch has made of it. One thread.
class TensorCheck {
 public:
  struct Expected {
    TensorHash hash;
    std::optional<tensor::Digest> digest;  // there unless it is VerifyBy::kHash
    // What the replica believes the old tensor's to be; nothing: it is taken from Old.
    std::optional<tensor::Digest> digest_before;
  };
  TensorCheck(VerifyBy by, Expected expected, tensor::Dtype dtype);

  // `piece` begins at that byte of the tensor.
  void Old(base::ByteSpan piece, std::uint64_t offset);
  // `record`: what delta::BlockPatch::Apply appended for it; empty: nothing changed.
  void New(base::ByteSpan block, std::uint64_t offset, base::ByteSpan record);

  // Nothing: it is what was published. Else what is not, for messages: "its xxh3-128 is …, expected
  // …".
  std::optional<std::string> Mismatch() const;

 private:
  VerifyBy by_;
  Expected expected_;
  std::size_t unit_bytes_;
  std::unique_ptr<tensor::Hasher> hasher_;  // of kHash
  tensor::Digest digest_;                   // of what has gone by: kFull new, kChained old
  tensor::DigestChange change_;             // of kChained
};

}  // namespace syncline::replica
