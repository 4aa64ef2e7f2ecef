#include "delta/step_code.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace syncline::delta {
namespace {

using base::Code;
using base::Fail;
using base::Status;

std::uint32_t Sum(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::uint32_t{0});
}

// Counts that add up to 2^log, at least 1 of each symbol that occurs: the shares rounded, and what is
// too much or too little taken where it costs the fewest bits.
Counts Normalized(const Counts& counts, unsigned log) {
  const double total = std::accumulate(counts.begin(), counts.end(), 0.0);
  Counts normal = {};
  if (total == 0) return normal;
  const double scale = static_cast<double>(1U << log) / total;
  int left = 1 << log;
  for (std::size_t i = 0; i < kTokens; ++i) {
    if (counts[i] == 0) continue;
    normal[i] = std::max<std::uint32_t>(
        1, static_cast<std::uint32_t>(std::lround(static_cast<double>(counts[i]) * scale)));
    left -= static_cast<int>(normal[i]);
  }
  for (; left != 0; left += left > 0 ? -1 : 1) {
    std::size_t best = kTokens;
    double best_cost = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < kTokens; ++i) {
      if (normal[i] == 0 || (left < 0 && normal[i] == 1)) continue;
      const double after = normal[i] + (left > 0 ? 1.0 : -1.0);
      const double cost = -counts[i] * std::log2(after / normal[i]);
      if (cost >= best_cost) continue;
      best = i;
      best_cost = cost;
    }
    normal[best] += left > 0 ? 1 : -1;
  }
  return normal;
}

double TableCost(const Counts& table, const Counts& counts, unsigned log) {
  double bits = 0;
  for (std::size_t i = 0; i < kTokens; ++i) {
    if (counts[i] == 0) continue;
    if (table[i] == 0) return std::numeric_limits<double>::infinity();
    bits += counts[i] * (log - std::log2(static_cast<double>(table[i])));
  }
  return bits;
}

// The symbol of each state.
template <std::size_t size>
std::array<std::uint8_t, size> Spread(const Counts& counts) {
  std::array<std::uint8_t, size> symbols = {};
  constexpr std::size_t kStep = size / 2 + size / 8 + 3;
  std::size_t at = 0;
  for (std::size_t symbol = 0; symbol < kTokens; ++symbol) {
    for (std::uint32_t i = 0; i < counts[symbol]; ++i) {
      symbols[at] = static_cast<std::uint8_t>(symbol);
      at = (at + kStep) % size;
    }
  }
  return symbols;
}

template <std::size_t size, typename ExtraOf>
void FillCells(const Counts& counts, std::array<CodeCell, size>& cells, const ExtraOf& extra_of) {
  constexpr auto kLog = static_cast<unsigned>(std::countr_zero(size));
  if (Sum(counts) == 0) {
    cells = {};
    return;
  }
  const auto symbols = Spread<size>(counts);
  Counts next = counts;
  for (std::size_t state = 0; state < size; ++state) {
    const std::uint32_t symbol = symbols[state];
    const std::uint32_t x = next[symbol]++;
    const unsigned bits = kLog + 1 - static_cast<unsigned>(std::bit_width(x));
    const auto first = static_cast<std::uint32_t>((x << bits) - size);
    cells[state].word = first | bits << 10 | extra_of(symbol) << 14 | symbol << 19;
  }
}

std::uint32_t GapExtra(std::uint32_t symbol) {
  return symbol == kEndSymbol ? 0 : ExtraBits(symbol - 1);
}
std::uint32_t StepExtra(std::uint32_t symbol) { return 1 + ExtraBits(symbol); }

template <std::size_t size>
std::vector<std::uint8_t> SpreadVector(const Counts& counts) {
  const auto symbols = Spread<size>(counts);
  return {symbols.begin(), symbols.end()};
}

void AppendCounts(const Counts& counts, std::vector<std::byte>& out) {
  std::size_t size = kTokens;
  while (size > 0 && counts[size - 1] == 0) --size;
  AppendVarint(size, out);
  for (std::size_t i = 0; i < size; ++i) AppendVarint(counts[i], out);
}

}  // namespace

StepCounts& StepCounts::operator+=(const StepCounts& other) {
  for (std::size_t c = 0; c < kMaxClasses; ++c) {
    for (std::size_t i = 0; i < kTokens; ++i) {
      gaps[c][i] += other.gaps[c][i];
      steps[c][i] += other.steps[c][i];
    }
  }
  return *this;
}

StepModel StepModel::Of(const StepCounts& counts, unsigned classes, unsigned base) {
  StepModel model{.classes = classes, .base = base};
  for (std::size_t c = 0; c < classes; ++c) {
    model.gaps[c] = Normalized(counts.gaps[c], kGapLog);
    model.steps[c] = Normalized(counts.steps[c], kStepLog);
  }
  return model;
}

double StepModel::Cost(const StepCounts& counts) const {
  double bits = 0;
  for (std::size_t c = 0; c < kMaxClasses; ++c) {
    bits += TableCost(gaps[c], counts.gaps[c], kGapLog) +
            TableCost(steps[c], counts.steps[c], kStepLog);
  }
  return bits;
}

