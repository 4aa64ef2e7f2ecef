// GPT-2's table of a printable character for each byte, which byte-level tokenizers write their
// tokens with.
#pragma once

#include <string>
#include <string_view>

namespace syncline::text {

// The bytes that the characters of `token` (valid UTF-8) stand for. A token that has any other
// character stands for its own UTF-8 bytes, as in the reference.
std::string ByteLevelBytes(std::string_view token);

}  // namespace syncline::text
