#include "orders/world.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/json.h"
#include "checkpoint/writer.h"
#include "model/architecture.h"
#include "model/small_models.h"
#include "model/small_units.h"
#include "store/publisher.h"
#include "tensor/digest.h"

namespace syncline::orders {

using base::FileSystem;
using base::Result;
using base::Status;
using tensor::Dtype;
using tensor::TensorView;

namespace {

// One block of scales in most matrices, and two in some.
constexpr char kFp8Config[] = R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
  "vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
  "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 128,
  "max_position_embeddings": 512, "tie_word_embeddings": false,
  "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128],
                          "activation_scheme": "dynamic"}})";

// The first of random sizes that has what is asked for.
std::string SmallConfig(std::string_view architecture, std::string_view feature) {
  for (std::uint32_t seed = 1;; ++seed) {
    const auto small = model::MakeSmallModel(architecture, seed, Dtype::kBF16, /*even=*/true);
    if (small.config.find(feature) != std::string::npos) return small.config;
  }
}

std::string ConfigOf(std::string_view model) {
  if (model == "dense") {
    return SmallConfig("LlamaForCausalLM", R"("tie_word_embeddings": false)");
  }
  if (model == "tied") return SmallConfig("Qwen3ForCausalLM", R"("tie_word_embeddings": true)");
  if (model == "mixture") return SmallConfig("Qwen3MoeForCausalLM", R"("decoder_sparse_step": 1)");
  if (model == "latent") return SmallConfig("DeepseekV3ForCausalLM", R"("first_k_dense)");
  std::string config = kFp8Config;
  if (model == "packed") config.insert(config.rfind("}}"), R"(, "scale_fmt": "ue8m0")");
  return config;
}

// Scales become powers of two, which their packed form holds exactly.
void MakePowersOfTwo(base::MutableByteSpan scales) {
  for (std::size_t i = 0; i + 4 <= scales.size(); i += 4) {
    const auto bits = base::Load<std::uint32_t>(scales.data() + i);
    base::Store(scales.data() + i, bits & 0x7f800000U);
  }
}

// With another field at its end.
std::string Extended(std::string config, std::string_view field) {
  config.insert(config.rfind('}'), fmt::format(", {}", field));
  return config;
}

Status WriteDirectory(const std::string& directory, const std::string& config,
                      std::span<const TensorView> tensors) {
  base::ThreadPool pool(1);
  base::Progress progress;
  SYNCLINE_TRY(FileSystem::Posix().MakeDirectories(directory));
  SYNCLINE_TRY(WriteTextAtomically(FileSystem::Posix(), base::JoinPath(directory, "config.json"),
                                   config, false));
  return checkpoint::WriteCheckpoint(FileSystem::Posix(), directory, tensors, {.durable = false},
                                     pool, progress, nullptr);
}

}  // namespace

Result<std::unique_ptr<World>> World::Make(std::string_view model) {
  std::unique_ptr<World> world(new World(model));
  const std::string config = ConfigOf(model);
  SYNCLINE_TRY(world->MakeVersions(config));
  SYNCLINE_TRY(world->LoadVersions());
  world->MakeGroups();
  SYNCLINE_TRY(world->MakeBroken(config));
  SYNCLINE_TRY(world->MakeStore());
  return world;
}

TensorView World::View(std::size_t tensor, std::size_t version) const {
  const layout::TensorSpec& spec = specs_[tensor];
  return {spec.name, spec.dtype, spec.shape, versions_[version][tensor]};
}

std::vector<TensorView> World::Views(std::size_t version) const {
  std::vector<TensorView> views;
  for (std::size_t i = 0; i < specs_.size(); ++i) views.push_back(View(i, version));
  return views;
}

Status World::MakeVersions(const std::string& config) {
  SYNCLINE_ASSIGN(const base::Json json, base::ParseJson(config));
  SYNCLINE_ASSIGN(const model::ModelConfig parsed, model::ParseModelConfig(json));
  SYNCLINE_ASSIGN(const model::DecoderPlan plan,
                  model::PlanModel(parsed, {}, [](std::string_view) { return Dtype::kBF16; }));
  specs_ = plan.plan.tensors();
  std::uint32_t seed = 0;
  for (std::size_t version = 0; version < kVersions; ++version) {
    Bytes& bytes = versions_.emplace_back();
    std::vector<std::string>& digests = digests_.emplace_back();
    for (const layout::TensorSpec& spec : specs_) {
      bytes.emplace_back(spec.bytes());
      const bool scale = spec.name.find("scale") != std::string::npos;
      model::FillRandom(spec.dtype, scale, ++seed, bytes.back());
      if (scale) MakePowersOfTwo(bytes.back());
      digests.push_back(tensor::DigestOf(bytes.back(), tensor::DigestUnitBytes(spec.dtype)).Hex());
    }
    SYNCLINE_TRY(WriteVersion(version, config));
  }
  return {};
}