void AppendModel(const StepModel& model, std::vector<std::byte>& out) {
  AppendVarint(model.classes, out);
  AppendVarint(model.base, out);
  for (std::size_t c = 0; c < model.classes; ++c) {
    AppendCounts(model.gaps[c], out);
    AppendCounts(model.steps[c], out);
  }
}

base::Result<StepModel> ReadModel(ByteReader& from) {
  StepModel model;
  SYNCLINE_ASSIGN(const std::uint64_t classes, from.Varint(kMaxClasses));
  if (classes != 1 && classes != kMaxClasses) {
    return Fail(Code::kCorrupt, fmt::format("a model has {} classes, expected 1 or 16", classes));
  }
  SYNCLINE_ASSIGN(const std::uint64_t base, from.Varint(255));
  model.classes = static_cast<unsigned>(classes);
  model.base = static_cast<unsigned>(base);
  const auto read = [&](Counts& counts, unsigned log) -> Status {
    SYNCLINE_ASSIGN(const std::uint64_t size, from.Varint(kTokens));
    for (std::size_t i = 0; i < size; ++i) {
      SYNCLINE_ASSIGN(const std::uint64_t count, from.Varint(std::uint64_t{1} << log));
      counts[i] = static_cast<std::uint32_t>(count);
    }
    if (size == 0 || Sum(counts) == 1U << log) return {};
    return Fail(Code::kCorrupt, fmt::format("the counts of a table add up to {}, expected {}",
                                            Sum(counts), 1U << log));
  };
  for (std::size_t c = 0; c < model.classes; ++c) {
    SYNCLINE_TRY(read(model.gaps[c], kGapLog));
    SYNCLINE_TRY(read(model.steps[c], kStepLog));
  }
  return model;
}

Status StepDecodeTables::Check(const StepModel& model, UnitKind kind) {
  if (model.classes > 1 && !IsFloat(kind)) {
    return Fail(Code::kCorrupt, "a model has classes, and the units are no floats");
  }
  const unsigned mantissa_bits =
      WithKind(kind, []<UnitKind k>() { return unsigned{UnitTraits<k>::kMantissaBits}; });
  if (model.classes > 1 && model.base >> (8 * UnitBytes(kind) - 1 - mantissa_bits) != 0) {
    return Fail(Code::kCorrupt, "the base of a model is no exponent of its units");
  }
  // Sizes of steps, less one, are below half the range of a unit.
  const std::uint32_t limit = (1U << (8 * UnitBytes(kind) - 1)) - 1;
  for (std::size_t c = 0; c < model.classes; ++c) {
    bool changes = false;
    for (std::uint32_t symbol = 0; symbol < kTokens; ++symbol) {
      if (model.gaps[c][symbol] != 0 && symbol != kEndSymbol) {
        changes = true;
        if (ExtraBits(symbol - 1) > 21) return Fail(Code::kCorrupt, "a model has too large gaps");
      }
      if (model.steps[c][symbol] == 0) continue;
      if (ExtraBits(symbol) > 28 || TokenBase(symbol) > limit) {
        return Fail(Code::kCorrupt, "a model has steps that its units cannot make");
      }
    }
    if (changes && Sum(model.steps[c]) == 0) {
      return Fail(Code::kCorrupt, fmt::format("class {} of a model has gaps and no steps", c));
    }
  }
  return {};
}

StepDecodeTables::StepDecodeTables(const StepModel& model)
    : classes(model.classes), base(model.base) {
  for (std::size_t c = 0; c < classes; ++c) {
    FillCells(model.gaps[c], gaps[c], GapExtra);
    FillCells(model.steps[c], steps[c], StepExtra);
  }
}

StepEncodeTable::StepEncodeTable(const Counts& counts, unsigned log)
    : size_(1U << log), next_(size_) {
  const std::vector<std::uint8_t> symbols =
      log == kGapLog ? SpreadVector<1 << kGapLog>(counts) : SpreadVector<1 << kStepLog>(counts);
  std::array<std::uint32_t, kTokens> place = {};
  std::uint32_t total = 0;
  for (std::size_t i = 0; i < kTokens; ++i) {
    place[i] = total;
    const std::uint32_t count = counts[i];
    if (count == 0) continue;
    const unsigned most =
        count == 1 ? log : log + 1 - static_cast<unsigned>(std::bit_width(count - 1));
    delta_bits_[i] = (most << 16) - (count << most);
    delta_place_[i] = total - count;
    total += count;
  }
  for (std::uint32_t state = 0; state < size_ && total == size_; ++state) {
    next_[place[symbols[state]]++] = static_cast<std::uint16_t>(state);
  }
}

StepEncodeTables::StepEncodeTables(const StepModel& model) {
  for (std::size_t c = 0; c < model.classes; ++c) {
    gaps[c] = StepEncodeTable(model.gaps[c], kGapLog);
    steps[c] = StepEncodeTable(model.steps[c], kStepLog);
  }
}

}  // namespace syncline::delta
