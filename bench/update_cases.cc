#include "update_cases.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

#include "base/file.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/writer.h"
#include "layout/pieces.h"
#include "layout/shard_planner.h"

namespace syncline::bench {
namespace {

using base::Result;
using base::Status;
using tensor::Dtype;

constexpr std::uint64_t kLayers = 24;
constexpr std::uint64_t kHidden = 1024;
constexpr std::uint64_t kKeyRows = 256;
constexpr std::uint64_t kWide = 2816;
constexpr std::uint64_t kVocabulary = 16000;

constexpr std::uint64_t kExpertLayers = 48;
constexpr std::uint64_t kExperts = 125;
constexpr std::uint64_t kExpertHidden = 64;
constexpr std::uint64_t kExpertWidth = 80;

layout::ShardPlanner Planner() {
  return {layout::Shard{}, [](std::string_view) { return Dtype::kBF16; }};
}

// The bytes of a message, with the tensors' places in it. `random` goes on through all messages.
Result<std::vector<std::byte>> MakeMessage(std::vector<checkpoint::TensorSpec> specs,
                                           std::mt19937_64& random, const layout::Plan& plan,
                                           std::vector<base::ByteSpan>& places) {
  SYNCLINE_ASSIGN(const checkpoint::SafetensorsLayout layout,
                  checkpoint::LayOutSafetensors(std::move(specs), {}));
  std::vector<std::byte> message(layout.header.file_bytes);
  std::memcpy(message.data(), layout.head.data(), layout.head.size());
  // Random starts of a fast sequence: the values only have to differ.
  for (std::size_t at = layout.head.size(); at + 8 <= message.size();) {
    std::uint64_t word = random();
    const std::size_t end = std::min(message.size(), at + (64 << 10));
    for (; at + 8 <= end; at += 8) {
      word = word * 0x9e3779b97f4a7c15 + 1;
      std::memcpy(message.data() + at, &word, 8);
    }
  }
  for (const checkpoint::TensorInfo& info : layout.header.tensors) {
    places[plan.FindTensor(info.name)] = base::ByteSpan(message).subspan(info.offset, info.bytes);
  }
  return message;
}

// The head with 8 spaces more, so that the data begins 8 bytes after a multiple of 64.
std::string ShiftedHead(std::string head) {
  head += std::string(8, ' ');
  base::Store(reinterpret_cast<std::byte*>(head.data()), std::uint64_t{head.size() - 8});
  return head;
}

Status WriteShifted(const layout::Plan& plan, const Weights& weights, const std::string& path) {
  std::vector<checkpoint::TensorSpec> specs;
  for (const layout::TensorSpec& tensor : plan.tensors()) {
    specs.push_back({tensor.name, tensor.dtype, tensor.shape});
  }
  SYNCLINE_ASSIGN(const checkpoint::SafetensorsLayout layout,
                  checkpoint::LayOutSafetensors(std::move(specs), {}, checkpoint::kLoadAlignment));
  const std::string head = ShiftedHead(layout.head);
  SYNCLINE_ASSIGN(const auto file, base::FileSystem::Posix().Open(path, base::OpenMode::kCreate));
  SYNCLINE_TRY(file->WriteAt(base::AsBytes(head), 0));
  for (const checkpoint::TensorInfo& info : layout.header.tensors) {
    const base::ByteSpan bytes = weights.tensors[plan.FindTensor(info.name)];
    SYNCLINE_TRY(file->WriteAt(bytes, info.offset + head.size() - layout.head.size()));
  }
  return file->Sync();
}

}  // namespace

BareModel::BareModel(layout::Plan plan, model::Parameters parameters)
    : plan_(std::move(plan)), parameters_(std::move(parameters)) {
  config_.vocabulary = 8;
  config_.max_positions = 64;
}

Result<BareModel> BareModel::Create(layout::Plan plan) {
  SYNCLINE_ASSIGN(model::Parameters parameters, model::Parameters::Create(plan));
  return BareModel(std::move(plan), std::move(parameters));
}

Status BareModel::Forward(const model::Batch&, std::span<float> logits) {
  std::ranges::fill(logits, 1.0F);
  return {};
}

Result<layout::Plan> LlamaPlan() {
  layout::ShardPlanner planner = Planner();
  planner.Vocabulary("model.embed_tokens.weight", kVocabulary, kHidden);
  for (std::uint64_t i = 0; i < kLayers; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i);
    const std::string attention = layer + "self_attn.";
    planner.Replicated(layer + "input_layernorm.weight", {kHidden});
    planner.Columns(attention + "qkv_proj.weight",
                    {{.tensor = attention + "q_proj.weight", .units = kHidden},
                     {.tensor = attention + "k_proj.weight", .units = kKeyRows},
                     {.tensor = attention + "v_proj.weight", .units = kKeyRows}},
                    {kHidden});
    planner.Rows(attention + "o_proj.weight", kHidden, kHidden);
    planner.Replicated(layer + "post_attention_layernorm.weight", {kHidden});
    planner.Columns(layer + "mlp.gate_up_proj.weight",
                    {{.tensor = layer + "mlp.gate_proj.weight", .units = kWide},
                     {.tensor = layer + "mlp.up_proj.weight", .units = kWide}},
                    {kHidden});
    planner.Rows(layer + "mlp.down_proj.weight", kHidden, kWide);
  }
  planner.Replicated("model.norm.weight", {kHidden});
  planner.Vocabulary("lm_head.weight", kVocabulary, kHidden);
  return std::move(planner).Build();
}

