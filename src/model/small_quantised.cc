#include "model/small_quantised.h"

#include "model/architecture.h"
#include "quant/fp8_block.h"
#include "quant/wna16_marlin.h"

namespace syncline::model {

std::vector<std::shared_ptr<const quant::Scheme>> AllSchemes() {
  return {quant::Fp8Block(), quant::Fp8BlockUe8m0(), quant::Wna16Marlin(32), quant::Wna16Marlin(0)};
}

namespace {

ModelConfig Grouped() {
  ModelConfig config;
  config.architectures = {"LlamaForCausalLM"};
  config.vocabulary = 96;
  config.hidden = 192;  // not a multiple of an fp8 block
  config.intermediate = 512;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_size = 128;
  config.max_positions = 256;
  config.qkv_bias = config.o_bias = config.mlp_bias = true;
  return config;
}

}  // namespace

std::vector<ModelConfig> QuantisableConfigs() {
  ModelConfig mixture = Grouped();
  mixture.architectures = {"Qwen3MoeForCausalLM"};
  mixture.qkv_bias = mixture.o_bias = mixture.mlp_bias = false;
  mixture.qk_norm = true;
  mixture.experts = {.experts = 4, .per_token = 2, .width = 512};

  ModelConfig latent = Grouped();
  latent.architectures = {"DeepseekV3ForCausalLM"};
  latent.mlp_bias = false;
  latent.kv_heads = 4;
  latent.latent = {
      .q_rank = 192, .kv_rank = 128, .nope_size = 128, .rope_size = 128, .value_size = 128};
  latent.experts = {.experts = 4, .per_token = 2, .width = 512, .shared = 1, .first_dense = 1};
  return {Grouped(), mixture, latent};
}

ModelConfig Quantised(ModelConfig config, std::shared_ptr<const quant::Scheme> scheme) {
  config.quantisation = {.method = "test", .scheme = std::move(scheme), .ignored = {}};
  return config;
}

base::Result<DecoderPlan> PlanBf16(const ModelConfig& config, const layout::Shard& shard) {
  return PlanModel(config, shard, [](std::string_view) { return tensor::Dtype::kBF16; });
}

std::vector<std::vector<std::byte>> RandomTensors(const layout::Plan& plan, std::uint32_t seed) {
  std::vector<std::vector<std::byte>> tensors;
  for (const layout::TensorSpec& spec : plan.tensors()) {
    auto& bytes = tensors.emplace_back(spec.bytes());
    FillRandom(spec.dtype, spec.name.find("scale") != std::string::npos, ++seed, bytes);
  }
  return tensors;
}

std::string PlainName(const quant::Unit& unit) {
  return unit.module + (unit.matrix.experts > 0 ? "_weight" : ".weight");
}

std::vector<std::byte> ValuesOf(const quant::Unit& unit, const std::vector<base::ByteSpan>& slots,
                                quant::Layout layout) {
  const quant::Matrix& matrix = unit.matrix;
  std::vector<std::uint16_t> values(matrix.rows() * matrix.columns);
  std::vector<std::byte> all;
  for (std::uint64_t i = 0; i < matrix.count(); ++i) {
    unit.scheme->Dequantise(matrix, slots, layout, i, 0, matrix.rows(), values.data());
    const auto bytes = std::as_bytes(std::span(values));
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

std::vector<base::ByteSpan> Views(std::span<const base::MutableByteSpan> memory) {
  return {memory.begin(), memory.end()};
}

}  // namespace syncline::model
