// What the ranks of one engine do together in a forward pass. Every rank makes the same calls in
// the same order with tensors of the same shape; each call returns when its result is there, or
// throws when a rank is gone.
#pragma once

#include <vector>

namespace at {
class Tensor;
}

namespace syncline::model {

// One thread at a time.
class Collectives {
 public:
  virtual ~Collectives() = default;

  // The elementwise sum over all ranks, on all ranks the same bits, in place. Contiguous.
  virtual void Sum(at::Tensor& x) = 0;
  // The tensors of all ranks, by rank, on rank 0; nothing elsewhere.
  virtual std::vector<at::Tensor> Gather(const at::Tensor& x) = 0;

  // Time that these calls have taken so far, waiting for the other ranks included.
  virtual double seconds() const { return 0; }
};

}  // namespace syncline::model
