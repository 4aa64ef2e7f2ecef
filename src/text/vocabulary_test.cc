#include "text/vocabulary.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/result_matchers.h"
#include "base/temp_dir.h"

namespace syncline::text {
namespace {

using base::Code;
using base::FileSystem;
using base::Result;

Result<Vocabulary> LoadText(std::string_view tokenizer) {
  const base::TempDir directory;
  SYNCLINE_TRY(
      WriteTextAtomically(FileSystem::Posix(), directory / "tokenizer.json", tokenizer, false));
  return Vocabulary::Load(FileSystem::Posix(), directory.path());
}

// A tokenizer.json of these parts.
Result<Vocabulary> LoadParts(std::string_view vocab, std::string_view added = "[]",
                             std::string_view decoder = R"({"type":"Fuse"})",
                             std::string_view type = "BPE") {
  return LoadText(fmt::format(
      R"({{"model":{{"type":"{}","vocab":{},"merges":[]}},"added_tokens":{},"decoder":{}}})", type,
      vocab, added, decoder));
}

Result<Vocabulary> LoadDecoder(std::string_view decoder) {
  return LoadParts(R"({"a":0})", "[]", decoder);
}

TEST(VocabularyTest, IdsMayHaveGaps) {
  ASSERT_OK_AND_ASSIGN(const Vocabulary vocabulary, LoadParts(R"({"a":0,"b":7})"));
  EXPECT_EQ(vocabulary.size(), 8U);
  EXPECT_FALSE(vocabulary.empty());
  EXPECT_EQ(vocabulary.Bytes(0), "a");
  EXPECT_EQ(vocabulary.Bytes(7), "b");
  for (const TokenId unknown : {1, 8, -1, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(vocabulary.Bytes(unknown), "");
    EXPECT_FALSE(vocabulary.IsSpecial(unknown));
  }
}

TEST(VocabularyTest, NoTable) {
  const Vocabulary vocabulary;
  EXPECT_TRUE(vocabulary.empty());
  EXPECT_EQ(Decode(vocabulary, {0, 1, -5}, true), "");
}

// The reference numbers added tokens itself, whatever the file says.
TEST(VocabularyTest, AddedTokensAreNumberedAsInTheReference) {
  ASSERT_OK_AND_ASSIGN(
      const Vocabulary vocabulary,
      LoadParts(R"({"a":0,"<s>":1})",
                R"([{"id":1,"content":"<s>","special":true},{"id":90,"content":"<x>"},
                    {"id":91,"content":""},{"id":92,"content":"<y>","special":true},
                    {"id":93,"content":"<x>","special":true}])"));
  EXPECT_EQ(vocabulary.size(), 4U);
  EXPECT_FALSE(vocabulary.IsSpecial(0));
  EXPECT_TRUE(vocabulary.IsSpecial(1));
  EXPECT_EQ(vocabulary.Bytes(2), "<x>");
  EXPECT_TRUE(vocabulary.IsSpecial(2));
  EXPECT_EQ(vocabulary.Bytes(3), "<y>");
  EXPECT_TRUE(vocabulary.IsSpecial(3));
}

TEST(VocabularyTest, BytesOfTokens) {
  ASSERT_OK_AND_ASSIGN(const Vocabulary bytes,
                       LoadParts(R"({"Ġé":0})", "null", R"({"type":"ByteLevel"})"));
  EXPECT_EQ(bytes.Bytes(0), " \xE9");
  EXPECT_FALSE(bytes.strips_leading_space());
  ASSERT_OK_AND_ASSIGN(const Vocabulary pieces, LoadParts(R"([["▁a",0],["<0xE9>",-1.5]])", "[]",
                                                          R"({"type":"Sequence","decoders":[
                    {"type":"Replace","pattern":{"String":"▁"},"content":" "},
                    {"type":"ByteFallback"},{"type":"Fuse"},
                    {"type":"Strip","content":" ","start":1,"stop":0}]})",
                                                          "Unigram"));
  EXPECT_EQ(pieces.Bytes(0), " a");
  EXPECT_EQ(pieces.Bytes(1), "\xE9");
  EXPECT_TRUE(pieces.strips_leading_space());
}

TEST(VocabularyTest, ModelsOfOldFilesHaveNoType) {
  EXPECT_OK(LoadText(R"({"model":{"vocab":{"a":0},"merges":[]}})"));
  EXPECT_OK(LoadText(R"({"model":{"vocab":[["a",0]]}})"));
}

TEST(VocabularyTest, MissingFile) {
  const base::TempDir directory;
  EXPECT_ERROR(Vocabulary::Load(FileSystem::Posix(), directory.path()), Code::kNotFound,
               "tokenizer.json");
}

