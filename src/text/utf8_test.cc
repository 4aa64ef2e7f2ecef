#include "text/utf8.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "text/byte_level.h"

namespace syncline::text {
namespace {

std::string Lossy(std::string bytes) {
  std::string text;
  TakeCertainUtf8(bytes, text);
  if (!bytes.empty()) text += kReplacement;
  return text;
}

std::string Replacements(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += kReplacement;
  return text;
}

// Unicode Standard, section 3.9, tables 3-8 to 3-11.
TEST(Utf8Test, OneReplacementForEachMaximalSubpart) {
  EXPECT_EQ(Lossy("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), Replacements(8) + "A");
  EXPECT_EQ(Lossy("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), Replacements(8) + "A");
  EXPECT_EQ(Lossy("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"),
            Replacements(5) + "A" + Replacements(2) + "B");
  EXPECT_EQ(Lossy("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), Replacements(4) + "A");
}

TEST(Utf8Test, KeepsWhatMayStillBecomeACharacter) {
  for (const std::string character : {"\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"}) {
    for (std::size_t size = 1; size < character.size(); ++size) {
      std::string pending("x");
      pending += character.substr(0, size);
      std::string text;
      TakeCertainUtf8(pending, text);
      EXPECT_EQ(text, "x");
      EXPECT_EQ(pending, character.substr(0, size));
    }
    EXPECT_TRUE(IsUtf8(character));
    EXPECT_FALSE(IsUtf8(character.substr(1)));
    EXPECT_FALSE(IsUtf8(character.substr(0, 1)));
  }
}

TEST(Utf8Test, CodePoints) {
  EXPECT_EQ(CodePoint("A"), 0x41U);
  EXPECT_EQ(CodePoint("\xC3\xA9"), 0xE9U);
  EXPECT_EQ(CodePoint("\xE2\x82\xAC"), 0x20ACU);
  EXPECT_EQ(CodePoint("\xF0\x9F\x98\x80"), 0x1F600U);
}

// Bytes of which many form characters.
rc::Gen<std::string> Bytes() {
  return rc::gen::container<std::string>(rc::gen::element('a', '\xC3', '\xA9', '\xE2', '\x82',
                                                          '\xAC', '\xF0', '\x9F', '\x98', '\x80',
                                                          '\xFF', '\xED', '\xA0', '\xF4', '\x90'));
}

RC_GTEST_PROP(Utf8Test, CertainIsCertain, ()) {
  const std::string bytes = *Bytes();
  const std::string more = *Bytes();
  std::string pending = bytes;
  std::string text;
  TakeCertainUtf8(pending, text);
  RC_ASSERT(IsUtf8(text));
  RC_ASSERT(pending.size() < 4);
  pending += more;
  TakeCertainUtf8(pending, text);
  std::string all = bytes + more;
  std::string at_once;
  TakeCertainUtf8(all, at_once);
  RC_ASSERT(text == at_once);
  RC_ASSERT(pending == all);
}

TEST(ByteLevelTest, Table) {
  EXPECT_EQ(ByteLevelBytes("Hello"), "Hello");
  EXPECT_EQ(ByteLevelBytes("\u0120the"), " the");
  EXPECT_EQ(ByteLevelBytes("\u010A"), "\n");
  EXPECT_EQ(ByteLevelBytes("\u0100\u0121\u0142\u0143"), std::string("\0\x7F\xA0\xAD", 4));
  EXPECT_EQ(ByteLevelBytes("\u00C3\u00A9"), "\u00E9");
  // No character of the table: the token as it is written.
  EXPECT_EQ(ByteLevelBytes("\u0120a b"), "\u0120a b");
  EXPECT_EQ(ByteLevelBytes("\u0144"), "\u0144");
  EXPECT_EQ(ByteLevelBytes("\u20AC"), "\u20AC");
}

}  // namespace
}  // namespace syncline::text
