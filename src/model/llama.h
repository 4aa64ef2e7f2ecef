// The Llama architecture on ATen: grouped-query attention, rotary embedding, RMS norm, SwiGLU.
#pragma once

#include <memory>

#include "base/error.h"
#include "model/llama_plan.h"
#include "model/model.h"
#include "model/parameters.h"

namespace syncline::model {

// The parameters' bytes are those of `llama.plan`; they need not be loaded yet.
base::Result<std::unique_ptr<Model>> MakeLlama(const ModelConfig& config, LlamaPlan llama,
                                               Parameters parameters, const ModelOptions& options);

}  // namespace syncline::model
