// The `decoder` entry of a tokenizer.json, reduced to what can be done to each token beforehand and
// what must wait until tokens stand side by side.
//
// The reference applies its decoders in turn to a list of token texts. Known are: ByteLevel,
// Replace of a string, Metaspace, Strip, ByteFallback and Fuse, in any `Sequence` where what
// follows ByteFallback, Fuse or ByteLevel is at most a Fuse and one Strip from the left.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace syncline::text {

struct DecoderRules {
  enum class Join {
    kText,          // texts of tokens, one after the other
    kSpaced,        // the same with a space between; a tokenizer without decoder
    kBytes,         // bytes of tokens; what is no character becomes U+FFFD
    kByteFallback,  // texts; a run of byte tokens is one text, or a U+FFFD for each of its bytes
  };
  struct Step {
    enum class Kind {
      kReplace,               // each `from` by `to`
      kReplaceOrDropInFirst,  // each `from` by `to`; in the first token of a text by nothing
      kStrip,                 // up to `left` and `right` times `from` at the ends
    };
    Kind kind = Kind::kReplace;
    std::string from;
    std::string to;
    std::uint64_t left = 0;
    std::uint64_t right = 0;
  };

  std::vector<Step> steps;  // on each token, in this order
  Join join = Join::kText;
  // Up to so many of this character are dropped at the start of the text.
  std::string strip;
  std::uint64_t strip_count = 0;

  struct Applied {
    std::string bytes;
    bool is_byte = false;  // kByteFallback: part of a run
  };
  // Is the text of a token another one where it is the first?
  bool first_differs() const;
  // The bytes of a token (valid UTF-8) as it stands at the start of a text, or later.
  // kLimitExceeded if there are more than 1 MiB.
  base::Result<Applied> Apply(std::string_view token, bool first) const;
};

// Null or JSON's null: a tokenizer without decoder. kCorrupt or kIncompatible.
base::Result<DecoderRules> ParseDecoder(const base::Json* decoder);

}  // namespace syncline::text
