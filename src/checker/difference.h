// How far the values of one tensor lie from those of another: what a comparison reports.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/bytes.h"
#include "tensor/dtype.h"

namespace syncline::checker {

// Sums over elements. Those of pieces are merged in order, so that they are the same however many
// threads there are.
struct ErrorSums {
  std::uint64_t unequal = 0;    // elements whose difference is not 0
  std::uint64_t exceeding = 0;  // those of them that no tolerance explains
  double sum = 0;               // of differences; NaN where one of them is
  double max = 0;

  void Add(double difference, bool exceeds) {
    ++unequal;
    if (exceeds) ++exceeding;
    sum += difference;
    Raise(difference);
  }
  void Merge(const ErrorSums& other) {
    unequal += other.unequal;
    exceeding += other.exceeding;
    sum += other.sum;
    Raise(other.max);
  }

 private:
  void Raise(double difference) {
    if (difference > max || std::isnan(difference)) max = difference;
  }
};

// |actual - expected| of elements that are compared by value, without a tolerance. Numbers of equal
// value are equal, whatever their bits (0 and -0; infinities of one sign); NaN is equal to nothing,
// not to itself either. Of C64 the real and the imaginary part are elements of their own.
//
// Both have the same size, and begin at whole elements (of 6 bits: at a multiple of 3 bytes). Equal
// bytes cost two reads of memory.
ErrorSums CompareValues(tensor::Dtype dtype, base::ByteSpan expected, base::ByteSpan actual);

// Elements in so many bytes, as CompareValues counts them.
std::uint64_t ValueCount(tensor::Dtype dtype, std::uint64_t bytes);

}  // namespace syncline::checker
