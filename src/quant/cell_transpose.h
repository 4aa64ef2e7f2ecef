// Transposes a matrix of large cells in place, on many threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/thread_pool.h"

namespace syncline::quant {

// For matrices of one shape, one after another. Besides the matrix it needs at most 12 bytes for
// each cell and copies of some thousand cells. Not thread-safe.
class CellTranspose {
 public:
  // rows * columns is below 2^32.
  CellTranspose(std::uint64_t rows, std::uint64_t columns, std::size_t cell_bytes);

  // Cell (r, c), which begins at matrix + (r * columns + c) * cell_bytes, moves to where cell
  // number c * rows + r begins.
  void Run(std::byte* matrix, base::ThreadPool& pool);

 private:
  // Cells of a cycle of moves that are done one after another: what stands at Source(cell) moves to
  // `cell`, from `first` on.
  struct Chain {
    std::uint32_t first;
    std::uint32_t moves;
    // The chain that begins where this one ends: its first cell is kept. kNone: this very one.
    std::uint32_t next;
  };
  static constexpr std::size_t kCyclesInTask = 64;
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  std::uint32_t Source(std::uint32_t cell) const { return cell % rows_ * columns_ + cell / rows_; }
  std::size_t Tasks() const {
    return parts_.size() + (cycles_.size() + kCyclesInTask - 1) / kCyclesInTask;
  }
  void AddCycle(std::uint32_t first, std::uint32_t length);
  void Move(std::byte* matrix, const Chain& chain, const std::byte* last) const;

  std::uint32_t rows_;
  std::uint32_t columns_;
  std::size_t cell_bytes_;
  std::uint32_t longest_;      // chain
  std::vector<Chain> parts_;   // of cycles that are cut
  std::vector<Chain> cycles_;  // whole ones
  // The first cell of each of parts_, and one for each task that moves whole cycles.
  std::vector<std::byte> aside_;
};

}  // namespace syncline::quant
