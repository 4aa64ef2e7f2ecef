#include "tensor/blake3.h"

#include <algorithm>
#include <bit>
#include <cstring>

// Several equally long messages (chunks, or pairs of child nodes) are hashed side by side, one a
// vector lane. The kernel is one loop over the lanes around straight-line scalar code, which the
// compiler turns into vector code of the width that the enclosing function's target allows.

namespace syncline::tensor {
namespace {

static_assert(std::endian::native == std::endian::little, "message words are read in place");

constexpr std::size_t kBlockBytes = 64;
constexpr std::size_t kChunkBlocks = 16;
constexpr std::size_t kRounds = 7;
// Chunks hashed in one go: large enough that the narrow top levels of a subtree cost little.
constexpr std::size_t kMaxSubtreeChunks = 128;

constexpr std::uint32_t kChunkStart = 1;
constexpr std::uint32_t kChunkEnd = 2;
constexpr std::uint32_t kParent = 4;
constexpr std::uint32_t kRoot = 8;

constexpr std::array<std::uint32_t, 8> kInitial = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                                   0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

// kSchedule[r][i]: which message word round r takes in place i.
constexpr auto kSchedule = [] {
  constexpr std::array<std::size_t, 16> kStep = {2, 6,  3,  10, 7, 0,  4,  13,
                                                 1, 11, 12, 5,  9, 14, 15, 8};
  std::array<std::array<std::size_t, 16>, kRounds> schedule{};
  for (std::size_t i = 0; i < 16; ++i) schedule[0][i] = i;
  for (std::size_t r = 1; r < kRounds; ++r) {
    for (std::size_t i = 0; i < 16; ++i) schedule[r][i] = schedule[r - 1][kStep[i]];
  }
  return schedule;
}();

template <std::size_t kLanes>
using Words8 = std::uint32_t[8][kLanes];
template <std::size_t kLanes>
using Words16 = std::uint32_t[16][kLanes];

[[gnu::always_inline]] inline void Mix(std::uint32_t& a, std::uint32_t& b, std::uint32_t& c,
                                       std::uint32_t& d, std::uint32_t x, std::uint32_t y) {
  a += b + x;
  d = std::rotr(d ^ a, 16);
  c += d;
  b = std::rotr(b ^ c, 12);
  a += b + y;
  d = std::rotr(d ^ a, 8);
  c += d;
  b = std::rotr(b ^ c, 7);
}

template <std::size_t kRound, std::size_t kLanes>
[[gnu::always_inline]] inline void Round(std::uint32_t (&v)[16], const Words16<kLanes>& m,
                                         std::size_t lane) {
  constexpr auto& kWord = kSchedule[kRound];
  Mix(v[0], v[4], v[8], v[12], m[kWord[0]][lane], m[kWord[1]][lane]);
  Mix(v[1], v[5], v[9], v[13], m[kWord[2]][lane], m[kWord[3]][lane]);
  Mix(v[2], v[6], v[10], v[14], m[kWord[4]][lane], m[kWord[5]][lane]);
  Mix(v[3], v[7], v[11], v[15], m[kWord[6]][lane], m[kWord[7]][lane]);
  Mix(v[0], v[5], v[10], v[15], m[kWord[8]][lane], m[kWord[9]][lane]);
  Mix(v[1], v[6], v[11], v[12], m[kWord[10]][lane], m[kWord[11]][lane]);
  Mix(v[2], v[7], v[8], v[13], m[kWord[12]][lane], m[kWord[13]][lane]);
  Mix(v[3], v[4], v[9], v[14], m[kWord[14]][lane], m[kWord[15]][lane]);
}

// Compresses one block in every lane, each with its own chunk counter.
template <std::size_t kLanes>
[[gnu::always_inline]] inline void Compress(Words8<kLanes>& cv, const Words16<kLanes>& m,
                                            const std::uint32_t (&counter_low)[kLanes],
                                            const std::uint32_t (&counter_high)[kLanes],
                                            std::uint32_t block_bytes, std::uint32_t flags) {
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    std::uint32_t v[16] = {cv[0][lane],       cv[1][lane],        cv[2][lane], cv[3][lane],
                           cv[4][lane],       cv[5][lane],        cv[6][lane], cv[7][lane],
                           kInitial[0],       kInitial[1],        kInitial[2], kInitial[3],
                           counter_low[lane], counter_high[lane], block_bytes, flags};
    Round<0, kLanes>(v, m, lane);
    Round<1, kLanes>(v, m, lane);
    Round<2, kLanes>(v, m, lane);
    Round<3, kLanes>(v, m, lane);
    Round<4, kLanes>(v, m, lane);
    Round<5, kLanes>(v, m, lane);
    Round<6, kLanes>(v, m, lane);
    cv[0][lane] = v[0] ^ v[8];
    cv[1][lane] = v[1] ^ v[9];
    cv[2][lane] = v[2] ^ v[10];
    cv[3][lane] = v[3] ^ v[11];
    cv[4][lane] = v[4] ^ v[12];
    cv[5][lane] = v[5] ^ v[13];
    cv[6][lane] = v[6] ^ v[14];
    cv[7][lane] = v[7] ^ v[15];
  }
}

// Reads one block of each lane's message and turns lanes-by-words into words-by-lanes.
template <std::size_t kLanes>
[[gnu::always_inline]] inline void LoadBlocks(const std::byte* data, std::size_t stride,
                                              Words16<kLanes>& m) {
  if constexpr (kLanes % 4 == 0) {
    using Quad [[gnu::vector_size(16)]] = std::uint32_t;
    for (std::size_t lane = 0; lane < kLanes; lane += 4) {
      for (std::size_t word = 0; word < 16; word += 4) {
        Quad a, b, c, d;
        const std::byte* from = data + lane * stride + word * 4;
        std::memcpy(&a, from, 16);
        std::memcpy(&b, from + stride, 16);
        std::memcpy(&c, from + 2 * stride, 16);
        std::memcpy(&d, from + 3 * stride, 16);
        const Quad ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
        const Quad ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
        const Quad cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
        const Quad cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
        a = __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5);
        b = __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7);
        c = __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5);
        d = __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7);
        std::memcpy(&m[word][lane], &a, 16);
        std::memcpy(&m[word + 1][lane], &b, 16);
        std::memcpy(&m[word + 2][lane], &c, 16);
        std::memcpy(&m[word + 3][lane], &d, 16);
      }
    }
  } else {
    static_assert(kLanes == 1);
    std::memcpy(m, data, kBlockBytes);
  }
}

