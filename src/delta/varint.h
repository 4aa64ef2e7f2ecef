// Unsigned LEB128 numbers: seven bits a byte, the lowest first; the top bit says that more follow.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"

namespace syncline::delta {

inline void AppendVarint(std::uint64_t value, std::vector<std::byte>& out) {
  for (; value >= 128; value >>= 7) out.push_back(static_cast<std::byte>(value | 128));
  out.push_back(static_cast<std::byte>(value));
}

// Takes numbers and bytes from the front of a span.
class ByteReader {
 public:
  explicit ByteReader(base::ByteSpan bytes) : left_(bytes) {}

  base::ByteSpan left() const { return left_; }

  // kCorrupt where the bytes end, or the number is above `limit` or written in more than ten bytes.
  base::Result<std::uint64_t> Varint(std::uint64_t limit) {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 70; shift += 7) {
      if (left_.empty()) return base::Fail(base::Code::kCorrupt, "a number is cut short");
      const auto byte = static_cast<std::uint64_t>(left_.front());
      left_ = left_.subspan(1);
      if (shift == 63 && byte > 1) break;
      value |= (byte & 127) << shift;
      if (byte < 128) {
        if (value > limit) break;
        return value;
      }
    }
    return base::Fail(base::Code::kCorrupt, "a number is too large");
  }

  base::Result<base::ByteSpan> Bytes(std::uint64_t count) {
    if (count > left_.size()) return base::Fail(base::Code::kCorrupt, "bytes are cut short");
    const base::ByteSpan bytes = left_.first(count);
    left_ = left_.subspan(count);
    return bytes;
  }

 private:
  base::ByteSpan left_;
};

}  // namespace syncline::delta
