#include "store/version.h"

#include <gtest/gtest.h>

#include "base/result_matchers.h"

namespace syncline::store {
namespace {

using base::Code;
using base::Json;

TEST(VersionTest, NamesAreReadOnlyAsTheyAreWritten) {
  EXPECT_EQ(VersionName(12), "weight_v000012");
  EXPECT_EQ(VersionName(12'345'678), "weight_v12345678");
  for (const std::uint64_t version : {0UL, 7UL, 999'999UL, 1'000'000UL}) {
    EXPECT_EQ(ParseVersionName(VersionName(version)), version);
  }
  for (const char* bad : {"weight_v", "weight_v7", "weight_v0000007", "weight_v00000x",
                          "weight_v-00001", "xweight_v000001", "weight_v99999999999999999999"}) {
    EXPECT_EQ(ParseVersionName(bad), std::nullopt) << bad;
  }
}

TEST(VersionTest, MetadataRoundTripAndFaults) {
  const DeltaInfo info{.version = 7,
                       .base_version = 6,
                       .encoding = delta::Encoding::kOverwrite,
                       .checksum = tensor::HashKind::kBlake3};
  ASSERT_OK_AND_ASSIGN(const auto read, ParseDeltaInfo(DeltaMetadata(info)));
  EXPECT_EQ(read->version, 7U);
  EXPECT_EQ(read->base_version, 6U);
  EXPECT_EQ(read->encoding, delta::Encoding::kOverwrite);
  EXPECT_EQ(read->checksum, tensor::HashKind::kBlake3);
  EXPECT_EQ(ParseDeltaInfo({{"total_size", std::uint64_t{1}}}).value(), std::nullopt);

  const auto with = [&](std::string_view key, Json value) {
    Json::Object metadata = DeltaMetadata(info);
    for (auto& [name, old] : metadata) {
      if (name == key) old = std::move(value);
    }
    return ParseDeltaInfo(metadata);
  };
  EXPECT_OK(with("base_version", Json(std::uint64_t{3})));
  EXPECT_ERROR(with("base_version", Json("six")), Code::kCorrupt, "\"base_version\" is \"six\"");
  EXPECT_ERROR(with("version", Json()), Code::kCorrupt, "\"version\" is null");
  EXPECT_ERROR(with("delta_encoding", Json("sparse")), Code::kIncompatible, "sparse");
  EXPECT_ERROR(with("compression_format", Json("lz4")), Code::kIncompatible, "lz4");
  EXPECT_ERROR(with("checksum_format", Json("md5")), Code::kIncompatible, "md5");
  EXPECT_ERROR(with("checksum_format", Json(true)), Code::kCorrupt, "checksum_format");
}

TEST(VersionTest, Companions) {
  for (const char* good :
       {"config.json", "tokenizer.json", "merges.txt", "generation_config.json"}) {
    EXPECT_TRUE(IsCompanionFile(good)) << good;
  }
  for (const char* bad : {"model.safetensors", "model.safetensors.index.json", "a.bin", ".lock",
                          "syncline.manifest.json", "x.gguf", "consolidated.00.pth"}) {
    EXPECT_FALSE(IsCompanionFile(bad)) << bad;
  }
}

}  // namespace
}  // namespace syncline::store
