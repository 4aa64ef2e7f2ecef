// A decoder-only transformer on ATen, put together from the blocks that its plan names.
#pragma once

#include <memory>

#include "base/error.h"
#include "model/decoder_plan.h"
#include "model/model.h"
#include "model/parameters.h"

namespace syncline::model {

// The parameters are those of `decoder.plan` and its units; they need not be loaded yet.
base::Result<std::unique_ptr<Model>> MakeDecoder(const ModelConfig& config, DecoderPlan decoder,
                                                 Parameters parameters,
                                                 const ModelOptions& options);

}  // namespace syncline::model
