// The encodings of a delta (docs/format.md). Two that slime, miles and SGLang share, in which each
// tensor is one zstd frame, and ours, in which frames span tensors and are written against the old
// values:
//
//   xor        the frame decompresses to old ^ new, byte for byte
//   overwrite  the frame decompresses to u32 count, count ascending u32 byte positions, count new
//   bytes (all little-endian)
//   compact    near the entropy of the steps
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/error.h"

namespace syncline::delta {

enum class Encoding : std::uint8_t { kXor, kOverwrite, kCompact };

std::optional<Encoding> FindEncoding(std::string_view name);
std::string_view Name(Encoding encoding);

// How a publisher writes compact frames; readers need not know.
enum class CompactForm : std::uint8_t {
  kClasses,  // the smallest
  kGaps,     // faster, without the old values as context
  kAuto,     // whichever brings a version sooner to a reader
};

struct EncodingChoice {
  constexpr EncodingChoice(Encoding the_encoding = Encoding::kXor,
                           CompactForm the_form = CompactForm::kClasses, double the_link_gbps = 0)
      : encoding(the_encoding), form(the_form), link_gbps(the_link_gbps) {}

  Encoding encoding;
  CompactForm form;
  double link_gbps;  // of the link between publisher and readers, for kAuto; 0: not known
};

// "xor", "overwrite", "compact", "compact-gap" or "auto". kInvalidArgument names them.
base::Result<EncodingChoice> ChooseEncoding(std::string_view name, double link_gbps);

// Tensors are read, patched and recorded in blocks of this size; the last one of a tensor may be
// shorter.
inline constexpr std::size_t kBlockBytes = 65536;

}  // namespace syncline::delta
