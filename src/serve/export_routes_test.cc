// The live weights as numbers and as bytes.
#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include <bit>
#include <cmath>

#include "base/result_matchers.h"
#include "serve/numbers.h"
#include "serve/scene.h"

namespace syncline::serve {
namespace {

using base::Code;
using tensor::Dtype;
using testing::HasSubstr;

template <typename T>
update::ExportedTensor MakeTensor(Dtype dtype, std::vector<std::uint64_t> shape,
                                  const std::vector<T>& values) {
  const base::ByteSpan bytes = std::as_bytes(std::span(values));
  return {.name = "w",
          .dtype = dtype,
          .shape = std::move(shape),
          .bytes = {bytes.begin(), bytes.end()}};
}

class ExportTest : public Scene {
  void SetUp() override {
    Scene::SetUp();
    weights_.tensors["m.w"] = MakeTensor<std::uint16_t>(
        Dtype::kBF16, {3, 2}, {0x3F80, 0x3E80, 0xC000, 0, 0x3DCD, 0x7F80});
    weights_.tensors["m.i"] = MakeTensor<std::uint8_t>(Dtype::kI8, {2}, {1, 2});
  }
};

TEST_F(ExportTest, NumbersByName) {
  const http::Response reply = Get("/get_weights_by_name?name=m.w");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.body, "[[1,0.25],[-2,0],[0.10009765625,null]]");
  EXPECT_EQ(Post("/get_weights_by_name", R"({"name":"m.w","truncate_size":"2"})").body,
            "[[1,0.25],[-2,0]]");
  EXPECT_EQ(
      Start("GET", "/get_weights_by_name", R"({"name":"m.w","truncate_size":1})")->Wait().body,
      "[[1,0.25]]");
}

TEST_F(ExportTest, NamesThatAreNotThere) {
  const http::Response reply = Get("/get_weights_by_name?name=nope");
  EXPECT_EQ(reply.status, 400);
  EXPECT_THAT(At(ParseReply(reply), "error.message"), HasSubstr("Get parameter by name failed"));
  EXPECT_THAT(At(ParseReply(reply), "error.message"), HasSubstr("nope"));
  EXPECT_EQ(Get("/export_weights?name=nope").status, 400);
  EXPECT_EQ(Get("/get_weights_by_name").status, 400);
  EXPECT_EQ(Get("/get_weights_by_name?name=m.w&truncate_size=-1").status, 400);
}

TEST_F(ExportTest, Bytes) {
  const http::Response reply = Get("/export_weights?name=m.w");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.content_type, "application/octet-stream");
  EXPECT_EQ(reply.body, base::AsText(weights_.tensors["m.w"].bytes));
  EXPECT_THAT(reply.headers, testing::ElementsAre(testing::Pair("X-Syncline-Dtype", "BF16"),
                                                  testing::Pair("X-Syncline-Shape", "3,2")));
}

TEST_F(ExportTest, AllNames) { EXPECT_EQ(Get("/export_weights").body, R"(["m.i","m.w"])"); }

TEST(NumbersTest, ShapesOfAnyRank) {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(NumbersText(MakeTensor(Dtype::kF32, {2, 2, 2}, values), 1, 99), "[[[1,2],[3,4]]]");
  EXPECT_EQ(NumbersText(MakeTensor(Dtype::kF32, {8}, values), 3, 99), "[1,2,3]");
  EXPECT_EQ(NumbersText(MakeTensor<float>(Dtype::kF32, {}, {5}), 100, 99), "[5]");
  EXPECT_EQ(NumbersText(MakeTensor<float>(Dtype::kF32, {0}, {}), 100, 99), "[]");
  EXPECT_EQ(NumbersText(MakeTensor<float>(Dtype::kF32, {2, 0}, {}), 100, 99), "[[],[]]");
  EXPECT_EQ(NumbersText(MakeTensor<float>(Dtype::kF32, {0, 2}, {}), 100, 99), "[]");
}

TEST(NumbersTest, Refusals) {
  EXPECT_ERROR(NumbersText(MakeTensor<std::uint8_t>(Dtype::kI8, {1}, {1}), 100, 99),
               Code::kIncompatible, "w: expected F32, F16 or BF16, got I8");
  EXPECT_ERROR(NumbersText(MakeTensor<float>(Dtype::kF32, {2, 2}, {1, 2, 3, 4}), 2, 3),
               Code::kLimitExceeded, "4 numbers, expected at most 3");
  EXPECT_OK(NumbersText(MakeTensor<float>(Dtype::kF32, {2, 2}, {1, 2, 3, 4}), 1, 3));
  EXPECT_ERROR(NumbersText(MakeTensor<float>(Dtype::kF32, {3}, {1, 2}), 9, 99), Code::kCorrupt,
               "expected 12 bytes, got 8");
}

// Every half: the sign, ten bits of fraction and the exponent, from the definition.
TEST(NumbersTest, EveryHalfPrecisionValue) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = F16ToFloat(static_cast<std::uint16_t>(bits));
    const auto back = static_cast<_Float16>(value);
    if (std::isnan(value)) {
      EXPECT_EQ(bits & 0x7C00, 0x7C00U);
      EXPECT_NE(bits & 0x3FF, 0U);
    } else {
      ASSERT_EQ(std::bit_cast<std::uint16_t>(back), bits);
    }
  }
}

RC_GTEST_PROP(NumbersTest, BfloatIsTheUpperHalfOfAFloat, (std::uint16_t bits)) {
  const float value = Bf16ToFloat(bits);
  RC_ASSERT(std::bit_cast<std::uint32_t>(value) == static_cast<std::uint32_t>(bits) << 16);
}

}  // namespace
}  // namespace syncline::serve
