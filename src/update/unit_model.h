// A model without a forward pass whose parameters are of every kind that an update meets, for tests:
//
//   a, b, c          bf16, stacked in "abc", which ends in padding
//   plain            f32, alone
//   tied             alias "twin"
//   q, k             one unit, scheme UE8M0; "absorbed" is derived from its values
//   g, u             one unit of three experts, scheme UE8M0
//   w                one unit, fp8 with fp32 scales
//   m, n             one unit of 4-bit integers, in Marlin's layout
//   x                one unit of two experts of them
//   buffers.*        skipped
#pragma once

#include <map>
#include <random>
#include <string>
#include <vector>

#include "model/model.h"

namespace syncline::update {

class UnitModel : public model::Model {
 public:
  // `prefix` of all names, so that two models can have different ones.
  explicit UnitModel(const std::string& prefix = "");

  const model::ModelConfig& config() const override { return config_; }
  const layout::Plan& plan() const override { return plan_; }
  model::Parameters& parameters() override { return *parameters_; }
  const quant::Units& units() const override { return units_; }
  std::uint64_t KvBytesPerToken() const override { return 4; }
  base::Status ReserveKv(std::uint32_t) override { return {}; }
  base::Status Derive(std::span<const base::MutableByteSpan> memory) override;
  base::Status Forward(const model::Batch&, std::span<float> logits) override;

  // Bytes of every checkpoint tensor.
  using Weights = std::vector<std::vector<std::byte>>;
  Weights RandomWeights(std::uint64_t seed) const;
  // A cold load.
  void Load(const Weights& weights);
  // The load layout of what is live, by tensor.
  Weights Exported();
  // All live bytes, and the addresses of all slots.
  std::vector<std::vector<std::byte>> State();
  std::vector<const std::byte*> Addresses();

 private:
  model::ModelConfig config_;
  layout::Plan plan_;
  quant::Units units_;
  std::optional<model::Parameters> parameters_;
  std::size_t absorbed_ = 0;
};

}  // namespace syncline::update
