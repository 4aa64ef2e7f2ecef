#include "model/rope.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "base/result_matchers.h"

namespace syncline::model {
namespace {

using base::Code;

base::Result<RopeConfig> Parse(const std::string& json, std::uint32_t positions = 8192) {
  SYNCLINE_ASSIGN(const base::Json config, base::ParseJson(json));
  return ParseRopeConfig(config, positions);
}

// Values of transformers 5.24 (ROPE_INIT_FUNCTIONS) for head_dim 64: dimension → frequency.
struct Golden {
  const char* config;
  double attention_factor;
  std::map<std::size_t, float> frequencies;
};
const Golden kGoldens[] = {
    {R"({"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}})",
     1.0,
     {{0, 0.25F}, {1, 0.18747355F}, {10, 0.014058532F}, {31, 3.3338038e-05F}}},
    {R"({"rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0,
         "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 8192}})",
     1.0,
     {{0, 1.0F},
      {1, 0.66360128F},
      {14, 0.0032114461F},
      {15, 0.0013718937F},
      {16, 0.00052484602F},
      {17, 0.00017850779F},
      {31, 3.7673226e-07F}}},
    {R"({"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
         "original_max_position_embeddings": 2048}})",
     1.138629436111989,
     {{1, 0.7498942F},
      {10, 0.049745575F},
      {14, 0.011627212F},
      {16, 0.0053846152F},
      {20, 0.00097300857F},
      {31, 3.3338038e-05F}}},
    {R"({"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0,
         "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1,
         "mscale": 1.0, "mscale_all_dim": 0.8}})",
     1.0569662567531275,
     {{10, 0.056234129F}, {14, 0.012447956F}, {16, 0.0055000004F}, {31, 3.3338035e-06F}}},
};

TEST(Rope, FrequenciesAreTheReferences) {
  for (const Golden& golden : kGoldens) {
    ASSERT_OK_AND_ASSIGN(const RopeConfig rope, Parse(golden.config));
    EXPECT_NEAR(rope.attention_factor, golden.attention_factor, 1e-12) << golden.config;
    const std::vector<float> found = InverseFrequencies(rope, 64);
    ASSERT_EQ(found.size(), 32U);
    for (const auto& [i, expected] : golden.frequencies) {
      EXPECT_NEAR(found[i] / expected, 1.0, 1e-5) << golden.config << " dimension " << i;
    }
  }
}

// The older spellings say the same.
TEST(Rope, OlderFieldsMeanTheSame) {
  const std::string fields =
      R"("factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 4096})";
  ASSERT_OK_AND_ASSIGN(
      const RopeConfig current,
      Parse(R"({"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, )" + fields + "}"));
  ASSERT_OK_AND_ASSIGN(
      const RopeConfig older,
      Parse(R"({"rope_theta": 500000, "rope_scaling": {"rope_type": "llama3", )" + fields + "}"));
  ASSERT_OK_AND_ASSIGN(
      const RopeConfig oldest,
      Parse(R"({"rope_theta": 500000, "rope_scaling": {"type": "llama3", )" + fields + "}"));
  EXPECT_EQ(current, older);
  EXPECT_EQ(current, oldest);
  EXPECT_EQ(current.kind, RopeConfig::Kind::kLlama3);
}

TEST(Rope, NothingSaidIsThePlainForm) {
  ASSERT_OK_AND_ASSIGN(const RopeConfig rope, Parse(R"({"rope_scaling": null})"));
  EXPECT_EQ(rope.kind, RopeConfig::Kind::kDefault);
  EXPECT_EQ(rope.theta, 10000.0);
  const std::vector<float> found = InverseFrequencies(rope, 4);
  EXPECT_FLOAT_EQ(found[0], 1.0F);
  EXPECT_FLOAT_EQ(found[1], 0.01F);
}

TEST(Rope, WhatCannotBeServedIsNamed) {
  EXPECT_ERROR(Parse(R"({"rope_parameters": {"rope_type": "longrope"}})"), Code::kIncompatible,
               "longrope");
  EXPECT_ERROR(Parse(R"({"rope_theta": "big"})"), Code::kCorrupt, "rope_theta");
  EXPECT_ERROR(Parse(R"({"rope_theta": 0})"), Code::kCorrupt, "rope_theta is 0");
  EXPECT_ERROR(Parse(R"({"rope_parameters": {"rope_type": "linear", "factor": 0.5}})"),
               Code::kCorrupt, "factor");
  EXPECT_ERROR(Parse(R"({"rope_parameters": {"rope_type": "llama3", "factor": 8,
                         "low_freq_factor": 4, "high_freq_factor": 1}})"),
               Code::kCorrupt, "high_freq_factor");
  EXPECT_ERROR(Parse(R"({"rope_parameters": 3})"), Code::kCorrupt, "no object");
}

}  // namespace
}  // namespace syncline::model
