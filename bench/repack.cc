// Repacking of 4-bit weights for Marlin and back (quant/wna16_marlin.h), for bench/repack.py:
//
//   repack_bench [--rounds N] [--threads N]
//
// 1. For each case the slots of a unit are filled with random bytes: weights and scales, in shared
//    memory, as the parameters of an engine are. All of it is larger than the caches.
// 2. Each round, after one that is not counted: the unit is repacked in place; restored in place;
//    its bytes are copied by memcpy, in equal parts by as many threads.
// 3. The plain algorithm, value by value from one memory to another on as many threads, runs once
//    over the weights and scales of some matrices of the unit.
// 4. With the clock stopped, what was repacked must equal what the plain algorithm made, and what
//    was restored the bytes of 1.
//
// Prints a JSON list, one object a case: `case`, `bytes`, and GB of these bytes in a second:
// `repack`, `restore`, `memcpy`, each the median of the rounds, and `plain_repack`,
// `plain_restore`.
#include <fmt/core.h>
#include <sys/mman.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <random>

#include "base/json.h"
#include "base/thread_pool.h"
#include "quant/wna16_marlin.h"

namespace syncline::bench {
namespace {

using base::Code;
using base::Fail;
using base::Json;
using base::Result;
using base::Status;
using quant::Matrix;

struct Case {
  const char* name;
  Matrix matrix;
  std::uint64_t group;
  std::uint64_t plain;  // matrices that the plain algorithm does
};

class Memory {
 public:
  static Result<Memory> Make(std::size_t bytes) {
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return base::FailErrno(errno, "mmap");
    return Memory(static_cast<std::byte*>(at), bytes);
  }
  Memory(Memory&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  Memory& operator=(Memory&&) = delete;
  ~Memory() {
    if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
  }
  base::MutableByteSpan bytes() const { return bytes_; }

 private:
  Memory(std::byte* at, std::size_t size) : bytes_(at, size) {}
  base::MutableByteSpan bytes_;
};

double Seconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

void Copy(base::MutableByteSpan to, base::ByteSpan from, base::ThreadPool& pool) {
  const std::size_t part = (from.size() + pool.size() - 1) / pool.size();
  (void)pool.ParallelFor(pool.size(), [&](std::size_t i) -> Status {
    const std::size_t begin = std::min(from.size(), i * part);
    std::memcpy(to.data() + begin, from.data() + begin, std::min(part, from.size() - begin));
    return {};
  });
}

// For each value of 1024 the place that it comes from.
std::array<std::uint16_t, 1024> MarlinPermutation() {
  constexpr std::size_t kOrder[] = {0, 2, 4, 6, 1, 3, 5, 7};
  std::array<std::uint16_t, 1024> permutation;
  for (std::size_t x = 0; x < permutation.size(); ++x) {
    const std::size_t thread = x / 32;
    const std::size_t tile = x / 8 % 4;
    const std::size_t value = kOrder[x % 8];
    const std::size_t row = 2 * (thread % 4) + value % 2 + value % 4 / 2 * 8;
    permutation[x] = static_cast<std::uint16_t>(256 * tile + 16 * row + thread / 4 + value / 4 * 8);
  }
  return permutation;
}

// One matrix between its layouts, value by value. `to` is zero where weights go.
struct Plain {
  std::size_t rows;
  std::size_t columns;
  std::size_t groups;
  bool back;

  void Move(const std::byte* from, std::byte* to, std::size_t load, std::size_t runtime) const {
    const std::size_t source = back ? runtime : load;
    const std::size_t target = back ? load : runtime;
    const auto value = std::to_integer<unsigned>(from[source / 2]) >> (4 * (source % 2)) & 15U;
    to[target / 2] |= static_cast<std::byte>(value << (4 * (target % 2)));
  }

  // Values [16 * first, 16 * last) of all rows.
  void Weights(const std::byte* from, std::byte* to, std::size_t first, std::size_t last) const {
    static const auto permutation = MarlinPermutation();
    for (std::size_t kt = first; kt < last; ++kt) {
      for (std::size_t x = 0; x < rows * 16; ++x) {
        const std::size_t at = x / 1024 * 1024 + permutation[x % 1024];
        const std::size_t n = at / 256 * 16 + at % 16;
        const std::size_t k = kt * 16 + at % 256 / 16;
        Move(from, to, n * columns + k, kt * rows * 16 + x);
      }
    }
  }

