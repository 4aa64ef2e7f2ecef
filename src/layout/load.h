// Reads a whole checkpoint into the parameters of a plan.
#pragma once

#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "base/cancel.h"
#include "base/error.h"
#include "base/file.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "layout/forms.h"
#include "layout/plan.h"

namespace syncline::layout {

struct LoadReport {
  std::uint64_t tensors = 0;  // of the model, all of them
  std::uint64_t skipped = 0;  // that a rule of the plan leaves out
  std::uint64_t bytes = 0;    // of them on this rank
};

// Does the checkpoint hold exactly what the plan asks for? kNotFound names tensors that are missing
// or that nothing claims (up to five, and how many more); kInvalidArgument a wrong dtype or shape,
// unless it is one of `forms` (null: none). Reads nothing.
base::Status CheckNames(const checkpoint::Checkpoint& checkpoint, const Plan& plan,
                        const Forms* forms = nullptr);

// Checks the names, then reads what this rank holds of every tensor with read calls, in parallel,
// straight into place where it lies there in one piece. A tensor in another of `forms` is read
// whole and converted, by one thread. Each parameter that is not derived is written completely, or
// an error comes back: then their content is undefined. kChecksumMismatch: a tensor that should
// equal another (the head of a tied model) does not.
base::Result<LoadReport> LoadCheckpoint(base::FileSystem& files,
                                        const checkpoint::Checkpoint& checkpoint, const Plan& plan,
                                        std::span<const base::MutableByteSpan> parameters,
                                        base::ThreadPool& pool, const base::CancelToken* cancel,
                                        const Forms* forms = nullptr);

}  // namespace syncline::layout
