// Content hashes of tensors, by the names that delta versions use for them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/bytes.h"

namespace syncline::tensor {

enum class HashKind {
  kXxh3,     // XXH3 with 128 bits: what we write; 32 hex digits in canonical (big-endian) order
  kBlake3,   // 64 hex digits
  kAdler32,  // RFC 1950; 8 hex digits
};

std::optional<HashKind> FindHashKind(std::string_view name);
std::string_view Name(HashKind kind);

// Hashes bytes as they come. One thread at a time.
class Hasher {
 public:
  virtual ~Hasher() = default;
  virtual void Update(base::ByteSpan bytes) = 0;
  // Lower-case hex of everything so far; may be called again after more bytes.
  virtual std::string Hex() const = 0;
  // Back to no bytes.
  virtual void Reset() = 0;
};

std::unique_ptr<Hasher> MakeHasher(HashKind kind);

std::string HashHex(HashKind kind, base::ByteSpan bytes);

}  // namespace syncline::tensor
