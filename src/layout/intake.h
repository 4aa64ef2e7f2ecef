// Takes the tensors of one update as a trainer sends them: in any order, a few at a time, and says
// what is missing when all should be there.
//
// A tensor goes to its place when it comes, whatever else of a fused parameter has come, so nothing
// depends on how an update is cut into messages.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "layout/plan.h"

namespace syncline::layout {

struct IntakeReport {
  std::uint64_t received = 0;         // tensors
  std::uint64_t written = 0;          // of the model, each counted once
  std::uint64_t skipped = 0;          // that a rule of the plan leaves out
  std::uint64_t unknown = 0;          // that nothing claims: only with Unknown::kCount
  std::uint64_t bytes = 0;            // of those written
  std::vector<std::string> unknowns;  // the first few of their names
};

// Not thread-safe.
class Intake {
 public:
  enum class Unknown { kRefuse, kCount };

  // Both must outlive it. `parameters`: the memory of each, as in Plan::Scatter. What Add refuses
  // leaves them as they were.
  Intake(const Plan& plan, std::span<const base::MutableByteSpan> parameters, Unknown unknown);

  // A whole checkpoint tensor, row-major. Wrapper components of the name (tensor_names.h) are left
  // out. One that comes again replaces what came before.
  //   kNotFound          nothing claims the name (see Plan::Match)
  //   kInvalidArgument   wrong dtype, shape or number of bytes
  //   kAlreadyExists     two names that differ only in wrappers
  //   kChecksumMismatch  a tensor that must equal another (the head of a tied model) does not
  base::Status Add(std::string_view name, tensor::Dtype dtype, tensor::Shape shape,
                   base::ByteSpan bytes);

  // Has every tensor of the model come? kNotFound names those that are missing, with the parameter
  // that waits for them. Makes the padding zero.
  base::Status Finish() const;

  const IntakeReport& report() const { return report_; }

 private:
  const Plan& plan_;
  std::span<const base::MutableByteSpan> parameters_;
  Unknown unknown_;
  std::vector<std::string> names_;  // by tensor, the name under which it came; empty: not yet
  IntakeReport report_;
};

}  // namespace syncline::layout