TEST(VocabularyTest, FaultsNameTheFileAndTheToken) {
  for (const char* id : {"-1", "2147483648", "4294967296", "18446744073709551616", "4194304", "0.5",
                         "\"1\"", "null", "1e30"}) {
    EXPECT_ERROR(LoadParts(fmt::format(R"({{"the":{}}})", id)), Code::kCorrupt,
                 "tokenizer.json: token \"the\" has the id");
    EXPECT_ERROR(LoadParts(R"({"a":0})", fmt::format(R"([{{"content":"<s>","id":{}}}])", id)),
                 Code::kCorrupt, "token \"<s>\" has the id");
  }
  EXPECT_ERROR(LoadParts(R"({"a":3,"b":3})"), Code::kCorrupt, "\"a\" and \"b\" both have the id 3");
  EXPECT_ERROR(LoadParts("[]"), Code::kCorrupt, "vocab is not an object");
  EXPECT_ERROR(LoadParts("{}", "[]", "null", "Unigram"), Code::kCorrupt, "vocab is not a list");
  EXPECT_ERROR(LoadParts(R"([["a",0],[7,0]])", "[]", "null", "Unigram"), Code::kCorrupt,
               "piece 1 of the vocab is [7,0]");
  EXPECT_ERROR(LoadParts("{}", "[]", "null", "Tiktoken"), Code::kIncompatible, "\"Tiktoken\"");
  EXPECT_ERROR(LoadParts("{}", "{}"), Code::kCorrupt, "added_tokens is not a list");
  EXPECT_ERROR(LoadParts("{}", R"([{"id":1}])"), Code::kCorrupt, "no content or no id");
  EXPECT_ERROR(LoadParts("{}", R"([{"id":1,"content":"x","special":1}])"), Code::kCorrupt,
               "\"special\" is 1");
  EXPECT_ERROR(LoadText("[]"), Code::kCorrupt, "no model");
  EXPECT_ERROR(LoadText(R"({"model":{}})"), Code::kCorrupt, "no vocab");
  EXPECT_ERROR(LoadText(R"({"model":{"vocab":{},"type":1}})"), Code::kCorrupt, "type");
  EXPECT_ERROR(LoadText("{"), Code::kCorrupt, "tokenizer.json: invalid JSON");
}

TEST(VocabularyTest, DecodersThatAreNotKnown) {
  for (const char* decoder : {
           R"({"type":"CTC"})",
           R"({"type":"WordPiece","prefix":"##","cleanup":true})",
           R"({"type":"Replace","pattern":{"Regex":"a+"},"content":""})",
           R"({"type":"Replace","pattern":{"String":""},"content":""})",
           R"({"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"ByteLevel"}]})",
           R"({"type":"Sequence","decoders":[{"type":"ByteFallback"},
                {"type":"Strip","content":" ","start":1,"stop":0}]})",
           R"({"type":"Sequence","decoders":[{"type":"Fuse"},
                {"type":"Strip","content":" ","start":1,"stop":1}]})",
           R"({"type":"Sequence","decoders":[{"type":"Fuse"},
                {"type":"Strip","content":" ","start":1,"stop":0},
                {"type":"Strip","content":" ","start":1,"stop":0}]})",
       }) {
    SCOPED_TRACE(decoder);
    EXPECT_ERROR(LoadDecoder(decoder), Code::kIncompatible, "decoder: ");
  }
  for (const char* decoder : {
           R"({})",
           R"([])",
           R"({"type":1})",
           R"({"type":"Sequence"})",
           R"({"type":"Replace","content":""})",
           R"({"type":"Replace","pattern":{"String":"a"}})",
           R"({"type":"Replace","pattern":{"String":1},"content":""})",
           R"({"type":"Strip","content":"","start":1,"stop":0})",
           R"({"type":"Strip","content":"ab","start":1,"stop":0})",
           R"({"type":"Strip","content":" ","start":-1,"stop":0})",
           R"({"type":"Metaspace"})",
           R"({"type":"Metaspace","replacement":"_","prepend_scheme":1})",
       }) {
    SCOPED_TRACE(decoder);
    EXPECT_ERROR(LoadDecoder(decoder), Code::kCorrupt, "decoder: ");
  }
}

// A Sequence of so many equal decoders.
std::string Repeated(int count, const std::string& decoder) {
  const std::vector<std::string> all(static_cast<std::size_t>(count), decoder);
  return fmt::format(R"({{"type":"Sequence","decoders":[{}]}})", fmt::join(all, ","));
}

TEST(VocabularyTest, HostileDecodersAreBounded) {
  EXPECT_ERROR(LoadDecoder(Repeated(40, R"({"type":"Fuse"})")), Code::kIncompatible,
               "more than 16");
  // A short file that asks for much memory.
  const char* grow = R"({"type":"Replace","pattern":{"String":"a"},"content":"aaaaaaaa"})";
  EXPECT_ERROR(LoadDecoder(Repeated(12, grow)), Code::kLimitExceeded, "1048576 bytes");
  const std::string large(2 << 20, 'x');
  EXPECT_ERROR(LoadParts(fmt::format(R"({{"{}":0}})", large)), Code::kLimitExceeded,
               "1048576 bytes");
}

}  // namespace
}  // namespace syncline::text
