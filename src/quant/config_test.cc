#include "quant/config.h"

#include <gtest/gtest.h>

#include "base/result_matchers.h"

namespace syncline::quant {
namespace {

using base::Code;

base::Result<QuantConfig> Read(const std::string& field, Fp8Scales scales = Fp8Scales::kAuto) {
  const auto json = base::ParseJson(R"({"hidden_size": 64, "quantization_config": )" + field + "}");
  return ReadQuantConfig(json.value(), scales);
}

std::string Fp8(const std::string& more) {
  return R"({"quant_method": "fp8", "weight_block_size": [128, 128])" + more + "}";
}

// `weights` and `more` replace what is there.
std::string Int4(const std::string& weights, const std::string& more = "") {
  return R"({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups":
      {"group_0": {"weights": )" +
         weights + R"(, "input_activations": null, "targets": ["Linear"]}})" + more + "}";
}
constexpr const char* kGrouped = R"({"num_bits": 4, "type": "int", "symmetric": true,
    "strategy": "group", "group_size": 32, "actorder": null, "observer": "minmax"})";

TEST(QuantConfigTest, NotQuantised) {
  for (const char* text : {"{}", R"({"quantization_config": null})"}) {
    const auto config = ReadQuantConfig(base::ParseJson(text).value(), Fp8Scales::kUe8m0);
    ASSERT_TRUE(config.has_value());
    EXPECT_EQ(config->method, "");
    EXPECT_EQ(config->scheme, nullptr);
    EXPECT_FALSE(config->Applies("model.layers.0.mlp.up_proj"));
  }
}

TEST(QuantConfigTest, Fp8AndItsScales) {
  const std::string plain = Fp8(R"(, "activation_scheme": "dynamic", "fmt": "e4m3")");
  const std::string powers = Fp8(R"(, "scale_fmt": "ue8m0")");
  const auto scheme = [](const std::string& text, Fp8Scales scales) {
    return std::string(Read(text, scales).value().scheme->name());
  };
  EXPECT_EQ(scheme(plain, Fp8Scales::kAuto), "fp8-block");
  EXPECT_EQ(scheme(powers, Fp8Scales::kAuto), "fp8-block-ue8m0");
  EXPECT_EQ(scheme(plain, Fp8Scales::kUe8m0), "fp8-block-ue8m0");
  EXPECT_EQ(scheme(powers, Fp8Scales::kFp32), "fp8-block");
}

TEST(QuantConfigTest, Int4ByGroupAndByChannel) {
  const auto grouped = Read(Int4(kGrouped, R"(, "ignore": ["lm_head", "re:.*self_attn.*"],
      "kv_cache_scheme": null, "quantization_status": "compressed", "sparsity_config": {})"));
  ASSERT_TRUE(grouped.has_value()) << grouped.error().message;
  EXPECT_EQ(grouped->method, "compressed-tensors");
  EXPECT_EQ(grouped->scheme->name(), "wna16-marlin");
  EXPECT_EQ(grouped->group, 32U);
  EXPECT_EQ(grouped->ignored, (std::vector<std::string>{"lm_head", "re:.*self_attn.*"}));
  const Matrix matrix = {.part_rows = {64}, .columns = 128};
  EXPECT_EQ(grouped->scheme->Slots(matrix)[1].load.shape[1], 4U);
  const auto channel = Read(Int4(R"({"num_bits": 4, "strategy": "channel", "group_size": -1})"));
  ASSERT_TRUE(channel.has_value()) << channel.error().message;
  EXPECT_EQ(channel->scheme->Slots(matrix)[1].load.shape[1], 1U);
}

TEST(QuantConfigTest, WhatIsNotServedIsNamed) {
  const auto refused = [](const std::string& text, const std::string& message) {
    EXPECT_ERROR(Read(text), Code::kIncompatible, "quantization_config" + message);
  };
  refused("{}", ".quant_method is missing, expected fp8 or compressed-tensors");
  refused(R"({"quant_method": "awq"})", R"(.quant_method is "awq", expected fp8 or)");
  // What was found is cut after 80 bytes, but no character is.
  const std::string narrow(41, 'x');
  const std::string eighteen = "éééééééééééééééééé";
  refused(Fp8(R"(, "ignored_layers": "a)" + narrow + eighteen + eighteen + "\""),
          ".ignored_layers is \"a" + narrow + eighteen + "…, expected");
  refused("[1]", ".quant_method is missing");
  refused(R"({"quant_method": "fp8"})", ".weight_block_size is missing, expected [128,128]");
  refused(R"({"quant_method": "fp8", "weight_block_size": [64, 128]})",
          ".weight_block_size is [64,128], expected [128,128]");
  refused(Fp8(R"(, "activation_scheme": "static")"),
          R"(.activation_scheme is "static", expected "dynamic" or null)");
  refused(Fp8(R"(, "fmt": "e5m2")"), R"(.fmt is "e5m2")");
  refused(Fp8(R"(, "scale_fmt": "float")"), R"(.scale_fmt is "float", expected "ue8m0" or null)");
  refused(Fp8(R"(, "ignored_layers": "lm_head")"),
          R"(.ignored_layers is "lm_head", expected a list of module names)");
  refused(Fp8(R"(, "modules_to_not_convert": [1])"), ".modules_to_not_convert is [1]");
  const std::string weights = ".config_groups.group_0.weights";
  refused(Int4(R"({"num_bits": 8})"), weights + ".num_bits is 8, expected 4");
  refused(Int4(R"({"num_bits": 4, "type": "float"})"), weights + R"(.type is "float")");
  refused(Int4(R"({"num_bits": 4, "symmetric": false})"), weights + ".symmetric is false");
  refused(Int4(R"({"num_bits": 4, "strategy": "tensor"})"),
          weights + R"(.strategy is "tensor", expected "group" or "channel")");
  refused(Int4(R"({"num_bits": 4, "strategy": "group"})"),
          weights + ".group_size is missing, expected a multiple of 8");
  refused(Int4(R"({"num_bits": 4, "strategy": "group", "group_size": 12})"),
          weights + ".group_size is 12");
  refused(Int4(R"({"num_bits": 4, "strategy": "channel", "group_size": 32})"),
          weights + ".group_size is 32, expected null or -1");
  refused(Int4(R"({"num_bits": 4, "actorder": "group"})"), weights + R"(.actorder is "group")");
  refused(Int4("null"), weights + " is null, expected an object");
  refused(Int4(kGrouped, R"(, "kv_cache_scheme": {"num_bits": 8})"), ".kv_cache_scheme is {");
  refused(Int4(kGrouped, R"(, "transform_config": {"a": 1})"), ".transform_config is {");
  refused(R"({"quant_method": "compressed-tensors", "format": "int-quantized"})",
          R"(.format is "int-quantized", expected "pack-quantized")");
  refused(R"({"quant_method": "compressed-tensors", "format": "pack-quantized",
              "config_groups": {"a": {}, "b": {}}})",
          ".config_groups is {\"a\":{},\"b\":{}}, expected one group");
  refused(R"({"quant_method": "compressed-tensors", "format": "pack-quantized",
              "config_groups": {"a": {"targets": ["re:.*"]}}})",
          R"(.config_groups.a.targets is ["re:.*"], expected ["Linear"])");
}

