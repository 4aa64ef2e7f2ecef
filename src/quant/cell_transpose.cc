// A transposition is a permutation, which consists of cycles: what stands at Source(cell) goes to
// `cell`. A cycle is walked against the moves, so only its first cell is kept aside, and a cell is
// written right after it was read. Long cycles are cut into chains, which threads walk at the same
// time; the first cell of each is kept aside before any of them moves.
#include "quant/cell_transpose.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace syncline::quant {

CellTranspose::CellTranspose(std::uint64_t rows, std::uint64_t columns, std::size_t cell_bytes)
    : rows_(static_cast<std::uint32_t>(rows)),
      columns_(static_cast<std::uint32_t>(columns)),
      cell_bytes_(cell_bytes) {
  const std::uint32_t cells = rows_ * columns_;
  constexpr std::uint32_t kShortest = 256;
  constexpr std::uint32_t kParts = 512;
  longest_ = std::max(kShortest, cells / kParts);
  std::vector<bool> seen(cells);
  for (std::uint32_t first = 0; first < cells; ++first) {
    if (seen[first]) continue;
    std::uint32_t length = 0;
    for (std::uint32_t cell = first; !seen[cell]; cell = Source(cell)) {
      seen[cell] = true;
      ++length;
    }
    if (length > 1) AddCycle(first, length);
  }
  aside_.resize(Tasks() * cell_bytes_);
}

void CellTranspose::AddCycle(std::uint32_t first, std::uint32_t length) {
  if (length <= longest_) {
    cycles_.push_back({first, length, kNone});
    return;
  }
  const auto begin = static_cast<std::uint32_t>(parts_.size());
  std::uint32_t cell = first;
  for (std::uint32_t done = 0; done < length; done += longest_) {
    const std::uint32_t moves = std::min(longest_, length - done);
    parts_.push_back({cell, moves, static_cast<std::uint32_t>(parts_.size() + 1)});
    for (std::uint32_t i = 0; i < moves; ++i) cell = Source(cell);
  }
  parts_.back().next = begin;
}

void CellTranspose::Move(std::byte* matrix, const Chain& chain, const std::byte* last) const {
  // Cells ahead are asked for early: they are far apart.
  constexpr std::uint32_t kAhead = 4;
  std::array<std::uint32_t, kAhead> ahead;
  std::uint32_t far = chain.first;
  const auto fetch = [&](std::uint32_t slot) {
    far = Source(far);
    ahead[slot] = far;
    const std::byte* at = matrix + far * cell_bytes_;
    for (std::size_t line = 0; line < cell_bytes_; line += 64) __builtin_prefetch(at + line);
  };
  for (std::uint32_t i = 0; i < kAhead; ++i) fetch(i);
  std::uint32_t to = chain.first;
  for (std::uint32_t i = 0; i + 1 < chain.moves; ++i) {
    const std::uint32_t from = ahead[i % kAhead];
    fetch(i % kAhead);
    std::memcpy(matrix + to * cell_bytes_, matrix + from * cell_bytes_, cell_bytes_);
    to = from;
  }
  std::memcpy(matrix + to * cell_bytes_, last, cell_bytes_);
}

void CellTranspose::Run(std::byte* matrix, base::ThreadPool& pool) {
  const auto keep = [&](std::size_t task, std::uint32_t cell) {
    std::byte* const kept = aside_.data() + task * cell_bytes_;
    std::memcpy(kept, matrix + cell * cell_bytes_, cell_bytes_);
    return kept;
  };
  for (std::size_t i = 0; i < parts_.size(); ++i) keep(i, parts_[i].first);
  (void)pool.ParallelFor(Tasks(), [&](std::size_t task) -> base::Status {
    if (task < parts_.size()) {
      Move(matrix, parts_[task], aside_.data() + parts_[task].next * cell_bytes_);
      return {};
    }
    const std::size_t begin = (task - parts_.size()) * kCyclesInTask;
    for (std::size_t i = begin; i < std::min(begin + kCyclesInTask, cycles_.size()); ++i) {
      Move(matrix, cycles_[i], keep(task, cycles_[i].first));
    }
    return {};
  });
}

}  // namespace syncline::quant
