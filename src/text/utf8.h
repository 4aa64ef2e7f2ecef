// UTF-8, byte by byte: what is whole, what may still become a character, what never can.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace syncline::text {

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

struct Utf8Step {
  enum class Kind {
    kWhole,    // a character
    kPartial,  // all bytes that there are; more could make them a character
    kInvalid,  // the longest beginning of a character that its next byte does not continue, or a
               // byte that begins none (Unicode, "maximal subpart"): one U+FFFD in its place
  };
  Kind kind;
  std::size_t size;  // in bytes, at least 1
};

// What stands at the start of `bytes`, which must not be empty.
Utf8Step NextUtf8(std::string_view bytes);

// The size of the whole characters at the start of `bytes`; `next` is what follows them (kWhole of
// size 0 if nothing does).
std::size_t WholeUtf8(std::string_view bytes, Utf8Step& next);

bool IsUtf8(std::string_view bytes);

// Moves all that is certain from `pending` to the end of `text`: whole characters as they are, and
// U+FFFD for what is invalid. An unfinished character stays in `pending`.
void TakeCertainUtf8(std::string& pending, std::string& text);

// The code point of the character that `character` consists of.
char32_t CodePoint(std::string_view character);

}  // namespace syncline::text
