#include "engine/prefix_keys.h"

#include "base/bytes.h"
#include "model/batch.h"
#include "tensor/blake3.h"

namespace syncline::engine {
namespace {

BlockKey Hash(base::ByteSpan first, base::ByteSpan second) {
  tensor::Blake3 hash;
  hash.Update(first);
  hash.Update(second);
  return hash.Finish();
}

}  // namespace

PrefixKeys::PrefixKeys(std::uint64_t epoch, std::string_view partition) : epoch_(epoch) {
  const BlockKey own = Hash(base::AsBytes(partition), {});
  keys_.push_back(Hash(std::as_bytes(std::span(&epoch, 1)), std::as_bytes(std::span(own))));
}

std::span<const BlockKey> PrefixKeys::Of(std::span<const text::TokenId> tokens) {
  const std::size_t blocks = tokens.size() / model::kKvBlock;
  while (keys_.size() <= blocks) {
    const auto block = tokens.subspan((keys_.size() - 1) * model::kKvBlock, model::kKvBlock);
    keys_.push_back(Hash(std::as_bytes(std::span(keys_.back())), std::as_bytes(block)));
  }
  return std::span(keys_).subspan(1, blocks);
}

}  // namespace syncline::engine
