// One step, on each rank with the same batch:
//   1. the rows' embeddings, of which each rank has those of its part of the vocabulary, are summed;
//   2. each layer adds its attention and its MLP to the residual stream: a rank computes its part
//      of both, and the parts are summed;
//   3. each rank computes the logits of its part of the vocabulary; rank 0 gathers them.
// Invariant: the residual stream has the same bits on all ranks, so all choose the same experts.
#include "model/decoder.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/InferenceMode.h>
#include <fmt/core.h>
#include <malloc.h>

#include <algorithm>
#include <exception>

#include "model/collectives.h"
#include "model/expert_mlp.h"
#include "model/gated_mlp.h"
#include "model/grouped_attention_block.h"
#include "model/latent_attention_block.h"
#include "model/linear.h"
#include "model/ops.h"
#include "model/parameter_tensors.h"

namespace syncline::model {
namespace {

using base::Code;

// A vector of 32-bit numbers seen as a tensor.
template <typename T>
at::Tensor View(const std::vector<T>& values, at::ScalarType type) {
  static_assert(sizeof(T) == sizeof(std::int32_t));
  return at::from_blob(const_cast<T*>(values.data()), {static_cast<std::int64_t>(values.size())},
                       type);
}

bool WantsAllRows(const Batch& batch) {
  if (batch.logits_rows.size() != batch.tokens.size()) return false;
  for (std::size_t i = 0; i < batch.logits_rows.size(); ++i) {
    if (batch.logits_rows[i] != i) return false;
  }
  return true;
}

struct Layer {
  at::Tensor input_norm;
  SummedLinear o;
  at::Tensor post_norm;
  std::unique_ptr<MlpBlock> mlp;
};

// The blocks of one kind, of all layers. Plans have one kind of attention.
template <typename Kind>
std::vector<Kind> AttentionOf(const DecoderPlan& decoder) {
  std::vector<Kind> layers;
  layers.reserve(decoder.layers.size());
  for (const LayerParameters& layer : decoder.layers) {
    layers.push_back(std::get<Kind>(layer.attention));
  }
  return layers;
}

class Decoder : public Model {
 public:
  Decoder(const ModelConfig& config, DecoderPlan decoder, Parameters parameters,
          Collectives* collectives)
      : config_(config),
        decoder_(std::move(decoder)),
        parameters_(std::move(parameters)),
        collectives_(collectives) {
    MakeBlocks();
  }

  const ModelConfig& config() const override { return config_; }
  const layout::Plan& plan() const override { return decoder_.plan; }
  Parameters& parameters() override { return parameters_; }
  const quant::Units& units() const override { return decoder_.units; }

  std::uint64_t KvBytesPerToken() const override { return attention_->CacheBytesPerToken(); }
  base::Status ReserveKv(std::uint32_t blocks) override;
  base::Status Derive(std::span<const base::MutableByteSpan> memory) override;
  base::Status Forward(const Batch& batch, std::span<float> logits) override;
  std::span<const std::int32_t> chosen_experts() const override { return chosen_experts_; }
  double CollectiveSeconds() const override {
    return collectives_ == nullptr ? 0 : collectives_->seconds();
  }

 private:
  void MakeBlocks();
  std::unique_ptr<AttentionBlock> MakeAttention(const ParameterTensors& tensors) const;
  std::unique_ptr<MlpBlock> MakeMlp(const LayerParameters& layer,
                                    const ParameterTensors& tensors) const;
  at::Tensor Sum(at::Tensor part) const;
  at::Tensor Embed(const Batch& batch) const;
  at::Tensor Run(const Batch& batch);
  void KeepExperts(std::size_t layer, const std::vector<std::uint32_t>& chosen);
  void GatherLogits(const at::Tensor& x, std::span<float> logits);

