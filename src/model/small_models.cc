#include "model/small_models.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <initializer_list>
#include <random>

namespace syncline::model {
namespace {

using Shape = std::vector<std::uint64_t>;

// Draws sizes, and writes down fields and tensors.
class Drawer {
 public:
  Drawer(std::uint32_t seed, tensor::Dtype dtype, bool even)
      : random_(seed), dtype_(dtype), even_(even) {}

  std::uint64_t Draw(std::uint64_t low, std::uint64_t high) {
    return std::uniform_int_distribution<std::uint64_t>(low, high)(random_);
  }
  bool Flip() { return Draw(0, 1) == 1; }
  std::uint64_t Pick(std::initializer_list<std::uint64_t> choices) {
    return choices.begin()[Draw(0, choices.size() - 1)];
  }
  // A size that is divided among ranks.
  std::uint64_t Width(std::uint64_t low, std::uint64_t high) {
    return even_ ? 4 * Draw((low + 3) / 4, high / 4) : Draw(low, high);
  }

  std::uint64_t Field(const char* name, std::uint64_t value) {
    fields_.push_back(fmt::format("\"{}\": {}", name, value));
    return value;
  }
  bool Flag(const char* name, bool value) {
    fields_.push_back(fmt::format("\"{}\": {}", name, value));
    return value;
  }
  void Raw(const std::string& text) { fields_.push_back(text); }

  void Tensor(const std::string& name, Shape shape) {
    tensors_.push_back({name, dtype_, std::move(shape)});
  }
  // With its bias, where there is one.
  void Linear(const std::string& name, std::uint64_t outputs, std::uint64_t inputs,
              bool bias = false) {
    Tensor(name + ".weight", {outputs, inputs});
    if (bias) Tensor(name + ".bias", {outputs});
  }

  SmallModel Finish() {
    return {fmt::format("{{{}}}", fmt::join(fields_, ", ")), std::move(tensors_)};
  }

