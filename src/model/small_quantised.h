// For tests: small models with quantised weights, and the same models with those values in bf16.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/decoder_plan.h"
#include "model/model.h"
#include "model/small_units.h"

namespace syncline::model {

// "fp8-block", "fp8-block-ue8m0", and 4-bit integers with a scale for 32 columns and for all.
std::vector<std::shared_ptr<const quant::Scheme>> AllSchemes();

// A grouped-query model without and with a mixture of experts, and one with latent attention and
// shared experts; of sizes that every scheme can hold, and that four ranks can share.
std::vector<ModelConfig> QuantisableConfigs();

ModelConfig Quantised(ModelConfig config, std::shared_ptr<const quant::Scheme> scheme);

// In bf16, but for what is quantised.
base::Result<DecoderPlan> PlanBf16(const ModelConfig& config, const layout::Shard& shard);

// Random bytes for all tensors of the checkpoint, in the order of the plan's.
std::vector<std::vector<std::byte>> RandomTensors(const layout::Plan& plan, std::uint32_t seed);

// The parameter that a unit is in a plan without quantisation.
std::string PlainName(const quant::Unit& unit);

// The values of a unit, all matrices one after the other, as bytes.
std::vector<std::byte> ValuesOf(const quant::Unit& unit, const std::vector<base::ByteSpan>& slots,
                                quant::Layout layout);

// The memory of parameters, for readers.
std::vector<base::ByteSpan> Views(std::span<const base::MutableByteSpan> memory);

}  // namespace syncline::model