// Messages that lie one behind another: whole chunks numbered from first_chunk, or parent nodes.
struct Batch {
  const std::byte* data;
  bool parents;
  std::uint64_t first_chunk;
};

// Hashes the first kLanes messages of `batch`; `out` may overlap the input of parents.
template <std::size_t kLanes>
[[gnu::always_inline]] inline void HashLanes(const Batch& batch, std::uint32_t (*out)[8]) {
  alignas(64) Words8<kLanes> cv;
  alignas(64) Words16<kLanes> m;
  alignas(64) std::uint32_t counter_low[kLanes];
  alignas(64) std::uint32_t counter_high[kLanes];
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    const std::uint64_t counter = batch.parents ? 0 : batch.first_chunk + lane;
    counter_low[lane] = static_cast<std::uint32_t>(counter);
    counter_high[lane] = static_cast<std::uint32_t>(counter >> 32);
    for (std::size_t i = 0; i < 8; ++i) cv[i][lane] = kInitial[i];
  }
  const std::size_t blocks = batch.parents ? 1 : kChunkBlocks;
  for (std::size_t block = 0; block < blocks; ++block) {
    std::uint32_t flags = kParent;
    if (!batch.parents) {
      flags = (block == 0 ? kChunkStart : 0) | (block + 1 == blocks ? kChunkEnd : 0);
    }
    LoadBlocks<kLanes>(batch.data + block * kBlockBytes, blocks * kBlockBytes, m);
    Compress<kLanes>(cv, m, counter_low, counter_high, kBlockBytes, flags);
  }
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    for (std::size_t i = 0; i < 8; ++i) out[lane][i] = cv[i][lane];
  }
}

void Hash1(const Batch& batch, std::uint32_t (*out)[8]) { HashLanes<1>(batch, out); }
void Hash4(const Batch& batch, std::uint32_t (*out)[8]) { HashLanes<4>(batch, out); }
#if defined(__x86_64__) && defined(__GNUC__)
[[gnu::target("avx2")]] void Hash8(const Batch& batch, std::uint32_t (*out)[8]) {
  HashLanes<8>(batch, out);
}
[[gnu::target("avx512f,avx512vl")]] void Hash16(const Batch& batch, std::uint32_t (*out)[8]) {
  HashLanes<16>(batch, out);
}
#endif

struct Kernel {
  std::size_t lanes = 1;
  void (*hash)(const Batch& batch, std::uint32_t (*out)[8]) = Hash1;
};

// The kernels that this processor can run, widest first; at least the last has one lane.
const std::array<Kernel, 4>& Kernels() {
  static const std::array<Kernel, 4> kernels = [] {
    std::array<Kernel, 4> result{};
    std::size_t count = 0;
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl")) {
      result[count++] = {16, Hash16};
    }
    if (__builtin_cpu_supports("avx2")) result[count++] = {8, Hash8};
#endif
    result[count] = {4, Hash4};
    return result;
  }();
  return kernels;
}

// Hashes `count` messages into out[0 .. count).
void HashBatch(Batch batch, std::size_t count, std::uint32_t (*out)[8]) {
  const std::size_t message_bytes = kBlockBytes * (batch.parents ? 1 : kChunkBlocks);
  for (const Kernel& kernel : Kernels()) {
    for (; count >= kernel.lanes; count -= kernel.lanes) {
      kernel.hash(batch, out);
      batch.data += kernel.lanes * message_bytes;
      batch.first_chunk += kernel.lanes;
      out += kernel.lanes;
    }
  }
}