  ModelConfig config_;
  DecoderPlan decoder_;
  Parameters parameters_;
  Collectives* collectives_;  // null: this rank is alone
  at::Tensor embedding_, final_norm_, head_;
  std::vector<Layer> layers_;
  std::unique_ptr<AttentionBlock> attention_;
  std::vector<std::int32_t> chosen_experts_;  // of the last step that was asked for them
};

void Decoder::MakeBlocks() {
  const ParameterTensors tensors(decoder_, parameters_.live());
  embedding_ = tensors[decoder_.embedding];
  final_norm_ = tensors[decoder_.final_norm];
  head_ = tensors[decoder_.head];
  attention_ = MakeAttention(tensors);
  for (const LayerParameters& from : decoder_.layers) {
    layers_.push_back(
        {.input_norm = tensors[from.input_norm],
         .o = SummedLinear(tensors.Matrix(from.o), tensors[from.o.bias], decoder_.shard),
         .post_norm = tensors[from.post_norm],
         .mlp = MakeMlp(from, tensors)});
  }
}

std::unique_ptr<AttentionBlock> Decoder::MakeAttention(const ParameterTensors& tensors) const {
  if (config_.latent) {
    return MakeLatentAttention(config_, decoder_.shard,
                               AttentionOf<LatentAttentionParameters>(decoder_), tensors);
  }
  return MakeGroupedAttention(config_, decoder_.shard,
                              AttentionOf<GroupedAttentionParameters>(decoder_), tensors);
}

std::unique_ptr<MlpBlock> Decoder::MakeMlp(const LayerParameters& layer,
                                           const ParameterTensors& tensors) const {
  if (const auto* experts = std::get_if<ExpertsParameters>(&layer.mlp)) {
    return MakeExpertMlp(*config_.experts, decoder_.shard, *experts, tensors);
  }
  return MakeGatedMlp(decoder_.shard, std::get<GatedMlpParameters>(layer.mlp), tensors);
}

base::Status Decoder::ReserveKv(std::uint32_t blocks) {
  try {
    const c10::InferenceMode mode;
    attention_->Reserve(blocks);
    // What malloc keeps of the cache for later is given back too.
    if (blocks == 0) malloc_trim(0);
    return {};
  } catch (const std::exception& error) {
    return base::Fail(
        Code::kLimitExceeded,
        fmt::format("key-value cache of {}: {}",
                    base::HumanBytes(std::uint64_t{blocks} * kKvBlock * KvBytesPerToken()),
                    error.what()));
  }
}

base::Status Decoder::Derive(std::span<const base::MutableByteSpan> memory) {
  try {
    const c10::InferenceMode mode;
    attention_->Derive(ParameterTensors(decoder_, memory));
    return {};
  } catch (const std::exception& error) {
    return base::Fail(Code::kInternal, fmt::format("derived weights: {}", error.what()));
  }
}

at::Tensor Decoder::Sum(at::Tensor part) const {
  if (collectives_ != nullptr) collectives_->Sum(part);
  return part;
}

at::Tensor Decoder::Embed(const Batch& batch) const {
  const at::Tensor tokens = View(batch.tokens, at::kInt);
  if (collectives_ == nullptr) return at::embedding(embedding_, tokens).to(at::kFloat);
  const std::int64_t share = embedding_.size(0);
  const at::Tensor local = tokens - static_cast<std::int64_t>(decoder_.shard.rank) * share;
  const at::Tensor here = (local >= 0) & (local < share);
  at::Tensor x = at::embedding(embedding_, local.clamp(0, share - 1)).to(at::kFloat);
  // Not multiplied by zero: a weight may be infinite.
  return Sum(at::where(here.unsqueeze(1), x, at::zeros_like(x)));
}

// The last norm of the rows whose logits are wanted: [rows wanted, hidden].
at::Tensor Decoder::Run(const Batch& batch) {
  const std::unique_ptr<AttentionPass> pass = attention_->Begin(batch);
  // The residual stream is kept in fp32: adding up 2 · layers terms in bf16 costs accuracy.
  at::Tensor x = Embed(batch);
  at::Tensor add;  // what the layer before adds to x
  const bool keep = batch.experts && config_.experts.has_value();
  if (keep) {
    chosen_experts_.assign(batch.tokens.size() * layers_.size() * config_.experts->per_token, 0);
  }
  std::vector<std::uint32_t> chosen;
  const auto select = [&](at::Tensor& rows) {
    rows = at::index_select(rows, 0, View(batch.logits_rows, at::kInt));
  };
  const bool all_rows = WantsAllRows(batch);
  const double epsilon = config_.rms_norm_epsilon;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    at::Tensor mixed = pass->Attend(i, AddAndNorm(x, add, layer.input_norm, epsilon));
    // Other rows are needed no further than for their keys and values.
    if (i + 1 == layers_.size() && !all_rows && !keep) {
      select(x);
      select(mixed);
    }
    add = Sum(layer.o.Part(mixed));
    chosen.clear();
    add =
        Sum(layer.mlp->Run(AddAndNorm(x, add, layer.post_norm, epsilon), keep ? &chosen : nullptr));
    KeepExperts(i, chosen);
  }
  if (keep && !all_rows) {
    select(x);
    select(add);
  }
  return AddAndNorm(x, add, final_norm_, epsilon);
}

void Decoder::KeepExperts(std::size_t layer, const std::vector<std::uint32_t>& chosen) {
  if (chosen.empty()) return;  // not wanted, or no mixture
  const std::size_t per_token = config_.experts->per_token;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const std::size_t row = i / per_token;
    chosen_experts_[(row * layers_.size() + layer) * per_token + i % per_token] =
        static_cast<std::int32_t>(chosen[i]);
  }
}

