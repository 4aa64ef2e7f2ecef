#include "layout/known_names.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <vector>

namespace syncline::layout {
namespace {

// By the definition, without a table.
std::size_t DistanceSlowly(std::string_view a, std::string_view b) {
  if (a.empty() || b.empty()) return std::max(a.size(), b.size());
  const std::size_t replaced =
      DistanceSlowly(a.substr(1), b.substr(1)) + (a.front() == b.front() ? 0 : 1);
  return std::min(
      {replaced, DistanceSlowly(a.substr(1), b) + 1, DistanceSlowly(a, b.substr(1)) + 1});
}

RC_GTEST_PROP(KnownNamesTest, EditDistance, ()) {
  const auto word = [] {
    const auto length = *rc::gen::inRange<std::size_t>(0, 6);
    return *rc::gen::container<std::string>(length, rc::gen::element('a', 'b', 'c'));
  };
  const std::string a = word();
  const std::string b = word();
  RC_ASSERT(EditDistance(a, b) == DistanceSlowly(a, b));
}

TEST(KnownNamesTest, NearestOfManyNames) {
  std::vector<std::string> names;
  for (int layer = 0; layer < 300; ++layer) {
    for (const char* part : {"q_proj.weight", "k_proj.weight", "k_norm.weight"}) {
      names.push_back(fmt::format("model.layers.{}.self_attn.{}", layer, part));
    }
  }
  const std::vector<std::string_view> known(names.begin(), names.end());
  EXPECT_EQ(NearestName("model.layers.217.self_attn.k_proj", known),
            "model.layers.217.self_attn.k_proj.weight");
  EXPECT_EQ(NearestName("model.layers.217.self_attn.kproj.weight", known),
            "model.layers.217.self_attn.k_proj.weight");
  EXPECT_EQ(NearestName("language_model.layers.217.self_attn.k_norm.weight", known),
            "model.layers.217.self_attn.k_norm.weight");
  EXPECT_EQ(NearestName("vision", known), std::nullopt);
  EXPECT_EQ(NearestName(std::string(1'000'000, 'm'), known), std::nullopt);
  EXPECT_EQ(NearestName("model", {}), std::nullopt);
}

TEST(KnownNamesTest, TheOrderOfTheNamesDoesNotMatter) {
  const std::vector<std::string_view> one = {"aaab", "aaac"};
  const std::vector<std::string_view> other = {"aaac", "aaab"};
  EXPECT_EQ(NearestName("aaaa", one), "aaab");
  EXPECT_EQ(NearestName("aaaa", other), "aaab");
}

TEST(KnownNamesTest, CountsEditsAndNotOnlyWhatTheEndsShare) {
  EXPECT_EQ(NearestName("_middle_", std::vector<std::string_view>{"_miXXXX_", "-middle-"}),
            "-middle-");
  // What the start has taken is not counted for the end again.
  std::vector<std::string> others;
  for (int i = 0; i < 200; ++i) others.push_back(fmt::format("a{}", i));
  std::vector<std::string_view> known(others.begin(), others.end());
  known.emplace_back("aaa");
  EXPECT_EQ(NearestName("aaaa", known), "aaa");
}

TEST(KnownNamesTest, ListsAndClips) {
  std::vector<std::string_view> names = {"a"};
  EXPECT_EQ(ListText(names), "a");
  names.push_back("b");
  EXPECT_EQ(ListText(names), "a and b");
  names.insert(names.end(), {"c", "d", "e", "f", "g", "h"});
  EXPECT_EQ(ListText(names), "a, b, c, d, e, f, g and h");
  names.push_back("i");
  EXPECT_EQ(ListText(names), "a, b, c, d, e, f, g and 2 more");
  EXPECT_EQ(ClippedName("abc"), "abc");
  EXPECT_EQ(ClippedName(std::string(300, 'x')), std::string(200, 'x') + "... (300 bytes)");
}

}  // namespace
}  // namespace syncline::layout
