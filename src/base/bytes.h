// Views of raw bytes, little-endian numbers in them, and hexadecimal text.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace syncline::base {

using ByteSpan = std::span<const std::byte>;
using MutableByteSpan = std::span<std::byte>;

static_assert(std::endian::native == std::endian::little,
              "the formats are little-endian and are read without swapping");

// Reads a T at any alignment.
template <typename T>
  requires std::is_trivially_copyable_v<T>
T Load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <typename T>
  requires std::is_trivially_copyable_v<T>
void Store(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(T));
}

inline ByteSpan AsBytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

inline std::string_view AsText(ByteSpan bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Lower-case hexadecimal, two digits a byte, first byte first.
std::string ToHex(std::span<const std::uint8_t> bytes);

// The bytes of an even number of lower-case hexadecimal digits; of anything else they are any.
std::string FromHex(std::string_view hex);

// Twice as many random lower-case hex digits as `bytes` (at most 256), from the kernel.
std::string RandomHex(std::size_t bytes);

// "1.50 MB" with decimal units, for people.
std::string HumanBytes(std::uint64_t bytes);

}  // namespace syncline::base
