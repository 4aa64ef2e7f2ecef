#include "quant/config.h"

#include <fmt/core.h>

#include <algorithm>

#include "quant/fp8_block.h"

namespace syncline::quant {

bool QuantConfig::Applies(std::string_view module) const {
  if (scheme == nullptr) return false;
  return std::ranges::none_of(ignored, [module](std::string_view name) {
    return module.starts_with(name) && (module.size() == name.size() || module[name.size()] == '.');
  });
}

bool QuantConfig::operator==(const QuantConfig& other) const {
  return method == other.method && ignored == other.ignored;
}

base::Result<QuantConfig> ReadQuantConfig(const base::Json& config, Fp8Scales scales) {
  const base::Json* field = config.Find("quantization_config");
  if (field == nullptr || field->is_null()) return QuantConfig{};
  QuantConfig quantisation;
  const base::Json* method = field->Find("quant_method");
  if (method == nullptr || method->string() == nullptr || *method->string() != "fp8" ||
      field->Find("weight_block_size") == nullptr) {
    return base::Fail(base::Code::kIncompatible,
                      fmt::format("quantization_config: served is block-wise fp8, found {}",
                                  ToText(*field).substr(0, 200)));
  }
  quantisation.method = "fp8";
  quantisation.scheme = scales == Fp8Scales::kUe8m0 ? Fp8BlockUe8m0() : Fp8Block();
  return quantisation;
}

}  // namespace syncline::quant