Result<layout::Plan> ExpertsPlan(bool apart) {
  layout::ShardPlanner planner = Planner();
  for (std::uint64_t layer = 0; layer < kExpertLayers; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.mlp.experts.", layer);
    if (!apart) {
      planner.Experts(prefix, kExperts, kExpertWidth, kExpertHidden);
      continue;
    }
    for (std::uint64_t expert = 0; expert < kExperts; ++expert) {
      const std::string name = fmt::format("{}{}.", prefix, expert);
      planner.Replicated(name + "gate_proj.weight", {kExpertWidth, kExpertHidden});
      planner.Replicated(name + "up_proj.weight", {kExpertWidth, kExpertHidden});
      planner.Replicated(name + "down_proj.weight", {kExpertHidden, kExpertWidth});
    }
  }
  return std::move(planner).Build();
}

Result<Weights> MakeWeights(const layout::Plan& plan, std::uint64_t seed,
                            std::uint64_t message_bytes, std::size_t message_tensors) {
  std::mt19937_64 random(seed);
  Weights weights;
  weights.tensors.resize(plan.tensors().size());
  std::vector<checkpoint::TensorSpec> specs;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < plan.tensors().size(); ++i) {
    const layout::TensorSpec& tensor = plan.tensors()[i];
    specs.push_back({tensor.name, tensor.dtype, tensor.shape});
    bytes += tensor.bytes();
    weights.bytes += tensor.bytes();
    const bool last = i + 1 == plan.tensors().size();
    if (!last && bytes < message_bytes && specs.size() < message_tensors) continue;
    SYNCLINE_ASSIGN(std::vector<std::byte> message,
                    MakeMessage(std::exchange(specs, {}), random, plan, weights.tensors));
    weights.messages.push_back(std::move(message));
    bytes = 0;
  }
  return weights;
}

Status WriteCheckpoint(const layout::Plan& plan, const Weights& weights,
                       const std::string& directory, bool aligned) {
  base::FileSystem& files = base::FileSystem::Posix();
  SYNCLINE_TRY(files.MakeDirectories(directory));
  if (!aligned) return WriteShifted(plan, weights, base::JoinPath(directory, "model.safetensors"));
  std::vector<tensor::TensorView> views;
  for (const layout::TensorSpec& tensor : plan.tensors()) {
    views.push_back({tensor.name, tensor.dtype, tensor.shape, weights.tensors[views.size()]});
  }
  base::ThreadPool pool;
  base::Progress progress;
  return checkpoint::WriteCheckpoint(files, directory, views, {}, pool, progress, nullptr);
}

Status CheckLive(BareModel& model, const Weights& weights) {
  const auto live = model.parameters().live();
  const std::vector<base::ByteSpan> views(live.begin(), live.end());
  for (std::size_t i = 0; i < weights.tensors.size(); ++i) {
    if (layout::HoldsBytes(model.plan(), i, weights.tensors[i], views)) continue;
    return base::Fail(base::Code::kChecksumMismatch, fmt::format("tensor {} is not what was sent",
                                                                 model.plan().tensors()[i].name));
  }
  return {};
}

}  // namespace syncline::bench
