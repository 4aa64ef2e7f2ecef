#include <fmt/core.h>

#include "base/log.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "layout/load.h"
#include "model/architecture.h"
#include "model/decoder.h"
#include "model/model.h"
#include "quant/forms.h"

namespace syncline::model {
namespace {

// The types that the weights have. For a tensor that is missing that of the embedding, which every
// model has: what is missing is reported later.
base::Result<layout::ShardPlanner::DtypeOf> TypesOf(const checkpoint::Checkpoint& checkpoint) {
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
    const checkpoint::CheckpointTensor* found = checkpoint.Find(name);
    if (found == nullptr) continue;
    return [&checkpoint, most = found->dtype](std::string_view tensor) {
      const checkpoint::CheckpointTensor* own = checkpoint.Find(tensor);
      return own == nullptr ? most : own->dtype;
    };
  }
  return base::Fail(base::Code::kNotFound,
                    fmt::format("{}: no tensor model.embed_tokens.weight", checkpoint.directory()));
}

base::Result<std::unique_ptr<Model>> MakeEmpty(const ModelConfig& config,
                                               const ModelOptions& options) {
  SYNCLINE_ASSIGN(DecoderPlan decoder, PlanModel(config, options.shard, options.dtype_of));
  SYNCLINE_ASSIGN(Parameters parameters, Parameters::Create(decoder.plan, decoder.units));
  return MakeDecoder(config, std::move(decoder), std::move(parameters), options);
}

}  // namespace

base::Status CheckDivision(base::FileSystem& files, const std::string& directory,
                           const layout::Shard& shard) {
  SYNCLINE_ASSIGN(const ModelConfig config, ReadModelConfig(files, directory));
  SYNCLINE_TRY(PlanModel(config, shard, [](std::string_view) { return tensor::Dtype::kBF16; }));
  return {};
}

base::Result<std::unique_ptr<Model>> LoadModel(base::FileSystem& files,
                                               const std::string& directory,
                                               const ModelOptions& options) {
  SYNCLINE_ASSIGN(const ModelConfig config, ReadModelConfig(files, directory, options.fp8_scales));
  if (options.dtype_of) return MakeEmpty(config, options);
  SYNCLINE_ASSIGN(const auto checkpoint, checkpoint::Checkpoint::Open(files, directory));
  SYNCLINE_ASSIGN(auto dtype_of, TypesOf(checkpoint));
  SYNCLINE_ASSIGN(DecoderPlan decoder, PlanModel(config, options.shard, std::move(dtype_of)));
  const auto forms = quant::MakeForms(decoder.plan, decoder.units);
  SYNCLINE_TRY(layout::CheckNames(checkpoint, decoder.plan, {.forms = forms.get()}));
  SYNCLINE_ASSIGN(Parameters parameters, Parameters::Create(decoder.plan, decoder.units));
  base::ThreadPool pool(options.threads);
  SYNCLINE_TRY(layout::LoadCheckpoint(files, checkpoint, decoder.plan, parameters.live(), pool,
                                      {.forms = forms.get()}));
  decoder.units.ProcessAll(parameters.live(), pool);
  SYNCLINE_ASSIGN(auto model,
                  MakeDecoder(config, std::move(decoder), std::move(parameters), options));
  SYNCLINE_TRY(model->Derive(model->parameters().live()));
  return model;
}

}  // namespace syncline::model
