#include "tensor/tensor_sums.h"

#include <algorithm>

namespace syncline::tensor {
namespace {

// Read from memory once, for both sums.
constexpr std::size_t kBlockBytes = std::size_t{128} << 10;

}  // namespace

TensorSums::TensorSums(HashKind kind, Dtype dtype)
    : hasher_(MakeHasher(kind)), unit_bytes_(DigestUnitBytes(dtype)) {}

void TensorSums::Update(base::ByteSpan bytes) {
  while (!bytes.empty()) {
    const base::ByteSpan block = bytes.first(std::min(bytes.size(), kBlockBytes));
    hasher_->Update(block);
    digest_ += DigestOf(block, unit_bytes_, units_);
    units_ += block.size() / unit_bytes_;
    bytes = bytes.subspan(block.size());
  }
}

}  // namespace syncline::tensor
