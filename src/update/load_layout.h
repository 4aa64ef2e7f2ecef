// The live parameters of a runner in their load layout, to be read by checkpoint tensors: a quantised
// unit is restored beside the live one when one of its tensors is asked for.
#pragma once

#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/thread_pool.h"
#include "quant/units.h"

namespace syncline::model {
class Model;
}

namespace syncline::update {

// Not thread-safe. The live weights must not change meanwhile. Holds the copy of one unit at a time.
class LoadLayout {
 public:
  // Both must outlive it.
  LoadLayout(model::Model& model, base::ThreadPool& pool);

  // Views of all parameters, of which those of the tensor are good until the next call.
  std::span<const base::ByteSpan> Of(std::size_t tensor);

 private:
  model::Model& model_;
  base::ThreadPool& pool_;
  std::vector<base::ByteSpan> views_;
  std::size_t unit_ = quant::Units::npos;
  std::vector<std::vector<std::byte>> restored_;  // of unit_
};

}  // namespace syncline::update
