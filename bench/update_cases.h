// What the bench lines of updates are measured on: models that hold weights and compute nothing,
// and two versions of those weights, in messages and as checkpoints.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "model/model.h"

namespace syncline::bench {

class BareModel final : public model::Model {
 public:
  static base::Result<BareModel> Create(layout::Plan plan);

  const model::ModelConfig& config() const override { return config_; }
  const layout::Plan& plan() const override { return plan_; }
  model::Parameters& parameters() override { return parameters_; }
  std::uint64_t KvBytesPerToken() const override { return 4; }
  base::Status ReserveKv(std::uint32_t) override { return {}; }
  base::Status Derive(std::span<const base::MutableByteSpan>) override { return {}; }
  base::Status Forward(const model::Batch&, std::span<float> logits) override;

 private:
  BareModel(layout::Plan plan, model::Parameters parameters);

  model::ModelConfig config_;
  layout::Plan plan_;
  model::Parameters parameters_;
};

// A Llama of 24 layers in bf16 on one rank, about 0.6 GB: 219 tensors in 147 parameters.
base::Result<layout::Plan> LlamaPlan();
// 48 layers of 125 experts, three matrices of 10 KiB each, in two parameters a layer; with `apart`
// each matrix is a parameter of its own.
base::Result<layout::Plan> ExpertsPlan(bool apart);

// One version of all tensors of a plan.
struct Weights {
  // Safetensors files with the tensors in the order of the plan.
  std::vector<std::vector<std::byte>> messages;
  // By tensor, in the messages.
  std::vector<base::ByteSpan> tensors;
  std::uint64_t bytes = 0;  // of the tensors
};

// Random bytes. A message is ended once it has `message_bytes` or `message_tensors`.
base::Result<Weights> MakeWeights(const layout::Plan& plan, std::uint64_t seed,
                                  std::uint64_t message_bytes, std::size_t message_tensors);

// As a checkpoint in that directory, which is made, on the device when this returns. Not `aligned`:
// the data begins 8 bytes after a multiple of 64, as most often in files that others write.
base::Status WriteCheckpoint(const layout::Plan& plan, const Weights& weights,
                             const std::string& directory, bool aligned);

// kChecksumMismatch names a tensor that is not live with these bytes.
base::Status CheckLive(BareModel& model, const Weights& weights);

}  // namespace syncline::bench
