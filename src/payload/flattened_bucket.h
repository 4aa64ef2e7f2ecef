// SGLang's flattened buckets: many tensors in one, and where each of them lies.
#pragma once

#include "payload/pickle.h"
#include "payload/tensor_batch.h"

namespace syncline::payload {

// Adds the tensors of {"flattened_tensor": …, "metadata": […]}. kInvalidArgument names the tensor.
base::Status AddBucket(const Value& root, const Storages& storages, TensorBatch& batch);

}  // namespace syncline::payload
