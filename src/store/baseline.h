// The tensors of the last published version, which the next one is compared with.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/cancel.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "delta/changed_lines.h"
#include "store/delta_reader.h"
#include "tensor/view.h"

namespace syncline::store {

// One thread at a time.
class Baseline {
 public:
  virtual ~Baseline() = default;
  // By name. Empty: there is nothing to compare with, and the next version is a full one.
  virtual std::span<const tensor::TensorView> tensors() const = 0;
  // Becomes version `version`, which stands in the store by now and whose tensors are `tensors` (by
  // name). lines[i], if there are any, says where tensor i differs from what is held. After an
  // error what is held is undefined.
  virtual base::Status Advance(std::uint64_t version, std::span<const tensor::TensorView> tensors,
                               std::span<const delta::ChangedLines> lines,
                               base::ThreadPool& pool) = 0;
  // The same, where the bytes of the tensors are not at hand any more, by the files of the version,
  // which builds on what is held. Only for one that holds a copy; others go on by themselves.
  virtual base::Status AdvanceBy(std::uint64_t version, DeltaReader& files,
                                 base::ThreadPool& pool) {
    (void)files;
    return Advance(version, tensors(), {}, pool);
  }
  // Does Advance look at the bytes of `tensors`?
  virtual bool needs_bytes() const { return true; }
  // After a failed Advance: gets version `version` from elsewhere, if it can. False: it cannot, and
  // the next version has to be a full one.
  virtual base::Result<bool> Recover(std::uint64_t version, const base::CancelToken* cancel) {
    (void)version;
    (void)cancel;
    return false;
  }
};

// A copy in memory.
std::unique_ptr<Baseline> MakeMemoryBaseline();
// Views of memory that somebody else keeps and replaces; Advance does nothing, so it is good for one
// version.
std::unique_ptr<Baseline> MakeBorrowedBaseline(std::vector<tensor::TensorView> tensors);
// Nothing is kept: every version is a full one.
std::unique_ptr<Baseline> MakeNoBaseline();

}  // namespace syncline::store
