#include "text/utf8.h"
#include "text/vocabulary.h"

namespace syncline::text {

using Join = DecoderRules::Join;

Detokenizer::Detokenizer(const Vocabulary& vocabulary, bool skip_special_tokens)
    : vocabulary_(&vocabulary),
      skip_special_tokens_(skip_special_tokens),
      strips_left_(vocabulary.strip_count_) {}

std::string Detokenizer::Push(TokenId token) {
  // The reference leaves out unknown and skipped tokens before it looks for runs and for the first.
  const Vocabulary::Token* found = vocabulary_->Find(token);
  if (found == nullptr || (skip_special_tokens_ && found->is_special)) return {};
  const std::string_view bytes = vocabulary_->Bytes(at_start_ ? found->first : found->later);
  const bool is_byte = at_start_ ? found->first_is_byte : found->later_is_byte;
  at_start_ = false;

  std::string text;
  if (vocabulary_->join_ == Join::kBytes) {
    pending_ += bytes;
    TakeCertainUtf8(pending_, text);
  } else if (is_byte) {
    PushRunByte(bytes.front(), text);
  } else {
    EndRun(text);
    text += bytes;
  }
  StripStart(text);
  return text;
}

std::string Detokenizer::Finish() {
  std::string text;
  if (vocabulary_->join_ == Join::kBytes) {
    if (!pending_.empty()) text = kReplacement;
    pending_.clear();
  } else {
    EndRun(text);
  }
  StripStart(text);
  return text;
}

void Detokenizer::PushRunByte(char byte, std::string& text) {
  pending_.push_back(byte);
  if (!run_is_bad_) {
    Utf8Step next;
    whole_ += WholeUtf8(std::string_view(pending_).substr(whole_), next);
    run_is_bad_ = next.kind == Utf8Step::Kind::kInvalid;
  }
  if (!run_is_bad_) return;
  for (std::size_t i = 0; i < pending_.size(); ++i) text += kReplacement;
  pending_.clear();
}

void Detokenizer::EndRun(std::string& text) {
  if (whole_ == pending_.size()) {
    text += pending_;
  } else {
    for (std::size_t i = 0; i < pending_.size(); ++i) text += kReplacement;
  }
  pending_.clear();
  whole_ = 0;
  run_is_bad_ = false;
}

void Detokenizer::StripStart(std::string& text) {
  const std::string& strip = vocabulary_->strip_;
  std::size_t dropped = 0;
  while (strips_left_ > 0 && dropped < text.size()) {
    if (!std::string_view(text).substr(dropped).starts_with(strip)) {
      strips_left_ = 0;
      break;
    }
    dropped += strip.size();
    --strips_left_;
  }
  text.erase(0, dropped);
}

std::string Decode(const Vocabulary& vocabulary, const std::vector<TokenId>& tokens,
                   bool skip_special_tokens) {
  Detokenizer detokenizer(vocabulary, skip_special_tokens);
  std::string text;
  for (const TokenId token : tokens) text += detokenizer.Push(token);
  return text + detokenizer.Finish();
}

}  // namespace syncline::text