void Decoder::GatherLogits(const at::Tensor& x, std::span<float> logits) {
  const std::int64_t share = head_.size(0);
  const std::vector<at::Tensor> parts = collectives_->Gather(LinearToFloat(x, head_));
  if (parts.empty()) return;  // not on this rank
  const std::int64_t vocabulary = config_.vocabulary;
  const at::Tensor all = at::from_blob(logits.data(), {x.size(0), vocabulary}, at::kFloat);
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    const std::int64_t begin = std::min(static_cast<std::int64_t>(rank) * share, vocabulary);
    const std::int64_t rows = std::min(share, vocabulary - begin);
    all.narrow(1, begin, rows).copy_(parts[rank].narrow(1, 0, rows));
  }
}

base::Status Decoder::Forward(const Batch& batch, std::span<float> logits) {
  try {
    const c10::InferenceMode mode;
    const at::Tensor x = Run(batch);
    if (collectives_ == nullptr) {
      LinearToFloat(x, head_, logits);
    } else {
      GatherLogits(x, logits);
    }
    return {};
  } catch (const std::bad_alloc&) {
    return base::Fail(Code::kLimitExceeded, "a forward pass ran out of memory");
  } catch (const std::exception& error) {
    return base::Fail(Code::kInternal, fmt::format("a forward pass failed: {}", error.what()));
  }
}

}  // namespace

base::Result<std::unique_ptr<Model>> MakeDecoder(const ModelConfig& config, DecoderPlan decoder,
                                                 Parameters parameters,
                                                 const ModelOptions& options) {
  const std::vector<layout::TensorSpec>& specs = decoder.plan.parameters();
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (decoder.units.UnitOf(i) != quant::Units::npos) continue;
    const layout::TensorSpec& parameter = specs[i];
    if (auto known = ScalarTypeOf(parameter.dtype); !known) {
      return base::Annotate(known.error(), parameter.name);
    }
  }
  try {
    const c10::InferenceMode mode;
    if (options.threads > 0) at::set_num_threads(static_cast<int>(options.threads));
    return std::make_unique<Decoder>(config, std::move(decoder), std::move(parameters),
                                     options.collectives);
  } catch (const std::exception& error) {
    return base::Fail(Code::kInternal, fmt::format("cannot make the model: {}", error.what()));
  }
}

}  // namespace syncline::model