// What is left of a tree node once all blocks but its last are hashed: the last compression is put
// off because only then it is known whether the node is the root. Nodes that may be the root are
// parents or chunk 0, and the root's counter (an output position) is 0 as well.
struct Node {
  Words8<1> cv;
  Words16<1> block;
  std::uint64_t counter;
  std::uint32_t block_bytes;
  std::uint32_t flags;

  std::array<std::uint32_t, 8> Hash(std::uint32_t more_flags) const {
    Words8<1> result;
    std::memcpy(result, cv, sizeof(result));
    const std::uint32_t low[1] = {static_cast<std::uint32_t>(counter)};
    const std::uint32_t high[1] = {static_cast<std::uint32_t>(counter >> 32)};
    Compress<1>(result, block, low, high, block_bytes, flags | more_flags);
    return std::bit_cast<std::array<std::uint32_t, 8>>(result);
  }
};

Node ParentNode(const std::array<std::uint32_t, 8>& left,
                const std::array<std::uint32_t, 8>& right) {
  Node node{{}, {}, 0, kBlockBytes, kParent};
  std::memcpy(node.cv, kInitial.data(), sizeof(node.cv));
  std::memcpy(node.block, left.data(), sizeof(left));
  std::memcpy(node.block + left.size(), right.data(), sizeof(right));
  return node;
}

// The node of one chunk of at most 1024 bytes, which may be empty.
Node ChunkNode(std::span<const std::byte> data, std::uint64_t chunk) {
  Node node{{}, {}, chunk, kBlockBytes, kChunkStart};
  std::memcpy(node.cv, kInitial.data(), sizeof(node.cv));
  for (; data.size() > kBlockBytes; data = data.subspan(kBlockBytes)) {
    std::memcpy(node.block, data.data(), kBlockBytes);
    const auto cv = node.Hash(0);
    std::memcpy(node.cv, cv.data(), sizeof(node.cv));
    node.flags = 0;
  }
  std::memset(node.block, 0, sizeof(node.block));
  std::ranges::copy(data, std::as_writable_bytes(std::span(node.block)).begin());
  node.block_bytes = static_cast<std::uint32_t>(data.size());
  node.flags |= kChunkEnd;
  return node;
}

}  // namespace

void Blake3::AbsorbSubtree(const std::byte* data, std::size_t chunks) {
  std::uint32_t level[kMaxSubtreeChunks][8];
  HashBatch({data, false, chunk_count_}, chunks, level);
  std::size_t nodes = chunks;
  for (; nodes > 2; nodes /= 2) {
    HashBatch({std::as_bytes(std::span(level)).data(), true, 0}, nodes / 2, level);
  }
  for (std::size_t i = 0; i < nodes; ++i) open_[open_count_++] = std::to_array(level[i]);
  chunk_count_ += chunks;
}

void Blake3::MergeOpenSubtrees() {
  // Complete subtrees of distinct sizes remain: one for each bit set in the number of chunks.
  const auto remaining = static_cast<std::size_t>(std::popcount(chunk_count_));
  for (; open_count_ > remaining; --open_count_) {
    open_[open_count_ - 2] = ParentNode(open_[open_count_ - 2], open_[open_count_ - 1]).Hash(0);
  }
}

void Blake3::Update(std::span<const std::byte> data) {
  while (!data.empty()) {
    if (tail_bytes_ == kChunkBytes) {
      AbsorbSubtree(tail_.data(), 1);
      tail_bytes_ = 0;
    }
    MergeOpenSubtrees();
    if (tail_bytes_ == 0 && data.size() > kChunkBytes) {
      std::size_t chunks = std::min(std::bit_floor(data.size() / kChunkBytes), kMaxSubtreeChunks);
      while (chunk_count_ % chunks != 0) chunks /= 2;
      AbsorbSubtree(data.data(), chunks);
      data = data.subspan(chunks * kChunkBytes);
      continue;
    }
    const std::size_t taken = std::min(kChunkBytes - tail_bytes_, data.size());
    std::ranges::copy(data.first(taken), tail_.begin() + static_cast<std::ptrdiff_t>(tail_bytes_));
    tail_bytes_ += taken;
    data = data.subspan(taken);
  }
}

std::array<std::uint8_t, Blake3::kDigestBytes> Blake3::Finish() const {
  // With a tail, open_ was merged when the tail began; without one, the top pair is joined first.
  const bool has_tail = tail_bytes_ > 0 || open_count_ == 0;
  std::size_t open = has_tail ? open_count_ : open_count_ - 2;
  Node node = has_tail ? ChunkNode(std::span(tail_).first(tail_bytes_), chunk_count_)
                       : ParentNode(open_[open], open_[open + 1]);
  for (; open > 0; --open) node = ParentNode(open_[open - 1], node.Hash(0));
  return std::bit_cast<std::array<std::uint8_t, kDigestBytes>>(node.Hash(kRoot));
}

}  // namespace syncline::tensor
