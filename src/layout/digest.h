// The additive digest (tensor/digest.h) of what one rank holds: the sums of all ranks are the
// digests of the whole checkpoint tensors.
#pragma once

#include <optional>
#include <span>

#include "base/bytes.h"
#include "base/cancel.h"
#include "layout/plan.h"
#include "tensor/digest.h"

namespace syncline::layout {

// Of the owning pieces of a tensor, at their places in the checkpoint tensor. Zero where this rank
// owns nothing of it. One thread. Nothing once `cancel` (may be null) is set, which is looked at at
// least once for each MiB.
std::optional<tensor::Digest> DigestOwned(const Plan& plan, std::size_t tensor,
                                          std::span<const base::ByteSpan> parameters,
                                          const base::CancelToken* cancel = nullptr);

}  // namespace syncline::layout
