// What rank 0 tells the other ranks in the ordered stream of commands (ranks/leader.h), and how it
// is written. All numbers little-endian.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "model/batch.h"

namespace syncline::engine {

// Kinds of the engine's own commands. Others, of rooms that build on this one, begin at kFirstOther.
enum RankCommand : std::uint32_t {
  kReserveKv = 1,  // u32 blocks; answered when it is done
  kForward = 2,    // a batch
  kFirstOther = 100,
};

//   batch   u64 rows, i32 tokens…
//           u64 sequences, each: u32 begin, length, context; u64 blocks, u32 …
//           u64 rows, u32 logits rows…
//           u8 1 if the chosen experts are wanted
std::vector<std::byte> EncodeBatch(const model::Batch& batch);
// kCorrupt.
base::Result<model::Batch> DecodeBatch(base::ByteSpan bytes);

}  // namespace syncline::engine
