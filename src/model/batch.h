// One step of the model: which tokens of which sequences are computed, and where their keys and
// values lie.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace syncline::model {

// A sequence's part of a step: `length` tokens that end at position `context`. Its keys and values
// lie in `blocks`, each of kKvBlock tokens, in order; there are enough of them for `context`
// tokens.
struct SequenceSlice {
  std::uint32_t begin = 0;    // first row of the step
  std::uint32_t length = 1;   // rows
  std::uint32_t context = 1;  // tokens of the sequence after this step
  std::vector<std::uint32_t> blocks;
};

inline constexpr std::uint32_t kKvBlock = 16;

struct Batch {
  std::vector<std::int32_t> tokens;        // [rows]
  std::vector<SequenceSlice> sequences;    // cover the rows without gaps, in order
  std::vector<std::uint32_t> logits_rows;  // rows whose logits are wanted
  bool experts = false;                    // the chosen experts of all rows are wanted
};

}  // namespace syncline::model
