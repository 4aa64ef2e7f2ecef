#include "quant/config.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

#include "quant/fp8_block.h"
#include "quant/wna16_marlin.h"

namespace syncline::quant {
namespace {

using base::Code;
using base::Fail;
using base::Json;
using base::Result;
using base::Status;

constexpr std::string_view kFp8 = "fp8";
constexpr std::string_view kCompressedTensors = "compressed-tensors";
constexpr std::string_view kExpression = "re:";

std::string Found(const Json* value) {
  constexpr std::size_t kLongest = 80;
  std::string text = value == nullptr ? "missing" : ToText(*value);
  if (text.size() <= kLongest) return text;
  std::size_t end = kLongest;
  while (end > 0 && (text[end] & '\xC0') == '\x80') --end;  // no character is cut
  return text.substr(0, end) + "…";
}

// An object and where it stands.
struct Fields {
  const Json& object;
  std::string path;

  // Null where a field is missing or null.
  const Json* Find(std::string_view name) const {
    const Json* value = object.Find(name);
    return value == nullptr || value->is_null() ? nullptr : value;
  }
  std::unexpected<base::Error> Wrong(std::string_view name, std::string_view expected) const {
    return Fail(Code::kIncompatible, fmt::format("{}.{} is {}, expected {}", path, name,
                                                 Found(object.Find(name)), expected));
  }
  // The text of a value must be one of these; "" stands for one that is missing or null.
  Status Expect(std::string_view name, std::initializer_list<std::string_view> texts) const {
    const Json* value = Find(name);
    const std::string found = value == nullptr ? "" : ToText(*value);
    if (std::ranges::find(texts, found) != texts.end()) return {};
    std::string expected;
    for (const std::string_view text : texts) {
      if (!expected.empty()) expected += " or ";
      expected += text.empty() ? "null" : text;
    }
    return Wrong(name, expected);
  }
  Result<Fields> Object(std::string_view name) const {
    const Json* value = Find(name);
    if (value == nullptr || value->object() == nullptr) return Wrong(name, "an object");
    return Fields{*value, fmt::format("{}.{}", path, name)};
  }
  Status AppendNames(std::string_view name, std::vector<std::string>& names) const {
    const Json* value = Find(name);
    if (value == nullptr) return {};
    if (value->array() == nullptr) return Wrong(name, "a list of module names");
    for (const Json& entry : *value->array()) {
      if (entry.string() == nullptr) return Wrong(name, "a list of module names");
      names.push_back(*entry.string());
    }
    return {};
  }
};

Status ReadFp8(const Fields& fields, Fp8Scales scales, QuantConfig& config) {
  SYNCLINE_TRY(fields.Expect("weight_block_size", {"[128,128]"}));
  SYNCLINE_TRY(fields.Expect("activation_scheme", {"\"dynamic\"", ""}));
  SYNCLINE_TRY(fields.Expect("fmt", {"\"e4m3\"", ""}));
  SYNCLINE_TRY(fields.Expect("scale_fmt", {"\"ue8m0\"", ""}));
  const bool powers_of_two = scales == Fp8Scales::kUe8m0 ||
                             (scales == Fp8Scales::kAuto && fields.Find("scale_fmt") != nullptr);
  config.scheme = powers_of_two ? Fp8BlockUe8m0() : Fp8Block();
  SYNCLINE_TRY(fields.AppendNames("modules_to_not_convert", config.ignored));
  return fields.AppendNames("ignored_layers", config.ignored);
}

// Of the weights of a group.
Status ReadIntegers(const Fields& weights, QuantConfig& config) {
  SYNCLINE_TRY(weights.Expect("num_bits", {"4"}));
  SYNCLINE_TRY(weights.Expect("type", {"\"int\"", ""}));
  SYNCLINE_TRY(weights.Expect("symmetric", {"true", ""}));
  SYNCLINE_TRY(weights.Expect("dynamic", {"false", ""}));
  SYNCLINE_TRY(weights.Expect("actorder", {"", "false"}));
  SYNCLINE_TRY(weights.Expect("block_structure", {""}));
  SYNCLINE_TRY(weights.Expect("strategy", {"\"group\"", "\"channel\""}));
  if (*weights.Find("strategy")->string() == "channel") {
    config.group = 0;
    return weights.Expect("group_size", {"", "-1"});
  }
  const Json* size = weights.Find("group_size");
  if (size == nullptr || size->unsigned_integer() == nullptr || *size->unsigned_integer() == 0 ||
      *size->unsigned_integer() % 8 != 0) {
    return weights.Wrong("group_size", "a multiple of 8");
  }
  config.group = *size->unsigned_integer();
  return {};
}

Status ReadCompressedTensors(const Fields& fields, QuantConfig& config) {
  SYNCLINE_TRY(fields.Expect("format", {"\"pack-quantized\""}));
  SYNCLINE_TRY(fields.Expect("kv_cache_scheme", {""}));
  SYNCLINE_TRY(fields.Expect("sparsity_config", {"", "{}"}));
  SYNCLINE_TRY(fields.Expect("transform_config", {"", "{}"}));
  SYNCLINE_ASSIGN(const Fields groups, fields.Object("config_groups"));
  if (groups.object.object()->size() != 1) return fields.Wrong("config_groups", "one group");
  SYNCLINE_ASSIGN(const Fields group, groups.Object(groups.object.object()->front().first));
  SYNCLINE_TRY(group.Expect("targets", {"[\"Linear\"]"}));
  SYNCLINE_TRY(group.Expect("format", {"\"pack-quantized\"", ""}));
  SYNCLINE_TRY(group.Expect("input_activations", {""}));
  SYNCLINE_TRY(group.Expect("output_activations", {""}));
  SYNCLINE_ASSIGN(const Fields weights, group.Object("weights"));
  SYNCLINE_TRY(ReadIntegers(weights, config));
  config.scheme = Wna16Marlin(config.group);
  return fields.AppendNames("ignore", config.ignored);
}

Status CompilePatterns(QuantConfig& config) {
  std::vector<std::string> patterns;
  for (const std::string& name : config.ignored) {
    if (name.starts_with(kExpression)) patterns.push_back(name.substr(kExpression.size()));
  }
  SYNCLINE_ASSIGN(config.patterns, ModulePatterns::Compile(patterns));
  return {};
}

bool NeverQuantised(std::string_view module) {
  const std::string_view last = module.substr(module.rfind('.') + 1);
  constexpr std::array<std::string_view, 5> kNames = {"embed_tokens", "lm_head", "gate", "router",
                                                      "shared_expert_gate"};
  return last.ends_with("norm") || std::ranges::find(kNames, last) != kNames.end();
}

}  // namespace

bool QuantConfig::Applies(std::string_view module) const {
  if (scheme == nullptr || NeverQuantised(module)) return false;
  const bool ends = method == kFp8;
  const auto leaves_out = [module, ends](std::string_view name) {
    if (name.empty() || name.size() > module.size()) return false;
    const std::size_t rest = module.size() - name.size();
    if (module.starts_with(name) && (rest == 0 || module[name.size()] == '.')) return true;
    return ends && module.ends_with(name) && module[rest - 1] == '.';
  };
  return std::ranges::none_of(ignored, leaves_out) &&
         (patterns == nullptr || !patterns->Match(module));
}

bool QuantConfig::operator==(const QuantConfig& other) const {
  return method == other.method && group == other.group && ignored == other.ignored;
}

Result<QuantConfig> ReadQuantConfig(const Json& config, Fp8Scales scales) {
  constexpr std::string_view kField = "quantization_config";
  const Json* field = config.Find(kField);
  if (field == nullptr || field->is_null()) return QuantConfig{};
  const Fields fields{*field, std::string(kField)};
  const Json* method = fields.Find("quant_method");
  QuantConfig read;
  if (method != nullptr && method->string() != nullptr) read.method = *method->string();
  if (read.method == kFp8) {
    SYNCLINE_TRY(ReadFp8(fields, scales, read));
  } else if (read.method == kCompressedTensors) {
    SYNCLINE_TRY(ReadCompressedTensors(fields, read));
  } else {
    return fields.Wrong("quant_method", fmt::format("{} or {}", kFp8, kCompressedTensors));
  }
  if (Status compiled = CompilePatterns(read); !compiled) {
    return base::Annotate(compiled.error(), kField);
  }
  return read;
}

std::vector<std::string> TensorNames(const Scheme& scheme, std::string_view module) {
  std::vector<std::string> names;
  // Names do not depend on the matrix.
  for (const Slot& slot : scheme.Slots({.part_rows = {64}, .columns = 128})) {
    names.push_back(fmt::format("{}.{}", module, slot.name));
  }
  return names;
}

std::vector<std::string> SkippedTensors(const QuantConfig& config) {
  if (config.method != kCompressedTensors) return {};
  return {"*.weight_shape"};
}

}  // namespace syncline::quant