  void Scales(const std::byte* from, std::byte* to) const {
    for (std::size_t group = 0; group < groups; ++group) {
      for (std::size_t x = 0; x < rows; ++x) {
        const std::size_t n = x / 64 * 64 + x % 64 / 8 + 8 * (x % 8);
        const std::size_t load = n * groups + group;
        const std::size_t runtime = group * rows + x;
        base::Store(to + 2 * (back ? load : runtime),
                    base::Load<std::uint16_t>(from + 2 * (back ? runtime : load)));
      }
    }
  }
};

using Slots = std::vector<base::MutableByteSpan>;

// The first matrices of the unit.
void RunPlain(const Case& c, bool back, const Slots& from, const Slots& to,
              base::ThreadPool& pool) {
  const std::size_t rows = c.matrix.rows();
  const Plain plain = {rows, c.matrix.columns, c.matrix.columns / c.group, back};
  const std::size_t weight_bytes = rows * c.matrix.columns / 2;
  const std::size_t scale_bytes = rows * plain.groups * 2;
  const std::size_t tiles = c.matrix.columns / 16;
  // Bytes of which two threads would write one nibble each do not exist: a tile has 8 whole ones of
  // each row.
  constexpr std::size_t kParts = 16;
  (void)pool.ParallelFor(c.plain * kParts, [&](std::size_t task) -> Status {
    const std::size_t expert = task / kParts;
    const std::size_t part = task % kParts;
    plain.Weights(from[0].data() + expert * weight_bytes, to[0].data() + expert * weight_bytes,
                  tiles * part / kParts, tiles * (part + 1) / kParts);
    if (part == 0) {
      plain.Scales(from[1].data() + expert * scale_bytes, to[1].data() + expert * scale_bytes);
    }
    return {};
  });
}

struct Unit {
  Memory memory;
  Slots slots;
};

Result<Unit> MakeUnit(const std::vector<quant::Slot>& layout) {
  std::size_t bytes = 0;
  for (const quant::Slot& slot : layout) bytes += slot.load.bytes();
  SYNCLINE_ASSIGN(Memory memory, Memory::Make(bytes));
  Slots slots;
  std::size_t at = 0;
  for (const quant::Slot& slot : layout) {
    slots.push_back(memory.bytes().subspan(at, slot.load.bytes()));
    at += slot.load.bytes();
  }
  return Unit{std::move(memory), std::move(slots)};
}

Status MustEqual(const Slots& a, const Slots& b, std::uint64_t part, std::uint64_t of,
                 std::string_view what) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(a[i].data(), b[i].data(), a[i].size() / of * part) != 0) {
      return Fail(Code::kInternal, fmt::format("{} differs from what was expected", what));
    }
  }
  return {};
}

Result<Json> Measure(const Case& c, std::size_t rounds, base::ThreadPool& pool) {
  const auto scheme = quant::Wna16Marlin(c.group);
  SYNCLINE_TRY(scheme->Check(c.matrix));
  const std::vector<quant::Slot> layout = scheme->Slots(c.matrix);
  SYNCLINE_ASSIGN(const Unit unit, MakeUnit(layout));
  SYNCLINE_ASSIGN(const Unit original, MakeUnit(layout));
  SYNCLINE_ASSIGN(const Unit repacked, MakeUnit(layout));
  std::mt19937_64 random(1);  // NOLINT: the same every time
  const base::MutableByteSpan bytes = original.memory.bytes();
  for (std::size_t i = 0; i + 8 <= bytes.size(); i += 8) base::Store(bytes.data() + i, random());

  const double plain_bytes = static_cast<double>(bytes.size()) /
                             static_cast<double>(c.matrix.count()) * static_cast<double>(c.plain);
  std::ranges::fill(repacked.memory.bytes(), std::byte{0});
  std::ranges::fill(unit.memory.bytes(), std::byte{0});
  const double plain_repack =
      Seconds([&] { RunPlain(c, false, original.slots, repacked.slots, pool); });
  const double plain_restore =
      Seconds([&] { RunPlain(c, true, repacked.slots, unit.slots, pool); });
  SYNCLINE_TRY(MustEqual(unit.slots, original.slots, c.plain, c.matrix.count(), "plain restore"));

  Copy(unit.memory.bytes(), bytes, pool);
  std::vector<double> repack, restore, copy;
  for (std::size_t round = 0; round <= rounds; ++round) {
    repack.push_back(Seconds([&] { scheme->Process(c.matrix, unit.slots, pool); }));
    SYNCLINE_TRY(MustEqual(unit.slots, repacked.slots, c.plain, c.matrix.count(), "repack"));
    restore.push_back(Seconds([&] { scheme->Restore(c.matrix, unit.slots, pool); }));
    SYNCLINE_TRY(MustEqual(unit.slots, original.slots, 1, 1, "restore"));
    copy.push_back(Seconds([&] { Copy(unit.memory.bytes(), bytes, pool); }));
    if (round == 0) {
      for (auto* seconds : {&repack, &restore, &copy}) seconds->clear();
    }
  }
  const double gb = static_cast<double>(bytes.size()) / 1e9;
  return Json(Json::Object{{"case", c.name},
                           {"bytes", std::uint64_t{bytes.size()}},
                           {"repack", gb / Median(repack)},
                           {"restore", gb / Median(restore)},
                           {"memcpy", gb / Median(copy)},
                           {"plain_repack", plain_bytes / 1e9 / plain_repack},
                           {"plain_restore", plain_bytes / 1e9 / plain_restore}});
}

Result<Json> MeasureAll(std::size_t rounds, std::size_t threads) {
  base::ThreadPool pool(threads);
  const Case cases[] = {
      {"16 experts of 4096 x 7168, group 32",
       {.experts = 16, .part_rows = {2048, 2048}, .columns = 7168},
       32,
       2},
      {"16 experts of 7168 x 2048, group 32",
       {.experts = 16, .part_rows = {7168}, .columns = 2048},
       32,
       2},
      {"one of 28672 x 8192, group 128", {.part_rows = {14336, 14336}, .columns = 8192}, 128, 1},
  };
  Json::Array all;
  for (const Case& c : cases) {
    SYNCLINE_ASSIGN(Json measured, Measure(c, rounds, pool));
    all.push_back(std::move(measured));
  }
  return Json(std::move(all));
}

}  // namespace
}  // namespace syncline::bench

int main(int argc, char** argv) {
  CLI::App app("Repacks 4-bit weights for Marlin and back.");
  std::size_t rounds = 5;
  std::size_t threads = 2;
  app.add_option("--rounds", rounds)->check(CLI::PositiveNumber);
  app.add_option("--threads", threads)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  const auto report = syncline::bench::MeasureAll(rounds, threads);
  if (!report) {
    fmt::print(stderr, "repack_bench: {}\n", report.error().message);
    return Info(report.error().code).exit_code;
  }
  fmt::print("{}\n", syncline::base::ToText(*report));
}
