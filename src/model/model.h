// A model that can be served: its parameters, and its forward pass over a paged key-value cache. No
// tensor types of torch here.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "layout/plan.h"
#include "layout/shard.h"
#include "model/batch.h"
#include "model/config.h"
#include "model/parameters.h"
#include "quant/config.h"
#include "quant/units.h"
#include "tensor/dtype.h"

namespace syncline::model {

// One thread at a time, the engine's, apart from config(), plan() and what Parameters says of
// itself.
class Model {
 public:
  virtual ~Model() = default;

  virtual const ModelConfig& config() const = 0;
  virtual const layout::Plan& plan() const = 0;
  virtual Parameters& parameters() = 0;
  // Of quantised weights; none in a model that has none.
  virtual const quant::Units& units() const {
    static const quant::Units none;
    return none;
  }

  // Bytes of keys and values of one token.
  virtual std::uint64_t KvBytesPerToken() const = 0;
  // Memory for `blocks` blocks of kKvBlock tokens; replaces what was there. 0 gives it back to the
  // system.
  virtual base::Status ReserveKv(std::uint32_t blocks) = 0;

  // Computes the derived parameters (layout::Plan::IsDerived) from the others, whose units are in
  // their runtime layout, in slots like those of parameters(): the live ones or the staging ones.
  // While they are the live ones, no forward may run.
  virtual base::Status Derive(std::span<const base::MutableByteSpan> memory) = 0;

  // Writes the keys and values of all rows, and logits[i * vocabulary + t] for row
  // batch.logits_rows[i] and token t, natural units as fp32. Tokens must be below the vocabulary's
  // size, blocks below what was reserved. kInternal or kLimitExceeded (memory) with the library's
  // message; the step can then be repeated. With several ranks all must make the same call; only rank
  // 0 gets logits.
  virtual base::Status Forward(const Batch& batch, std::span<float> logits) = 0;

  // After a Forward that was asked for them (Batch::experts): the experts that each row went to in each
  // layer, best first, [rows, layers, per token]; zeros in layers without a mixture. The same on
  // all ranks. Empty where the model has none.
  virtual std::span<const std::int32_t> chosen_experts() const { return {}; }

  // Time that all steps so far have spent in sums over ranks, waiting included.
  virtual double CollectiveSeconds() const { return 0; }
};

class Collectives;

struct ModelOptions {
  std::uint32_t threads = 0;  // 0: one for each processor
  layout::Shard shard;
  Collectives* collectives = nullptr;  // must outlive the model; null where shard.size is 1
  quant::Fp8Scales fp8_scales = quant::Fp8Scales::kAuto;
  // Types of the checkpoint's tensors. If given, the directory needs no weights and none are read:
  // the parameters stay zero until somebody writes them, runtime layout and derived ones included.
  std::function<tensor::Dtype(std::string_view tensor)> dtype_of;
};

// Can the checkpoint's model be divided so? kInvalidArgument says what cannot. Reads only config.json.
base::Status CheckDivision(base::FileSystem& files, const std::string& directory,
                           const layout::Shard& shard);

// Opens the checkpoint directory and loads this rank's part of its weights.
base::Result<std::unique_ptr<Model>> LoadModel(base::FileSystem& files,
                                               const std::string& directory,
                                               const ModelOptions& options);

}  // namespace syncline::model
