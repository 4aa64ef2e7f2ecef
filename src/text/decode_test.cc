// Decoding against the `tokenizers` library. The cases are those below, or those of the file that
// SYNCLINE_DECODE_CASES names (tests/text/test_decode.py writes one).

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstdlib>
#include <iostream>

#include "base/json.h"
#include "base/result_matchers.h"
#include "base/temp_dir.h"
#include "text/utf8.h"
#include "text/vocabulary.h"

namespace syncline::text {
namespace {

using base::FileSystem;
using base::Json;
using Ids = std::vector<TokenId>;

// The model writes H, " ", the four bytes of U+1F600, the three of U+20AC in two tokens.
constexpr const char* kByteLevel = R"({
  "model": {"type": "BPE", "merges": [], "vocab":
    {"H": 0, "Ġ": 1, "ð": 2, "Ł": 3, "ĺ": 4, "Ģ": 5, "âĤ": 6, "¬": 7, "Hi": 9}},
  "decoder": {"type": "ByteLevel"},
  "added_tokens": [{"id": 9, "content": "<end>", "special": true},
                   {"id": 9, "content": "é ", "special": false}]})";
constexpr const char* kSentencePiece = R"({
  "model": {"type": "BPE", "merges": [], "vocab":
    {"<s>": 0, "▁Hi": 1, "▁": 2, "you": 3, "<0xE2>": 4, "<0x82>": 5, "<0xAC>": 6, "<0x41>": 7}},
  "decoder": {"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
    {"type": "ByteFallback"}, {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
  "added_tokens": [{"id": 0, "content": "<s>", "special": true}]})";

base::Result<Vocabulary> LoadText(std::string_view tokenizer) {
  const base::TempDir directory;
  SYNCLINE_TRY(
      WriteTextAtomically(FileSystem::Posix(), directory / "tokenizer.json", tokenizer, false));
  return Vocabulary::Load(FileSystem::Posix(), directory.path());
}

// Decodes token by token, and checks what must hold on the way.
std::string DecodeInSteps(const Vocabulary& vocabulary, const Ids& ids, bool skip) {
  Detokenizer detokenizer(vocabulary, skip);
  std::string text;
  Ids so_far;
  for (const TokenId id : ids) {
    const std::string piece = detokenizer.Push(id);
    EXPECT_TRUE(IsUtf8(piece)) << fmt::format("after {} tokens", so_far.size());
    text += piece;
    so_far.push_back(id);
    if (so_far.size() < 8) {
      EXPECT_TRUE(Decode(vocabulary, so_far, skip).starts_with(text));
    }
  }
  return text + detokenizer.Finish();
}

void Check(const Vocabulary& vocabulary, const Json& test) {
  Ids ids;
  for (const Json& id : *test.Find("ids")->array()) {
    ids.push_back(static_cast<TokenId>(*id.unsigned_integer()));
  }
  const bool skip = std::get<bool>(test.Find("skip")->value());
  const std::string& expected = *test.Find("text")->string();
  EXPECT_EQ(Decode(vocabulary, ids, skip), expected) << ToText(test);
  EXPECT_EQ(DecodeInSteps(vocabulary, ids, skip), expected) << ToText(test);
}

void CheckFile(const std::string& path) {
  ASSERT_OK_AND_ASSIGN(const std::string text,
                       ReadText(FileSystem::Posix(), path, std::uint64_t{1} << 30));
  ASSERT_OK_AND_ASSIGN(const Json json, base::ParseJson(text));
  std::size_t count = 0;
  for (const Json& entry : *json.array()) {
    ASSERT_OK_AND_ASSIGN(const Vocabulary vocabulary,
                         Vocabulary::Load(FileSystem::Posix(), *entry.Find("directory")->string()));
    for (const Json& test : *entry.Find("cases")->array()) {
      Check(vocabulary, test);
      if (testing::Test::HasFailure()) return;
      ++count;
    }
  }
  std::cout << count << " cases\n";
}