 private:
  std::mt19937 random_;
  tensor::Dtype dtype_;
  bool even_;
  std::vector<std::string> fields_;
  std::vector<layout::TensorSpec> tensors_;
};

struct Sizes {
  std::uint64_t hidden = 0, intermediate = 0, layers = 0, heads = 0;
};

Sizes DrawSizes(Drawer& drawer, std::string_view architecture) {
  drawer.Raw(fmt::format("\"architectures\": [\"{}\"]", architecture));
  const std::uint64_t vocabulary = drawer.Field("vocab_size", drawer.Draw(40, 300));
  Sizes sizes;
  sizes.hidden = drawer.Field("hidden_size", drawer.Draw(9, 40));
  sizes.intermediate = drawer.Field("intermediate_size", drawer.Width(5, 40));
  sizes.layers = drawer.Field("num_hidden_layers", drawer.Draw(2, 4));
  sizes.heads = drawer.Field("num_attention_heads", drawer.Pick({4, 8}));
  drawer.Field("max_position_embeddings", 512);
  drawer.Tensor("model.embed_tokens.weight", {vocabulary, sizes.hidden});
  drawer.Tensor("model.norm.weight", {sizes.hidden});
  if (!drawer.Flag("tie_word_embeddings", drawer.Flip())) {
    drawer.Tensor("lm_head.weight", {vocabulary, sizes.hidden});
  }
  return sizes;
}

std::string Layer(std::uint64_t layer) { return fmt::format("model.layers.{}.", layer); }

void AddNorms(Drawer& drawer, const Sizes& sizes) {
  for (std::uint64_t i = 0; i < sizes.layers; ++i) {
    drawer.Tensor(Layer(i) + "input_layernorm.weight", {sizes.hidden});
    drawer.Tensor(Layer(i) + "post_attention_layernorm.weight", {sizes.hidden});
  }
}

void AddMlp(Drawer& drawer, const std::string& prefix, const Sizes& sizes, std::uint64_t width,
            bool bias) {
  drawer.Linear(prefix + "gate_proj", width, sizes.hidden, bias);
  drawer.Linear(prefix + "up_proj", width, sizes.hidden, bias);
  drawer.Linear(prefix + "down_proj", sizes.hidden, width, bias);
}

void AddDenseMlps(Drawer& drawer, const Sizes& sizes, bool bias) {
  for (std::uint64_t i = 0; i < sizes.layers; ++i) {
    AddMlp(drawer, Layer(i) + "mlp.", sizes, sizes.intermediate, bias);
  }
}

struct Biases {
  bool qkv = false, o = false;
};

void AddGroupedAttention(Drawer& drawer, const Sizes& sizes, Biases biases, bool norms) {
  const std::uint64_t kv_heads = drawer.Field("num_key_value_heads", drawer.Pick({1, 2, 4}));
  const std::uint64_t head = drawer.Field("head_dim", 2 * drawer.Draw(2, 8));
  for (std::uint64_t i = 0; i < sizes.layers; ++i) {
    const std::string prefix = Layer(i) + "self_attn.";
    drawer.Linear(prefix + "q_proj", sizes.heads * head, sizes.hidden, biases.qkv);
    drawer.Linear(prefix + "k_proj", kv_heads * head, sizes.hidden, biases.qkv);
    drawer.Linear(prefix + "v_proj", kv_heads * head, sizes.hidden, biases.qkv);
    drawer.Linear(prefix + "o_proj", sizes.hidden, sizes.heads * head, biases.o);
    if (!norms) continue;
    drawer.Tensor(prefix + "q_norm.weight", {head});
    drawer.Tensor(prefix + "k_norm.weight", {head});
  }
}

void AddLatentAttention(Drawer& drawer, const Sizes& sizes) {
  const bool bias = drawer.Flag("attention_bias", drawer.Flip());
  const bool has_q_rank = drawer.Flip();
  const std::uint64_t q_rank = drawer.Draw(3, 20);
  if (has_q_rank) {
    drawer.Field("q_lora_rank", q_rank);
  } else {
    drawer.Raw("\"q_lora_rank\": null");
  }
  const std::uint64_t rank = drawer.Field("kv_lora_rank", drawer.Draw(3, 20));
  const std::uint64_t nope = drawer.Field("qk_nope_head_dim", drawer.Draw(1, 12));
  const std::uint64_t rope = drawer.Field("qk_rope_head_dim", 2 * drawer.Draw(1, 6));
  const std::uint64_t value = drawer.Field("v_head_dim", drawer.Draw(1, 12));
  for (std::uint64_t i = 0; i < sizes.layers; ++i) {
    const std::string prefix = Layer(i) + "self_attn.";
    if (has_q_rank) {
      drawer.Linear(prefix + "q_a_proj", q_rank, sizes.hidden, bias);
      drawer.Tensor(prefix + "q_a_layernorm.weight", {q_rank});
      drawer.Linear(prefix + "q_b_proj", sizes.heads * (nope + rope), q_rank);
    } else {
      drawer.Linear(prefix + "q_proj", sizes.heads * (nope + rope), sizes.hidden);
    }
    drawer.Linear(prefix + "kv_a_proj_with_mqa", rank + rope, sizes.hidden, bias);
    drawer.Tensor(prefix + "kv_a_layernorm.weight", {rank});
    drawer.Linear(prefix + "kv_b_proj", sizes.heads * (nope + value), rank);
    drawer.Linear(prefix + "o_proj", sizes.hidden, sizes.heads * value, bias);
  }
}

struct Mixture {
  std::uint64_t experts = 0, width = 0, shared = 0;
  bool correction_bias = false, shared_bias = false;
};

void AddMixture(Drawer& drawer, const std::string& prefix, const Sizes& sizes,
                const Mixture& mixture) {
  drawer.Tensor(prefix + "gate.weight", {mixture.experts, sizes.hidden});
  if (mixture.correction_bias) {
    drawer.Tensor(prefix + "gate.e_score_correction_bias", {mixture.experts});
  }
  for (std::uint64_t e = 0; e < mixture.experts; ++e) {
    AddMlp(drawer, fmt::format("{}experts.{}.", prefix, e), sizes, mixture.width, false);
  }
  if (mixture.shared > 0) {
    AddMlp(drawer, prefix + "shared_experts.", sizes, mixture.shared * mixture.width,
           mixture.shared_bias);
  }
}

void AddLlama(Drawer& drawer, const Sizes& sizes) {
  const bool bias = drawer.Flag("attention_bias", drawer.Flip());
  AddGroupedAttention(drawer, sizes, {bias, bias}, false);
  AddDenseMlps(drawer, sizes, drawer.Flag("mlp_bias", drawer.Flip()));
}

void AddMistral(Drawer& drawer, const Sizes& sizes) {
  drawer.Field("sliding_window", drawer.Draw(1, 60));
  AddGroupedAttention(drawer, sizes, {}, false);
  AddDenseMlps(drawer, sizes, false);
}

void AddQwen(Drawer& drawer, const Sizes& sizes, Biases biases, bool norms) {
  drawer.Flag("use_sliding_window", drawer.Flip());
  drawer.Field("sliding_window", drawer.Draw(1, 60));
  drawer.Field("max_window_layers", drawer.Draw(0, 3));
  AddGroupedAttention(drawer, sizes, biases, norms);
}

void AddQwen3Moe(Drawer& drawer, const Sizes& sizes) {
  AddGroupedAttention(drawer, sizes, {}, true);
  Mixture mixture;
  mixture.experts =
      drawer.Field(drawer.Flip() ? "num_experts" : "num_local_experts", drawer.Pick({2, 4, 8}));
  mixture.width = drawer.Field("moe_intermediate_size", drawer.Width(3, 16));
  drawer.Field("num_experts_per_tok", drawer.Draw(1, 2));
  drawer.Flag("norm_topk_prob", drawer.Flip());
  const std::uint64_t step = drawer.Field("decoder_sparse_step", drawer.Draw(1, 2));
  const std::uint64_t dense = drawer.Draw(0, 5);
  drawer.Raw(fmt::format("\"mlp_only_layers\": [{}]", dense));
  for (std::uint64_t i = 0; i < sizes.layers; ++i) {
    if ((i + 1) % step == 0 && i != dense) {
      AddMixture(drawer, Layer(i) + "mlp.", sizes, mixture);
    } else {
      AddMlp(drawer, Layer(i) + "mlp.", sizes, sizes.intermediate, false);
    }
  }
}

void AddDeepseek(Drawer& drawer, const Sizes& sizes, bool is_v3) {
  AddLatentAttention(drawer, sizes);
  Mixture mixture;
  mixture.experts = drawer.Field("n_routed_experts", drawer.Pick({8, 16}));
  mixture.width = drawer.Field("moe_intermediate_size", drawer.Width(3, 16));
  mixture.shared = drawer.Field("n_shared_experts", drawer.Draw(1, 2));
  mixture.correction_bias = is_v3;
  drawer.Field("num_experts_per_tok", drawer.Draw(1, 4));
  drawer.Field("n_group", 4);
  drawer.Field("topk_group", 2);
  const bool bias = !is_v3 && drawer.Flag("mlp_bias", drawer.Flip());
  mixture.shared_bias = bias;
  if (is_v3) {
    drawer.Flag("rope_interleave", drawer.Flip());
    drawer.Field("num_nextn_predict_layers", drawer.Draw(0, 1));
  } else {
    drawer.Raw(drawer.Flip() ? "\"topk_method\": \"greedy\""
                             : "\"topk_method\": \"group_limited_greedy\"");
  }
  const std::uint64_t dense = drawer.Field("first_k_dense_replace", drawer.Draw(0, 2));
  for (std::uint64_t i = 0; i < sizes.layers; ++i) {
    if (i >= dense) {
      AddMixture(drawer, Layer(i) + "mlp.", sizes, mixture);
    } else {
      AddMlp(drawer, Layer(i) + "mlp.", sizes, sizes.intermediate, bias);
    }
  }
}

bool AddArchitecture(Drawer& drawer, std::string_view architecture, const Sizes& sizes) {
  if (architecture == "LlamaForCausalLM") {
    AddLlama(drawer, sizes);
  } else if (architecture == "MistralForCausalLM") {
    AddMistral(drawer, sizes);
  } else if (architecture == "Qwen2ForCausalLM") {
    AddQwen(drawer, sizes, {.qkv = true}, false);
    AddDenseMlps(drawer, sizes, false);
  } else if (architecture == "Qwen3ForCausalLM") {
    const bool bias = drawer.Flag("attention_bias", drawer.Flip());
    AddQwen(drawer, sizes, {bias, bias}, true);
    AddDenseMlps(drawer, sizes, false);
  } else if (architecture == "Qwen3MoeForCausalLM") {
    AddQwen3Moe(drawer, sizes);
  } else if (architecture == "DeepseekV2ForCausalLM") {
    AddDeepseek(drawer, sizes, false);
  } else if (architecture == "DeepseekV3ForCausalLM") {
    AddDeepseek(drawer, sizes, true);
  } else {
    return false;
  }
  return true;
}

}  // namespace

SmallModel MakeSmallModel(std::string_view architecture, std::uint32_t seed, tensor::Dtype dtype,
                          bool even) {
  Drawer drawer(seed, dtype, even);
  const Sizes sizes = DrawSizes(drawer, architecture);
  AddNorms(drawer, sizes);
  if (!AddArchitecture(drawer, architecture, sizes)) return {};
  return drawer.Finish();
}

}  // namespace syncline::model
