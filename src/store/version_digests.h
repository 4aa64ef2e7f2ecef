// The additive digests (tensor/digest.h) that all tensors of a version should have, by what its
// store says: nothing of the weights is read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "store/source.h"
#include "tensor/digest.h"
#include "tensor/dtype.h"

namespace syncline::store {

struct TensorDigest {
  std::string name;
  tensor::Dtype dtype = tensor::Dtype::kU8;
  std::vector<std::uint64_t> shape;
  // Nothing: the version that changed the tensor last does not tell it.
  std::optional<tensor::Digest> digest;
};

struct VersionDigests {
  std::vector<TensorDigest> tensors;  // by name
  // Every tensor of the model is among them. False: the chain ends at version 0, a checkpoint
  // outside of the store, which alone knows those that no version has changed; or, with trusted
  // keys, at a full copy of which nothing signed names the tensors.
  bool complete = false;
  std::string identity;  // Described::identity of the version
};

// Goes from `version` down its bases, until every tensor of the model has been named, at the latest
// by a full version or a full copy; what the newest of them says of a tensor counts. Manifests are
// read, of compact deltas the tables where the manifest does not tell it, and of a version without
// manifest the index and the headers. Folds are passed by.
//
// With trusted keys nothing is believed but what was signed: files whose tables are read are first
// read whole and compared with their SHA-256.
//
// kNotFound: the version, or one that it builds on, is not there. kIncompatible: a version without
// manifest does not tell which tensors they are. kCorrupt or kOutOfOrder: versions contradict each
// other. Others as of Source::Describe. `cancel` (may be null) is looked at between versions.
base::Result<VersionDigests> ReadVersionDigests(Source& source, std::uint64_t version,
                                                const base::CancelToken* cancel);

}  // namespace syncline::store
