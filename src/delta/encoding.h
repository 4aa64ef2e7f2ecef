// The two encodings of a tensor's delta that slime, miles and SGLang share (docs/format.md): each
// is one zstd frame.
//
//   xor        the frame decompresses to old ^ new, byte for byte
//   overwrite  the frame decompresses to u32 count, count ascending u32 byte positions, count new
//   bytes (all little-endian)
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace syncline::delta {

enum class Encoding : std::uint8_t { kXor, kOverwrite };

std::optional<Encoding> FindEncoding(std::string_view name);
std::string_view Name(Encoding encoding);

// Tensors are read, patched and recorded in blocks of this size; the last one of a tensor may be
// shorter.
inline constexpr std::size_t kBlockBytes = 65536;

}  // namespace syncline::delta
