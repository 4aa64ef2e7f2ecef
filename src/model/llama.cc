#include "model/llama.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/sin.h>
#include <c10/core/InferenceMode.h>
#include <fmt/core.h>

#include <algorithm>
#include <exception>
#include <numeric>

#include "model/attention.h"
#include "model/linear.h"
#include "model/ops.h"

namespace syncline::model {
namespace {

using base::Code;

base::Result<at::ScalarType> ScalarTypeOf(tensor::Dtype dtype) {
  switch (dtype) {
    case tensor::Dtype::kBF16:
      return at::kBFloat16;
    case tensor::Dtype::kF16:
      return at::kHalf;
    case tensor::Dtype::kF32:
      return at::kFloat;
    default:
      return base::Fail(Code::kIncompatible,
                        fmt::format("weights of type {} are not served; BF16, F16 and F32 are",
                                    tensor::Name(dtype)));
  }
}

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
  at::Tensor input_norm, qkv, qkv_bias, o, o_bias, post_norm, gate_up, gate_up_bias, down,
      down_bias;
};

class Llama : public Model {
 public:
  Llama(const ModelConfig& config, LlamaPlan llama, Parameters parameters, at::ScalarType type)
      : config_(config),
        llama_(std::move(llama)),
        parameters_(std::move(parameters)),
        type_(type),
        sizes_{config.heads, config.kv_heads, config.head_size} {
    MakeTensors();
    MakeRotaryTables();
  }

  const ModelConfig& config() const override { return config_; }
  const layout::Plan& plan() const override { return llama_.plan; }
  Parameters& parameters() override { return parameters_; }

  std::uint64_t KvBytesPerToken() const override {
    return 2 * c10::elementSize(type_) * config_.layers * config_.kv_heads * config_.head_size;
  }

  base::Status ReserveKv(std::uint32_t blocks) override;
  base::Status Forward(const Batch& batch, std::span<float> logits) override;

 private:
  at::Tensor ParameterTensor(std::size_t index) const;
  void MakeTensors();
  void MakeRotaryTables();
  at::Tensor Mlp(const Layer& layer, const at::Tensor& x) const;
  at::Tensor Run(const Batch& batch) const;

