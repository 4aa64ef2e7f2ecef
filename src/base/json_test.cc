#include "base/json.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "base/result_matchers.h"

namespace syncline::base {
namespace {

TEST(JsonTest, KeepsValuesAndOrder) {
  const std::string text =
      R"({"z":[1,-2,0.5,18446744073709551615],"a":{"t":true,"n":null},"s":"q\"\\\n\u0001é"})";
  ASSERT_OK_AND_ASSIGN(const Json json, ParseJson(text));
  EXPECT_EQ(ToText(json), text);
  EXPECT_EQ(*json.Find("z")->array()->at(3).unsigned_integer(), 18446744073709551615U);
  EXPECT_EQ(json.Find("missing"), nullptr);
  EXPECT_EQ(ParseJson("-0").value().unsigned_integer(), nullptr);
  EXPECT_EQ(ToText(ParseJson(ToText(json, true)).value()), text);
}

TEST(JsonTest, DoublesAreTheNearestOnes) {
  for (const char* text : {"-9.223332036872037e+24", "10000500000.0", "5e-324", "0.1",
                           "1.7976931348623157e+308", "123456789.12345678"}) {
    ASSERT_OK_AND_ASSIGN(const Json json, ParseJson(text));
    EXPECT_EQ(std::get<double>(json.value()), std::strtod(text, nullptr)) << text;
    EXPECT_EQ(ToText(ParseJson(ToText(json)).value()), ToText(json));
  }
  EXPECT_EQ(std::get<double>(ParseJson("1e-999").value().value()), 0.0);
}

TEST(JsonTest, RejectsWhatIsNotStrictJson) {
  EXPECT_ERROR(ParseJson(R"({"a":1,"b":2,"a":3})"), Code::kCorrupt, "duplicate name \"a\"");
  EXPECT_ERROR(ParseJson(R"({"a":{"\u0061":1,"a":3}})"), Code::kCorrupt, "duplicate name \"a\"");
  EXPECT_ERROR(ParseJson(R"({"":1,"b":2,"":3})"), Code::kCorrupt, "duplicate name \"\"");
  for (const char* bad : {"", "{", "{} x", "{'a':1}", "[1,]", "01", "nul", "\"\xff\"",
                          "\"\\ud800\"", "// c\n1", "[1 2]", "\"\x01\"", "1e999", "[-1e999]"}) {
    EXPECT_ERROR(ParseJson(bad), Code::kCorrupt, "invalid JSON");
  }
}

TEST(JsonTest, DepthIsBounded) {
  EXPECT_OK(ParseJson(std::string(8, '[') + std::string(8, ']'), 8));
  EXPECT_ERROR(ParseJson(std::string(9, '[') + std::string(9, ']'), 8), Code::kCorrupt, "invalid");
  EXPECT_ERROR(ParseJson(std::string(1'000'000, '[')), Code::kCorrupt, "invalid");
}

TEST(JsonTest, ManyEqualLookingKeysAreFast) {
  std::string text = "{";
  for (int i = 0; i < 20000; ++i) text += "\"layer." + std::to_string(i) + "\":0,";
  text.back() = '}';
  EXPECT_EQ(ParseJson(text).value().object()->size(), 20000U);
}

}  // namespace
}  // namespace syncline::base
