// The small checkpoint of a case: what its tensors are, and how its training goes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tensor/view.h"
#include "torture/dice.h"

namespace syncline::torture {

// Bytes of each tensor, in the order of the model.
using Weights = std::vector<std::vector<std::byte>>;

class Model {
 public:
  // A few tensors of odd sizes, empty and scalar ones among them, 20 to 200 KiB in all; with
  // `large` one more that a replica patches in segments instead of as a whole.
  Model(Dice& dice, bool large);

  std::size_t size() const { return tensors_.size(); }
  // Valid as long as the weights.
  std::vector<tensor::TensorView> Views(const Weights& weights) const;
  Weights Start(Dice& dice) const;
  // Some elements of some tensors changed; now and then none, or all.
  Weights Step(const Weights& weights, Dice& dice) const;

 private:
  void Add(tensor::Dtype dtype, std::vector<std::uint64_t> shape);

  std::vector<tensor::TensorView> tensors_;  // without bytes, by name
};

}  // namespace syncline::torture