  ModelConfig config_;
  LlamaPlan llama_;
  Parameters parameters_;
  at::ScalarType type_;
  AttentionSizes sizes_;
  at::Tensor embedding_, final_norm_, head_;
  std::vector<Layer> layers_;
  RotaryTables rotary_;
  std::vector<KvLayer> kv_;
};

// A tensor over the parameter's bytes in the arena; undefined for one that the model has not.
at::Tensor Llama::ParameterTensor(std::size_t index) const {
  if (index == layout::Plan::npos) return {};
  const layout::TensorSpec& parameter = plan().parameters()[index];
  const std::vector<std::int64_t> shape(parameter.shape.begin(), parameter.shape.end());
  return at::from_blob(parameters_.live()[index].data(), shape, type_);
}

void Llama::MakeTensors() {
  embedding_ = ParameterTensor(llama_.embedding);
  final_norm_ = ParameterTensor(llama_.final_norm);
  head_ = ParameterTensor(llama_.head);
  for (const LlamaLayerParameters& from : llama_.layers) {
    layers_.push_back({.input_norm = ParameterTensor(from.input_norm),
                       .qkv = ParameterTensor(from.qkv),
                       .qkv_bias = ParameterTensor(from.qkv_bias),
                       .o = ParameterTensor(from.o),
                       .o_bias = ParameterTensor(from.o_bias),
                       .post_norm = ParameterTensor(from.post_norm),
                       .gate_up = ParameterTensor(from.gate_up),
                       .gate_up_bias = ParameterTensor(from.gate_up_bias),
                       .down = ParameterTensor(from.down),
                       .down_bias = ParameterTensor(from.down_bias)});
  }
}

void Llama::MakeRotaryTables() {
  std::vector<float> frequencies = InverseFrequencies(config_.rope, config_.head_size);
  const at::Tensor angles =
      at::outer(at::arange(std::int64_t{config_.max_positions}, at::kFloat),
                at::from_blob(frequencies.data(), {static_cast<std::int64_t>(frequencies.size())},
                              at::kFloat));
  rotary_ = {.cosine = at::cos(angles) * config_.rope.attention_factor,
             .sine = at::sin(angles) * config_.rope.attention_factor};
}

base::Status Llama::ReserveKv(std::uint32_t blocks) {
  try {
    const c10::InferenceMode mode;
    kv_.clear();
    for (std::uint32_t i = 0; i < config_.layers; ++i) {
      const auto make = [&] {
        return at::empty({std::int64_t{blocks} * kKvBlock, sizes_.kv_heads, sizes_.head_size},
                         type_);
      };
      kv_.push_back({.keys = make(), .values = make()});
    }
    return {};
  } catch (const std::exception& error) {
    kv_.clear();
    return base::Fail(
        Code::kLimitExceeded,
        fmt::format("key-value cache of {}: {}",
                    base::HumanBytes(std::uint64_t{blocks} * kKvBlock * KvBytesPerToken()),
                    error.what()));
  }
}

at::Tensor Llama::Mlp(const Layer& layer, const at::Tensor& x) const {
  const at::Tensor gate_up = Linear(x, layer.gate_up, layer.gate_up_bias);
  return Linear(SiluAndMultiply(gate_up), layer.down, layer.down_bias);
}

// The last norm of the rows whose logits are wanted: [rows wanted, hidden].
at::Tensor Llama::Run(const Batch& batch) const {
  AttentionStep step(batch, sizes_, rotary_, embedding_.options());
  // The residual stream is kept in fp32: adding up 2 · layers terms in bf16 costs accuracy.
  at::Tensor x = at::embedding(embedding_, View(batch.tokens, at::kInt)).to(at::kFloat);
  at::Tensor add;  // what the layer before adds to x
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    const at::Tensor normed = AddAndNorm(x, add, layer.input_norm, config_.rms_norm_epsilon);
    at::Tensor mixed = step.Attend(Linear(normed, layer.qkv, layer.qkv_bias), kv_[i]);
    // Other rows are needed no further than for their keys and values.
    if (i + 1 == layers_.size() && !WantsAllRows(batch)) {
      const at::Tensor rows = View(batch.logits_rows, at::kInt);
      x = at::index_select(x, 0, rows);
      mixed = at::index_select(mixed, 0, rows);
    }
    add = Linear(mixed, layer.o, layer.o_bias);
    add = Mlp(layer, AddAndNorm(x, add, layer.post_norm, config_.rms_norm_epsilon));
  }
  return AddAndNorm(x, add, final_norm_, config_.rms_norm_epsilon);
}

base::Status Llama::Forward(const Batch& batch, std::span<float> logits) {
  try {
    const c10::InferenceMode mode;
    LinearToFloat(Run(batch), head_, logits);
    return {};
  } catch (const std::bad_alloc&) {
    return base::Fail(Code::kLimitExceeded, "a forward pass ran out of memory");
  } catch (const std::exception& error) {
    return base::Fail(Code::kInternal, fmt::format("a forward pass failed: {}", error.what()));
  }
}

}  // namespace

base::Result<std::unique_ptr<Model>> MakeLlama(const ModelConfig& config, LlamaPlan llama,
                                               Parameters parameters, const ModelOptions& options) {
  SYNCLINE_ASSIGN(const at::ScalarType type,
                  ScalarTypeOf(llama.plan.parameters()[llama.embedding].dtype));
  try {
    const c10::InferenceMode mode;
    if (options.threads > 0) at::set_num_threads(static_cast<int>(options.threads));
    return std::make_unique<Llama>(config, std::move(llama), std::move(parameters), type);
  } catch (const std::exception& error) {
    return base::Fail(Code::kInternal, fmt::format("cannot make the model: {}", error.what()));
  }
}

}  // namespace syncline::model
