#include "text/stop_strings.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstdint>

namespace syncline::text {
namespace {

using Strings = std::vector<std::string>;

// What comes out of all pieces and Finish.
StopStrings::Found RunAll(StopStrings stops, const Strings& pieces) {
  StopStrings::Found all;
  for (const std::string& piece : pieces) {
    StopStrings::Found found = stops.Push(piece);
    all.text += found.text;
    if (!found.matched) continue;
    all.matched = found.matched;
    EXPECT_EQ(stops.Push("more").text, "");
    break;
  }
  all.text += stops.Finish();
  return all;
}

// The same by searching each beginning of the whole text.
StopStrings::Found Naive(const Strings& stops, bool keep, const std::string& text) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    const std::string start = text.substr(0, end);
    std::optional<std::string> longest;
    for (const std::string& stop : stops) {
      if (stop.empty() || !start.ends_with(stop)) continue;
      if (!longest || stop.size() > longest->size()) longest = stop;
    }
    if (longest) {
      return {.text = keep ? start : start.substr(0, end - longest->size()), .matched = longest};
    }
  }
  return {.text = text, .matched = std::nullopt};
}

TEST(StopStringsTest, HoldsBackOnlyWhatMayBeABeginning) {
  StopStrings stops({"END", "\n\n"}, false);
  EXPECT_EQ(stops.Push("one E").text, "one ");
  EXPECT_EQ(stops.Push("N").text, "");
  EXPECT_EQ(stops.Push("Es").text, "ENEs");
  EXPECT_EQ(stops.Push("two\n").text, "two");
  const StopStrings::Found found = stops.Push("\nthree");
  EXPECT_EQ(found.text, "");
  EXPECT_EQ(found.matched, "\n\n");
  EXPECT_EQ(stops.Finish(), "");
}

TEST(StopStringsTest, KeepsTheMatchWhenTold) {
  const auto found = RunAll(StopStrings({"stop"}, true), {"a st", "op b"});
  EXPECT_EQ(found.text, "a stop");
  EXPECT_EQ(found.matched, "stop");
}

TEST(StopStringsTest, TheMatchThatIsCompleteFirstWins) {
  EXPECT_EQ(RunAll(StopStrings({"abcd", "bc"}, false), {"xabcd"}).matched, "bc");
  EXPECT_EQ(RunAll(StopStrings({"c", "abc", "bc"}, false), {"xabcd"}).matched, "abc");
  EXPECT_EQ(RunAll(StopStrings({"ab", "a"}, false), {"xab"}).matched, "a");
}

TEST(StopStringsTest, WithoutStopStringsAllPassesAtOnce) {
  StopStrings stops({"", ""}, false);
  EXPECT_EQ(stops.Push("text").text, "text");
  EXPECT_EQ(stops.Finish(), "");
}

// Few letters, so that texts and stop strings overlap in many ways.
rc::Gen<std::string> Letters() {
  return rc::gen::container<std::string>(rc::gen::element('a', 'a', 'b', 'c'));
}

RC_GTEST_PROP(StopStringsTest, EqualsNaiveSearchForAllSplits, ()) {
  const Strings stops = *rc::gen::container<Strings>(Letters());
  const Strings pieces = *rc::gen::container<Strings>(Letters());
  const bool keep = *rc::gen::arbitrary<bool>();
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  const StopStrings::Found expected = Naive(stops, keep, text);
  const StopStrings::Found found = RunAll(StopStrings(stops, keep), pieces);
  RC_CLASSIFY(found.matched.has_value(), "matched");
  RC_ASSERT(found.text == expected.text);
  RC_ASSERT(found.matched == expected.matched);
}

// For each text all ways to cut it in pieces.
TEST(StopStringsTest, AllSplitsOfSmallTexts) {
  const Strings stops = {"aab", "abab", "bb"};
  for (const std::string text : {"aaabab", "ababab", "aababb", "abaaba", "babaab"}) {
    const StopStrings::Found expected = Naive(stops, false, text);
    for (std::uint32_t cuts = 0; cuts < (1U << (text.size() - 1)); ++cuts) {
      Strings pieces = {""};
      for (std::size_t n = 0; n < text.size(); ++n) {
        pieces.back().push_back(text[n]);
        if ((cuts >> n & 1U) != 0) pieces.emplace_back();
      }
      const StopStrings::Found found = RunAll(StopStrings(stops, false), pieces);
      EXPECT_EQ(found.text, expected.text) << text << " cut at " << cuts;
      EXPECT_EQ(found.matched, expected.matched) << text << " cut at " << cuts;
    }
  }
}

// What is held back is no more than the longest end of the text that begins a stop string.
RC_GTEST_PROP(StopStringsTest, HoldsBackAsLittleAsPossible, ()) {
  const Strings texts = *rc::gen::container<Strings>(Letters());
  const Strings pieces = *rc::gen::container<Strings>(Letters());
  StopStrings stops(texts, false);
  std::string all;
  std::string out;
  for (const std::string& piece : pieces) {
    const StopStrings::Found found = stops.Push(piece);
    if (found.matched) return;
    all += piece;
    out += found.text;
    std::size_t held = 0;
    for (const std::string& stop : texts) {
      for (std::size_t n = 1; n <= std::min(stop.size(), all.size()); ++n) {
        if (all.ends_with(stop.substr(0, n))) held = std::max(held, n);
      }
    }
    RC_ASSERT(out == all.substr(0, all.size() - held));
  }
}

}  // namespace
}  // namespace syncline::text
