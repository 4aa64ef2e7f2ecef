#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "base/result_matchers.h"
#include "base/temp_dir.h"

namespace syncline::model {
namespace {

using base::Code;
using base::FileSystem;

constexpr const char* kConfig = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": false,
  "head_dim": 64, "hidden_act": "silu", "hidden_size": 576, "intermediate_size": 1536,
  "max_position_embeddings": 8192, "num_attention_heads": 9, "num_hidden_layers": 30,
  "num_key_value_heads": 3, "rms_norm_eps": 1e-05, "tie_word_embeddings": true,
  "vocab_size": 49152, "eos_token_id": 2, "rope_theta": 100000})";

base::Result<ModelConfig> Parse(const std::string& text) {
  SYNCLINE_ASSIGN(const base::Json json, base::ParseJson(text));
  return ParseModelConfig(json);
}

// kConfig with the value of `field` replaced, or the field removed where `value` is empty.
base::Result<ModelConfig> With(const std::string& field, const std::string& value) {
  const std::regex entry("\"" + field + R"(": (\[[^\]]*\]|[^,}]*),?)");
  const std::string text = kConfig;
  EXPECT_TRUE(std::regex_search(text, entry)) << field;
  return Parse(
      std::regex_replace(text, entry, value.empty() ? "" : "\"" + field + "\": " + value + ","));
}

TEST(ModelConfig, ReadsALlama) {
  ASSERT_OK_AND_ASSIGN(const ModelConfig config, Parse(kConfig));
  EXPECT_EQ(config.hidden, 576U);
  EXPECT_EQ(config.kv_heads, 3U);
  EXPECT_EQ(config.head_size, 64U);
  EXPECT_TRUE(config.tied_embeddings);
  EXPECT_EQ(config.rope.theta, 100000);
  EXPECT_THAT(config.end_tokens, testing::ElementsAre(2));
}

TEST(ModelConfig, MissingFieldsHaveTheirDefaults) {
  ASSERT_OK_AND_ASSIGN(const ModelConfig all_heads, With("num_key_value_heads", ""));
  EXPECT_EQ(all_heads.kv_heads, 9U);
  ASSERT_OK_AND_ASSIGN(const ModelConfig derived, With("head_dim", "null"));
  EXPECT_EQ(derived.head_size, 64U);
  ASSERT_OK_AND_ASSIGN(const ModelConfig untied, With("tie_word_embeddings", "null"));
  EXPECT_FALSE(untied.tied_embeddings);
}

TEST(ModelConfig, WhatIsWrongIsNamed) {
  EXPECT_ERROR(With("vocab_size", "null"), Code::kCorrupt, "vocab_size");
  EXPECT_ERROR(With("hidden_size", "-5"), Code::kCorrupt, "hidden_size");
  EXPECT_ERROR(With("hidden_size", "1e3"), Code::kCorrupt, "hidden_size");
  EXPECT_ERROR(With("num_hidden_layers", "4000000000"), Code::kCorrupt, "num_hidden_layers");
  EXPECT_ERROR(With("num_hidden_layers", "100000"), Code::kCorrupt, "num_hidden_layers");
  EXPECT_ERROR(With("num_key_value_heads", "2"), Code::kCorrupt, "num_key_value_heads (2)");
  EXPECT_ERROR(With("num_key_value_heads", "0"), Code::kCorrupt, "num_key_value_heads");
  EXPECT_ERROR(With("head_dim", "63"), Code::kCorrupt, "even number, found 63");
  EXPECT_ERROR(With("tie_word_embeddings", "1"), Code::kCorrupt, "tie_word_embeddings");
  EXPECT_ERROR(With("eos_token_id", "\"x\""), Code::kCorrupt, "eos_token_id");
  EXPECT_ERROR(With("eos_token_id", "[1, -2]"), Code::kCorrupt, "eos_token_id");
  EXPECT_ERROR(With("hidden_act", "\"gelu\""), Code::kIncompatible, "gelu");
  EXPECT_ERROR(With("architectures", "[\"MambaForCausalLM\"]"), Code::kIncompatible, "Mamba");
  EXPECT_ERROR(With("architectures", ""), Code::kIncompatible, "none");
  EXPECT_ERROR(With("attention_bias", "false, \"quantization_config\": {}"), Code::kIncompatible,
               "quantization_config");
  EXPECT_ERROR(Parse("[]"), Code::kCorrupt, "object");
}

TEST(ModelConfig, EndTokensComeFromBothFiles) {
  const base::TempDir directory;
  FileSystem& files = FileSystem::Posix();
  ASSERT_OK(base::WriteTextAtomically(files, directory / "config.json", kConfig, false));
  ASSERT_OK(base::WriteTextAtomically(files, directory / "generation_config.json",
                                      R"({"eos_token_id": [2, 7]})", false));
  ASSERT_OK_AND_ASSIGN(const ModelConfig config, ReadModelConfig(files, directory.path()));
  EXPECT_THAT(config.end_tokens, testing::ElementsAre(2, 7));
  ASSERT_OK(base::WriteTextAtomically(files, directory / "generation_config.json", "{", false));
  EXPECT_ERROR(ReadModelConfig(files, directory.path()), Code::kCorrupt, "generation_config.json");
  ASSERT_OK(files.Remove(directory / "config.json"));
  EXPECT_ERROR(ReadModelConfig(files, directory.path()), Code::kNotFound, "config.json");
}

}  // namespace
}  // namespace syncline::model