TEST(QuantConfigTest, ModulesLeftOut) {
  const QuantConfig config = Read(Int4(kGrouped, R"(, "ignore": ["lm_head", "model.layers.1.mlp",
      "re:.*self_attn.[qk]_proj$", "re:down_proj", "up_proj"])"))
                                 .value();
  EXPECT_TRUE(config.Applies("model.layers.0.mlp.up_proj"));  // only fp8 looks at ends
  EXPECT_FALSE(config.Applies("model.layers.1.mlp.up_proj"));
  EXPECT_FALSE(config.Applies("model.layers.1.mlp"));
  EXPECT_TRUE(config.Applies("model.layers.1.mlp2.up_proj"));
  EXPECT_TRUE(config.Applies("model.layers.11.mlp.up_proj"));
  EXPECT_FALSE(config.Applies("model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(config.Applies("model.layers.0.self_attn.v_proj"));
  EXPECT_TRUE(config.Applies("model.layers.0.self_attn.q_proj2"));
  EXPECT_TRUE(config.Applies("model.layers.0.mlp.down_proj"));  // only the beginning of a name

  const QuantConfig fp8 = Read(Fp8(R"(, "modules_to_not_convert": ["kv_b_proj", "", "a.b"],
      "ignored_layers": ["model.layers.3"])"))
                              .value();
  EXPECT_FALSE(fp8.Applies("model.layers.0.self_attn.kv_b_proj"));
  EXPECT_TRUE(fp8.Applies("model.layers.0.self_attn.skv_b_proj"));
  EXPECT_FALSE(fp8.Applies("model.layers.3.mlp.up_proj"));
  EXPECT_TRUE(fp8.Applies("model.layers.0.mlp.up_proj"));
}

TEST(QuantConfigTest, NeverQuantised) {
  const QuantConfig config = Read(Fp8("")).value();
  for (const char* module :
       {"lm_head", "model.embed_tokens", "model.norm", "model.layers.0.input_layernorm",
        "model.layers.0.self_attn.q_norm", "model.layers.0.mlp.gate"}) {
    EXPECT_FALSE(config.Applies(module)) << module;
  }
  EXPECT_TRUE(config.Applies("model.layers.0.mlp.gate_proj"));
}

TEST(QuantConfigTest, PatternsFromOutside) {
  const auto read = [](const std::string& pattern) {
    return Read(Fp8(R"(, "ignored_layers": ["re:)" + pattern + "\"]"));
  };
  EXPECT_ERROR(read("(a"), Code::kIncompatible,
               "quantization_config: expected a regular expression, found \"(a\"");
  EXPECT_ERROR(read(std::string(513, 'a')), Code::kIncompatible,
               "has 513 characters, expected at most 512");
  EXPECT_ERROR(read(R"((a)\\1)"), Code::kIncompatible, "expected a regular expression");
  EXPECT_ERROR(read("((a{1,1000}){1,1000}){1,1000}"), Code::kIncompatible, "regular expression");
  // Would take ages by backtracking.
  const auto nested = read("(a+)+$");
  ASSERT_TRUE(nested.has_value());
  EXPECT_TRUE(nested->Applies(std::string(60, 'a') + "b"));
  EXPECT_FALSE(nested->Applies(std::string(60, 'a')));
}

TEST(QuantConfigTest, EqualByWhatWasRead) {
  const QuantConfig grouped = Read(Int4(kGrouped)).value();
  EXPECT_EQ(grouped, Read(Int4(kGrouped)).value());
  EXPECT_FALSE(grouped == Read(Int4(kGrouped, R"(, "ignore": ["a"])")).value());
  EXPECT_FALSE(grouped == Read(Int4(R"({"num_bits": 4, "strategy": "channel"})")).value());
  EXPECT_EQ(Read(Fp8("")).value(), Read(Fp8(""), Fp8Scales::kUe8m0).value());
  EXPECT_FALSE(Read(Fp8("")).value() == QuantConfig{});
}

TEST(QuantConfigTest, NamesOfTensors) {
  const QuantConfig int4 = Read(Int4(kGrouped)).value();
  EXPECT_EQ(TensorNames(*int4.scheme, "m.q_proj"),
            (std::vector<std::string>{"m.q_proj.weight_packed", "m.q_proj.weight_scale"}));
  EXPECT_EQ(SkippedTensors(int4), std::vector<std::string>{"*.weight_shape"});
  const QuantConfig fp8 = Read(Fp8("")).value();
  EXPECT_EQ(TensorNames(*fp8.scheme, "m"),
            (std::vector<std::string>{"m.weight", "m.weight_scale_inv"}));
  EXPECT_TRUE(SkippedTensors(fp8).empty());
}

}  // namespace
}  // namespace syncline::quant
