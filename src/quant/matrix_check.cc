#include "quant/matrix_check.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace syncline::quant {

using base::Code;
using base::Fail;

base::Status CheckMatrix(const Matrix& matrix) {
  // Padding and types of four bytes make at most 16 bytes of an element.
  constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 58;
  std::uint64_t rows = 0;
  bool fits = true;
  for (const std::uint64_t part : matrix.part_rows) {
    fits = fits && part <= kMaxElements - rows;
    rows += fits ? part : 0;
  }
  const bool empty = matrix.part_rows.empty() || std::ranges::count(matrix.part_rows, 0U) != 0;
  if (empty || matrix.columns == 0) {
    return Fail(Code::kInvalidArgument,
                fmt::format("a matrix of {} rows by {} columns, expected at least one of each",
                            fmt::join(matrix.part_rows, " + "), matrix.columns));
  }
  if (!fits || matrix.columns > kMaxElements / rows ||
      matrix.count() > kMaxElements / rows / matrix.columns) {
    return Fail(Code::kInvalidArgument,
                fmt::format("{} matrices of {} rows by {} columns, expected at most {} elements",
                            matrix.count(), fmt::join(matrix.part_rows, " + "), matrix.columns,
                            kMaxElements));
  }
  return {};
}

}  // namespace syncline::quant
