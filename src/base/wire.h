// Small binary messages: little-endian numbers, counted strings and arrays, one after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"

namespace syncline::base {

class WireWriter {
 public:
  template <typename T>
    requires std::is_arithmetic_v<T>
  void Put(T value) {
    Append(std::as_bytes(std::span(&value, 1)));
  }
  // Eight bytes of length, then the bytes.
  void PutBytes(ByteSpan bytes) {
    Put<std::uint64_t>(bytes.size());
    Append(bytes);
  }
  void PutText(std::string_view text) { PutBytes(AsBytes(text)); }
  // Eight bytes of count, then the numbers.
  template <typename T>
    requires std::is_arithmetic_v<T>
  void PutArray(const std::vector<T>& values) {
    Put<std::uint64_t>(values.size());
    Append(std::as_bytes(std::span(values)));
  }

  std::vector<std::byte> Take() && { return std::move(bytes_); }

 private:
  void Append(ByteSpan bytes);

  std::vector<std::byte> bytes_;
};

// After the first thing that does not fit, all further values are zero or empty, and status() says
// so. Nothing is allocated that has not come.
class WireReader {
 public:
  // The bytes must outlive it and what TakeBytes returns.
  explicit WireReader(ByteSpan bytes) : rest_(bytes) {}

  template <typename T>
    requires std::is_arithmetic_v<T>
  T Take() {
    const ByteSpan bytes = TakeRaw(sizeof(T));
    return bytes.empty() ? T{} : Load<T>(bytes.data());
  }
  ByteSpan TakeBytes() { return TakeBytes(Take<std::uint64_t>()); }
  // As many bytes; no length stands before them.
  ByteSpan TakeBytes(std::uint64_t size) { return TakeRaw(size); }
  std::string TakeText() { return std::string(AsText(TakeBytes())); }
  template <typename T>
    requires std::is_arithmetic_v<T>
  std::vector<T> TakeArray() {
    const std::uint64_t count = Take<std::uint64_t>();
    const ByteSpan bytes =
        count > rest_.size() / sizeof(T) ? TakeRaw(rest_.size() + 1) : TakeRaw(count * sizeof(T));
    std::vector<T> values(bytes.size() / sizeof(T));
    if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  // Something was missing.
  bool broken() const { return broken_; }
  // kCorrupt where something was missing, or where something is left.
  Status status() const {
    if (broken_) return Fail(Code::kCorrupt, "a message is too short");
    if (!rest_.empty()) return Fail(Code::kCorrupt, "a message is too long");
    return {};
  }

 private:
  ByteSpan TakeRaw(std::uint64_t size) {
    if (broken_ || size > rest_.size()) {
      broken_ = true;
      return {};
    }
    const ByteSpan taken = rest_.first(size);
    rest_ = rest_.subspan(size);
    return taken;
  }

  ByteSpan rest_;
  bool broken_ = false;
};

}  // namespace syncline::base