Status World::WriteVersion(std::size_t version, const std::string& config) {
  directories_.push_back(directory_ / fmt::format("v{}", version));
  return WriteDirectory(directories_.back(), config, Views(version));
}

Status World::LoadVersions() {
  for (const std::string& directory : directories_) {
    SYNCLINE_ASSIGN(auto loaded, model::LoadModel(FileSystem::Posix(), directory, {.threads = 1}));
    Bytes& live = live_.emplace_back();
    for (const base::MutableByteSpan slot : loaded->parameters().live()) {
      live.emplace_back(slot.begin(), slot.end());
    }
    if (model_ == nullptr) model_ = std::move(loaded);
  }
  aliased_ = plan().FindAlias("lm_head.weight");
  if (aliased_ != layout::Plan::npos) alias_ = "lm_head.weight";
  return {};
}

void World::MakeGroups() {
  const auto live = model_->parameters().live();
  std::vector<std::size_t> of_parameter(live.size(), layout::Plan::npos);
  for (std::size_t i = 0; i < live.size(); ++i) {
    if (of_parameter[i] != layout::Plan::npos) continue;
    const std::size_t unit = model_->units().UnitOf(i);
    Group group;
    group.quantised = unit != quant::Units::npos;
    group.parameters =
        group.quantised ? model_->units().units()[unit].parameters : std::vector<std::size_t>{i};
    group.derived = plan().IsDerived(i);
    for (const std::size_t parameter : group.parameters) {
      of_parameter[parameter] = groups_.size();
      group.bytes += live[parameter].size();
    }
    bytes_ += group.bytes;
    groups_.push_back(std::move(group));
  }
  for (std::size_t i = 0; i < tensors(); ++i) {
    group_of_.push_back(of_parameter[plan().PiecesOf(i).front().parameter]);
    groups_[group_of_.back()].tensors.push_back(i);
  }
}

Status World::WriteBroken(std::string_view name, const std::string& config,
                          const std::vector<TensorView>& tensors, bool late) {
  broken_.push_back({directory_ / name, late});
  return WriteDirectory(broken_.back().path, config, tensors);
}

Status World::MakeBroken(const std::string& config) {
  broken_.push_back({directory_ / "missing"});
  std::vector<TensorView> tensors = Views(1);
  SYNCLINE_TRY(WriteBroken("another", Extended(config, R"("rms_norm_eps": 0.25)"), tensors));
  SYNCLINE_TRY(WriteBroken("truncated", config, tensors));
  const std::string file = base::JoinPath(broken_.back().path, "model.safetensors");
  SYNCLINE_ASSIGN(std::string text, base::ReadText(FileSystem::Posix(), file, 1U << 30));
  text.resize(text.size() - 10);
  SYNCLINE_TRY(WriteTextAtomically(FileSystem::Posix(), file, text, false));
  if (aliased_ != layout::Plan::npos) {
    tensors.push_back(View(aliased_, 2));
    tensors.back().name = alias_;
    SYNCLINE_TRY(WriteBroken("untied", config, tensors, /*late=*/true));
    tensors.pop_back();
  }
  tensors.push_back(tensors.back());
  tensors.back().name = "no.such.weight";
  SYNCLINE_TRY(WriteBroken("unknown", config, tensors));
  tensors.resize(tensors.size() - 2);
  return WriteBroken("incomplete", config, tensors);
}

Status World::MakeStore() {
  store_ = directory_ / "store";
  SYNCLINE_ASSIGN(
      auto publisher,
      store::Publisher::Open(FileSystem::Posix(), store_, store::MakeMemoryBaseline(),
                             /*based_at_zero=*/false,
                             {.companions_from = directories_[0], .durable = false, .threads = 1}));
  base::Progress progress;
  for (std::size_t version = 1; version < kVersions; ++version) {
    SYNCLINE_TRY(publisher.Publish(version, Views(version), /*full=*/version == 1, progress));
  }
  return {};
}

}  // namespace syncline::orders
