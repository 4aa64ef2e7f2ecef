// Tensors as trainers send them, and as no trainer should.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/view.h"
#include "torture/dice.h"

namespace syncline::orders {

using torture::Dice;

std::string ToBase64(std::string_view bytes);

// A safetensors file.
std::string SafetensorsOf(std::span<const tensor::TensorView> tensors);

// Objects of POSIX shared memory, as torch makes them for one receiver each; those that nobody took
// are removed at the end.
class SharedMemories {
 public:
  SharedMemories() = default;
  ~SharedMemories();
  SharedMemories(const SharedMemories&) = delete;
  SharedMemories& operator=(const SharedMemories&) = delete;

  std::string Add(std::string_view content);

 private:
  std::vector<std::string> names_;
};

// A pickled list of (name, tensor); each tensor has a storage of its own.
std::string PickleOf(std::span<const tensor::TensorView> tensors, SharedMemories& memories);
// A pickled bucket of SGLang.
std::string BucketOf(std::span<const tensor::TensorView> tensors, SharedMemories& memories);

// What cannot be read: noise, cut short, a number of elements beyond all memory, nesting without
// end, a class that would run a program.
std::string WrongPickle(Dice& dice);
std::string WrongSafetensors(std::string good, Dice& dice);

}  // namespace syncline::orders
