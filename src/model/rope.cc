#include "model/rope.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

#include "model/json_fields.h"

namespace syncline::model {
namespace {

using base::Code;
using base::Json;
using Kind = RopeConfig::Kind;

std::optional<Kind> FindKind(std::string_view name) {
  if (name == "default") return Kind::kDefault;
  if (name == "linear") return Kind::kLinear;
  if (name == "dynamic") return Kind::kDynamic;
  if (name == "llama3") return Kind::kLlama3;
  if (name == "yarn") return Kind::kYarn;
  return std::nullopt;
}

base::Status CheckRange(const RopeConfig& rope) {
  const auto check = [](std::string_view name, double value, bool good) -> base::Status {
    if (good && std::isfinite(value)) return {};
    return base::Fail(Code::kCorrupt,
                      fmt::format("rope: {} is {}, which is out of range", name, value));
  };
  SYNCLINE_TRY(check("rope_theta", rope.theta, rope.theta > 1));
  SYNCLINE_TRY(check("factor", rope.factor, rope.factor >= 1));
  SYNCLINE_TRY(check("attention_factor", rope.attention_factor, rope.attention_factor > 0));
  SYNCLINE_TRY(check("mscale_all_dim's factor", rope.score_factor, rope.score_factor > 0));
  if (rope.kind == Kind::kLlama3) {
    SYNCLINE_TRY(
        check("low_freq_factor", rope.low_frequency_factor, rope.low_frequency_factor > 0));
    SYNCLINE_TRY(check("high_freq_factor", rope.high_frequency_factor,
                       rope.high_frequency_factor > rope.low_frequency_factor));
  }
  if (rope.kind == Kind::kYarn) {
    SYNCLINE_TRY(check("beta_slow", rope.beta_slow, rope.beta_slow > 0));
    SYNCLINE_TRY(check("beta_fast", rope.beta_fast, rope.beta_fast > rope.beta_slow));
  }
  return check("original_max_position_embeddings", rope.original_positions,
               rope.original_positions > 0);
}

// YaRN: long waves are stretched by the factor, short ones stay, between two dimensions it fades.
void ApplyYarn(const RopeConfig& rope, std::uint32_t head_size, std::vector<float>& frequencies) {
  const auto dimension_of = [&](double rotations) {
    return head_size * std::log(rope.original_positions / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(rope.theta));
  };
  double low = dimension_of(rope.beta_fast);
  double high = dimension_of(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(head_size) - 1);
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double stretched = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    const double plain = frequencies[i];
    frequencies[i] = static_cast<float>(plain / rope.factor * stretched + plain * (1 - stretched));
  }
}

void ApplyLlama3(const RopeConfig& rope, std::vector<float>& frequencies) {
  const double longest = rope.original_positions / rope.low_frequency_factor;
  const double shortest = rope.original_positions / rope.high_frequency_factor;
  for (float& frequency : frequencies) {
    const double plain = frequency;
    const double wave = 2 * std::numbers::pi / plain;
    if (wave < shortest) continue;
    double scaled = plain / rope.factor;
    if (wave <= longest) {
      const double smooth = (rope.original_positions / wave - rope.low_frequency_factor) /
                            (rope.high_frequency_factor - rope.low_frequency_factor);
      scaled = (1 - smooth) * scaled + smooth * plain;
    }
    frequency = static_cast<float>(scaled);
  }
}

}  // namespace

base::Result<RopeConfig> ParseRopeConfig(const Json& config, std::uint32_t max_positions) {
  RopeConfig rope;
  rope.original_positions = max_positions;
  SYNCLINE_TRY(ReadField(config, "rope_theta", rope.theta));
  const Json* parameters = config.Find("rope_parameters");
  if (parameters == nullptr || parameters->is_null()) parameters = config.Find("rope_scaling");
  if (parameters != nullptr && !parameters->is_null()) {
    if (parameters->object() == nullptr) {
      return base::Fail(Code::kCorrupt, "rope_parameters or rope_scaling is no object");
    }
    std::string name = "default";
    SYNCLINE_TRY(ReadField(*parameters, "type", name));  // the oldest spelling
    SYNCLINE_TRY(ReadField(*parameters, "rope_type", name));
    const std::optional<Kind> kind = FindKind(name);
    if (!kind) {
      return base::Fail(Code::kIncompatible,
                        fmt::format("rope type \"{}\" is not served; known are default, linear, "
                                    "dynamic, llama3 and yarn",
                                    name));
    }
    rope.kind = *kind;
    SYNCLINE_TRY(ReadField(*parameters, "rope_theta", rope.theta));
    SYNCLINE_TRY(ReadField(*parameters, "factor", rope.factor));
    SYNCLINE_TRY(ReadField(*parameters, "low_freq_factor", rope.low_frequency_factor));
    SYNCLINE_TRY(ReadField(*parameters, "high_freq_factor", rope.high_frequency_factor));
    SYNCLINE_TRY(
        ReadField(*parameters, "original_max_position_embeddings", rope.original_positions));
    SYNCLINE_TRY(ReadField(*parameters, "beta_fast", rope.beta_fast));
    SYNCLINE_TRY(ReadField(*parameters, "beta_slow", rope.beta_slow));
    SYNCLINE_TRY(ReadField(*parameters, "truncate", rope.truncate));
    const auto get_scale = [&](double mscale) {
      return rope.factor <= 1 ? 1.0 : 0.1 * mscale * std::log(rope.factor) + 1.0;
    };
    double mscale_all = 0;
    SYNCLINE_TRY(ReadField(*parameters, "mscale_all_dim", mscale_all));
    if (rope.kind != Kind::kDefault && mscale_all != 0) {
      rope.score_factor = get_scale(mscale_all) * get_scale(mscale_all);
    }
    if (rope.kind == Kind::kYarn) {
      // Without a given attention_factor it follows from the factor (and, in DeepSeek's form, from
      // two "mscale" fields).
      double mscale = 0;
      SYNCLINE_TRY(ReadField(*parameters, "mscale", mscale));
      rope.attention_factor = mscale != 0 && mscale_all != 0
                                  ? get_scale(mscale) / get_scale(mscale_all)
                                  : get_scale(1.0);
      SYNCLINE_TRY(ReadField(*parameters, "attention_factor", rope.attention_factor));
    }
  }
  SYNCLINE_TRY(CheckRange(rope));
  return rope;
}

std::vector<float> InverseFrequencies(const RopeConfig& rope, std::uint32_t head_size) {
  std::vector<float> frequencies(head_size / 2);
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double exponent = 2.0 * static_cast<double>(i) / head_size;
    frequencies[i] = static_cast<float>(1.0 / std::pow(rope.theta, exponent));
    if (rope.kind == Kind::kLinear) {
      frequencies[i] = static_cast<float>(frequencies[i] / rope.factor);
    }
  }
  if (rope.kind == Kind::kLlama3) ApplyLlama3(rope, frequencies);
  if (rope.kind == Kind::kYarn) ApplyYarn(rope, head_size, frequencies);
  return frequencies;
}

}  // namespace syncline::model
