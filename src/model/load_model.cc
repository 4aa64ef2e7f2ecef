#include <fmt/core.h>

#include "base/log.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "layout/load.h"
#include "model/llama.h"
#include "model/model.h"

namespace syncline::model {
namespace {

// The type that the weights have: that of the embedding, which every model has.
base::Result<tensor::Dtype> WeightType(const checkpoint::Checkpoint& checkpoint) {
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
    const checkpoint::CheckpointTensor* tensor = checkpoint.Find(name);
    if (tensor != nullptr) return tensor->dtype;
  }
  return base::Fail(base::Code::kNotFound,
                    fmt::format("{}: no tensor model.embed_tokens.weight", checkpoint.directory()));
}

}  // namespace

base::Result<std::unique_ptr<Model>> LoadModel(base::FileSystem& files,
                                               const std::string& directory,
                                               const ModelOptions& options) {
  SYNCLINE_ASSIGN(const ModelConfig config, ReadModelConfig(files, directory));
  SYNCLINE_ASSIGN(const auto checkpoint, checkpoint::Checkpoint::Open(files, directory));
  SYNCLINE_ASSIGN(const tensor::Dtype dtype, WeightType(checkpoint));
  SYNCLINE_ASSIGN(LlamaPlan llama, PlanLlama(config, dtype));
  SYNCLINE_TRY(layout::CheckNames(checkpoint, llama.plan));
  SYNCLINE_ASSIGN(Parameters parameters, Parameters::Create(llama.plan));
  base::ThreadPool pool(options.threads);
  SYNCLINE_TRY(
      layout::LoadCheckpoint(files, checkpoint, llama.plan, parameters.live(), pool, nullptr));
  return MakeLlama(config, std::move(llama), std::move(parameters), options);
}

}  // namespace syncline::model
