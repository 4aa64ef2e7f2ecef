// Checks of the tensors that a trainer hands over.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/cancel.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "store/manifest.h"
#include "tensor/loader.h"
#include "tensor/view.h"

namespace syncline::store {

// Sorts by name and makes one of each name that stands there several times (tied weights). Names
// the tensor with kInvalidArgument where those differ in dtype, shape or bytes, or where the size
// is not that of dtype and shape.
base::Status OrderTensors(std::vector<tensor::TensorView>& tensors, base::ThreadPool& pool,
                          const base::CancelToken* cancel);

// kInvalidArgument unless `given` has exactly the names, dtypes and shapes of `held`, the tensors of
// version `version`; both by name.
base::Status CheckSameTensors(std::span<const tensor::TensorView> held,
                              std::span<const tensor::TensorView> given, std::uint64_t version);

struct TensorTotals {
  std::uint64_t elements = 0;
  std::uint64_t bytes = 0;
};
base::Result<TensorTotals> Total(std::span<const tensor::TensorView> tensors);

// With hash and digest of each; `loader`: where their bytes are not in memory. One tensor a thread,
// large ones first.
base::Result<std::vector<ManifestTensor>> HashTensors(std::span<const tensor::TensorView> tensors,
                                                      const tensor::Loader* loader,
                                                      base::ThreadPool& pool,
                                                      const base::CancelToken* cancel);

}  // namespace syncline::store