TEST(Decode, EqualsTheReference) {
  if (const char* path = std::getenv("SYNCLINE_DECODE_CASES"); path != nullptr) {
    return CheckFile(path);
  }
  ASSERT_OK_AND_ASSIGN(const Vocabulary bytes, LoadText(kByteLevel));
  for (const char* test : {
           R"({"ids": [0, 1, 9, 0], "skip": true, "text": "H H"})",
           R"({"ids": [2, 3, 4, 5], "skip": true, "text": "😀"})",
           R"({"ids": [2, 3, 4], "skip": true, "text": "�"})",
           R"({"ids": [2, 3, 0, 4, 6], "skip": true, "text": "�H��"})",
           R"({"ids": [6, 8, 7], "skip": true, "text": "€"})",
           R"({"ids": [6, 9, 7], "skip": true, "text": "€"})",
           R"({"ids": [6, 9, 7], "skip": false, "text": "�<end>�"})",
           R"({"ids": [10, 0, 2147483647], "skip": true, "text": "é H"})",
       }) {
    Check(bytes, base::ParseJson(test).value());
  }
  ASSERT_OK_AND_ASSIGN(const Vocabulary pieces, LoadText(kSentencePiece));
  for (const char* test : {
           R"({"ids": [0, 1, 2, 3], "skip": true, "text": "Hi you"})",
           R"({"ids": [0, 1, 2, 3], "skip": false, "text": "<s> Hi you"})",
           R"({"ids": [2, 2, 3], "skip": true, "text": " you"})",
           R"({"ids": [4, 5, 6, 7], "skip": true, "text": "€A"})",
           R"({"ids": [4, 5, 6, 4, 3], "skip": true, "text": "����you"})",
           R"({"ids": [7, 5, 0, 7], "skip": true, "text": "���"})",
           R"({"ids": [7, 5, 0, 7], "skip": false, "text": "��<s>A"})",
       }) {
    Check(pieces, base::ParseJson(test).value());
  }
}

TEST(Decode, GivesOutWhatIsCertainAtOnce) {
  ASSERT_OK_AND_ASSIGN(const Vocabulary bytes, LoadText(kByteLevel));
  Detokenizer detokenizer(bytes, true);
  EXPECT_EQ(detokenizer.Push(0), "H");
  EXPECT_EQ(detokenizer.Push(6), "");
  EXPECT_EQ(detokenizer.Push(7), "€");
  EXPECT_EQ(detokenizer.Push(2), "");
  EXPECT_EQ(detokenizer.Push(3), "");
  EXPECT_EQ(detokenizer.Push(2), "\uFFFD");
  EXPECT_EQ(detokenizer.Finish(), "\uFFFD");
  EXPECT_EQ(detokenizer.Finish(), "");

  ASSERT_OK_AND_ASSIGN(const Vocabulary pieces, LoadText(kSentencePiece));
  Detokenizer runs(pieces, true);
  EXPECT_EQ(runs.Push(1), "Hi");
  EXPECT_EQ(runs.Push(4), "");
  EXPECT_EQ(runs.Push(5), "");
  EXPECT_EQ(runs.Push(6), "");  // one more byte could still spoil the run
  EXPECT_EQ(runs.Push(3), "€you");
  EXPECT_EQ(runs.Push(7), "");
  EXPECT_EQ(runs.Push(6), "\uFFFD\uFFFD");
  EXPECT_EQ(runs.Push(7), "\uFFFD");
  EXPECT_EQ(runs.Push(2), " ");
  EXPECT_EQ(runs.Push(7), "");
  EXPECT_EQ(runs.Finish(), "A");
}

// All but the last character comes out as soon as its bytes are there.
RC_GTEST_PROP(DecodeProperty, BytesAreHeldBackForOneCharacterAtMost, ()) {
  static const Vocabulary vocabulary = LoadText(kByteLevel).value();
  const Ids ids = *rc::gen::container<Ids>(rc::gen::inRange(0, 11));
  Detokenizer detokenizer(vocabulary, false);
  std::string text;
  std::string bytes;
  for (const TokenId id : ids) {
    text += detokenizer.Push(id);
    bytes += vocabulary.Bytes(id);
  }
  std::string certain;
  TakeCertainUtf8(bytes, certain);
  RC_ASSERT(text == certain);
  RC_ASSERT(text + detokenizer.Finish() == Decode(vocabulary, ids, false));
}

}  // namespace
}  // namespace syncline::text
