// Token ids to text, without the tokenizer: a table of each token's bytes.
//
// Source of the rules: the `decoder` entry of a Hugging Face tokenizer.json (decoder_rules.h). Two
// families are known: byte-level (GPT-2's byte to character table) and SentencePiece-like (U+2581
// for a space, <0xNN> byte tokens, one leading space dropped).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "text/decoder_rules.h"

namespace syncline::text {

using TokenId = std::int32_t;

// Immutable, thread-safe.
class Vocabulary {
 public:
  // Reads `directory`/tokenizer.json. kNotFound if there is none, kCorrupt, kIncompatible or
  // kLimitExceeded with what is wrong. Ids may have gaps; none may be 2^22 or more.
  static base::Result<Vocabulary> Load(base::FileSystem& files, const std::string& directory);
  // No table: every token's text is empty.
  Vocabulary() = default;

  std::size_t size() const { return tokens_.size(); }  // one more than the highest id
  bool empty() const { return tokens_.empty(); }
  // The bytes of a token; they need not be whole UTF-8 characters. Empty for an id that is not in
  // the table.
  std::string_view Bytes(TokenId id) const;
  bool IsSpecial(TokenId id) const;
  // Is a space at the very start of a text dropped (SentencePiece)?
  bool strips_leading_space() const { return strip_ == " " && strip_count_ > 0; }

 private:
  friend class Detokenizer;
  friend class VocabularyBuilder;

  struct Piece {  // a part of bytes_
    std::uint32_t begin = 0;
    std::uint32_t size = 0;
  };
  struct Token {
    Piece later;
    Piece first;  // where it is the first of a text
    bool is_known = false;
    bool is_special = false;
    bool later_is_byte = false;  // of a run of byte tokens
    bool first_is_byte = false;
  };

  // Null for an id that is not in the table.
  const Token* Find(TokenId id) const;
  std::string_view Bytes(const Piece& piece) const {
    return std::string_view(bytes_).substr(piece.begin, piece.size);
  }

  std::vector<Token> tokens_;
  std::string bytes_;  // of all tokens
  DecoderRules::Join join_ = DecoderRules::Join::kText;
  std::string strip_;
  std::uint64_t strip_count_ = 0;
};

// Turns a growing list of tokens into text, giving out only whole characters.
class Detokenizer {
 public:
  // `vocabulary` must outlive it.
  Detokenizer(const Vocabulary& vocabulary, bool skip_special_tokens);

  // The text that has become certain with this token: all bytes up to the last whole UTF-8
  // character. Bytes that can never become a character come out as U+FFFD, as in the reference. A
  // run of SentencePiece's byte tokens is certain only where it ends, because one bad byte turns
  // each byte of the run into U+FFFD.
  std::string Push(TokenId token);
  // What is left: an unfinished character comes out as U+FFFD.
  std::string Finish();

 private:
  void PushRunByte(char byte, std::string& text);
  void EndRun(std::string& text);
  void StripStart(std::string& text);

  const Vocabulary* vocabulary_;
  bool skip_special_tokens_;
  bool at_start_ = true;
  std::uint64_t strips_left_;  // characters that may still be dropped at the start
  std::string pending_;        // bytes of an unfinished character, or of a run of byte tokens
  std::size_t whole_ = 0;      // of a run: so many bytes of pending_ are whole characters
  bool run_is_bad_ = false;    // each of its bytes is U+FFFD
};

// All of it at once; equals the reference's decode(ids, skip_special_tokens,
// clean_up_tokenization_spaces=False).
std::string Decode(const Vocabulary& vocabulary, const std::vector<TokenId>& tokens,
                   bool skip_special_tokens);

}  // namespace syncline::text
