#include "serve/fields.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

#include "base/result_matchers.h"
#include "serve/scene.h"

namespace syncline::serve {
namespace {

using base::Code;
using base::Json;

template <typename T>
base::Result<T> ReadOne(std::string_view value, T fallback = {}) {
  const Json object = MustParse(R"({"x":)" + std::string(value) + "}");
  Fields fields(object, "in.");
  fields.Read("x", fallback);
  SYNCLINE_TRY(fields.status());
  return fallback;
}

RC_GTEST_PROP(FieldsTest, IntegersInEverySpelling, (std::int32_t number)) {
  const std::string text = std::to_string(number);
  for (const std::string& spelling : {text, text + ".0", "\"" + text + "\""}) {
    RC_ASSERT(ReadOne<std::int32_t>(spelling).value() == number);
  }
}

RC_GTEST_PROP(FieldsTest, NumbersAndTheirTexts, (double number)) {
  RC_PRE(std::isfinite(number));
  const std::string text = ToText(Json(number));
  RC_ASSERT(ReadOne<double>("\"" + text + "\"").value() == number);
  // The JSON parser may be off by the last bit.
  RC_ASSERT(std::abs(ReadOne<double>(text).value() - number) <= 1e-15 * std::abs(number));
}

TEST(FieldsTest, NullAndMissingAreTheDefault) {
  EXPECT_EQ(ReadOne<int>("null", 7), 7);
  const Json object = MustParse("{}");
  Fields fields(object);
  std::vector<int> list = {1};
  fields.Read("x", list);
  EXPECT_OK(fields.status());
  EXPECT_EQ(list, std::vector<int>{1});
}

TEST(FieldsTest, WrongKindsNameTheFieldWhatWasExpectedAndWhatCame) {
  EXPECT_ERROR(ReadOne<int>("\"abc\""), Code::kInvalidArgument,
               "in.x: expected an integer, got \"abc\"");
  EXPECT_ERROR(ReadOne<int>("1.5"), Code::kInvalidArgument, "expected an integer, got 1.5");
  EXPECT_ERROR(ReadOne<int>("true"), Code::kInvalidArgument, "expected an integer, got true");
  EXPECT_ERROR(ReadOne<double>("[1]"), Code::kInvalidArgument, "expected a number, got a list");
  EXPECT_ERROR(ReadOne<double>("\"nan\""), Code::kInvalidArgument, "expected a number");
  EXPECT_ERROR(ReadOne<std::string>("3"), Code::kInvalidArgument, "expected a string, got 3");
  EXPECT_ERROR(ReadOne<bool>("2"), Code::kInvalidArgument, "expected a boolean, got 2");
  EXPECT_ERROR(ReadOne<std::vector<int>>("{}"), Code::kInvalidArgument,
               "expected a list, got an object");
  EXPECT_ERROR(ReadOne<std::vector<int>>("[1,\"x\"]"), Code::kInvalidArgument,
               "in.x: item 1: expected an integer, got \"x\"");
}

TEST(FieldsTest, IntegersOutOfRange) {
  EXPECT_ERROR(ReadOne<std::uint32_t>("-1"), Code::kInvalidArgument,
               "expected an integer from 0 to 4294967295, got -1");
  EXPECT_ERROR(ReadOne<std::uint32_t>("4294967296"), Code::kInvalidArgument, "4294967296");
  EXPECT_EQ(ReadOne<std::uint32_t>("4294967295"), 4294967295U);
  EXPECT_ERROR(ReadOne<std::uint64_t>("18446744073709551615"), Code::kInvalidArgument,
               "expected an integer");
  EXPECT_ERROR(ReadOne<std::int64_t>("1e300"), Code::kInvalidArgument, "expected an integer");
}

TEST(FieldsTest, BooleansInEverySpelling) {
  for (const char* yes : {"true", "1", "\"true\"", "1.0"}) EXPECT_EQ(ReadOne<bool>(yes), true);
  for (const char* no : {"false", "0", "\"false\""}) EXPECT_EQ(ReadOne<bool>(no, true), false);
}

TEST(FieldsTest, TheFirstErrorIsKept) {
  const Json object = MustParse(R"({"a":"x","b":"y"})");
  Fields fields(object);
  int number = 0;
  fields.Read("a", number);
  fields.Read("b", number);
  fields.Require("c", number);
  EXPECT_ERROR(fields.status(), Code::kInvalidArgument, "a: ");
}

TEST(FieldsTest, RequiredFields) {
  const Json object = MustParse(R"({"null":null,"empty":"","nul":"a\u0000b","path":"/x"})");
  std::string path;
  for (const auto& [name, fault] :
       std::vector<std::pair<const char*, const char*>>{{"gone", "gone: is required"},
                                                        {"null", "null: is required"},
                                                        {"empty", "expected a path, got \"\""},
                                                        {"nul", "got one with a NUL"}}) {
    Fields fields(object);
    fields.RequirePath(name, path);
    EXPECT_ERROR(fields.status(), Code::kInvalidArgument, fault);
  }
  Fields fields(object);
  fields.RequirePath("path", path);
  EXPECT_OK(fields.status());
  EXPECT_EQ(path, "/x");
}

TEST(FieldsTest, NotAnObject) {
  const Json list = MustParse("[1]");
  const Fields body(list);
  EXPECT_ERROR(body.status(), Code::kInvalidArgument, "the body: expected an object, got a list");
  const Fields inner(list, "a.");
  EXPECT_ERROR(inner.status(), Code::kInvalidArgument, "a: expected an object");
}

TEST(FieldsTest, OneValueForAllOrOneForEach) {
  const Json object =
      MustParse(R"({"one":5,"each":[1,null,3],"short":[1],"list":[4,5],"lists":[[1],null,[2,3]]})");
  Fields fields(object);
  for (std::size_t i = 0; i < 3; ++i) {
    int one = 0;
    int each = 9;
    std::vector<int> list;
    std::vector<int> lists = {9};
    fields.ReadFor(i, 3, "one", one);
    fields.ReadFor(i, 3, "each", each);
    fields.ReadFor(i, 3, "list", list);
    fields.ReadFor(i, 3, "lists", lists);
    ASSERT_OK(fields.status());
    EXPECT_EQ(one, 5);
    EXPECT_EQ(each, std::vector({1, 9, 3})[i]);
    EXPECT_EQ(list, std::vector({4, 5}));
    EXPECT_EQ(lists, (std::vector<std::vector<int>>{{1}, {9}, {2, 3}})[i]);
  }
  int value = 0;
  fields.ReadFor(0, 3, "short", value);
  EXPECT_ERROR(fields.status(), Code::kInvalidArgument, "short: expected one value or 3, got 1");
}

TEST(FieldsTest, WhatAsksForNothingIsNothing) {
  for (const char* nothing : {"null", "false", "\"\"", "[]", "{}", "[null,[]]"}) {
    EXPECT_TRUE(IsNothing(MustParse(nothing))) << nothing;
  }
  for (const char* something : {"true", "0", "\"x\"", "[1]", "{\"a\":null}", "[null,\"x\"]"}) {
    EXPECT_FALSE(IsNothing(MustParse(something))) << something;
  }
}

TEST(FieldsTest, LongTextsAreCutBetweenCharacters) {
  std::string text(39, 'a');
  text += "€€";
  EXPECT_EQ(Describe(Json(text)), "\"" + std::string(39, 'a') + "...\"");
}

}  // namespace
}  // namespace syncline::serve
