#include "serve/openai_logprobs.h"

#include <algorithm>
#include <utility>

#include "serve/meta_info.h"

namespace syncline::serve {
namespace {

using base::Json;
using engine::TokenLogprob;

Json Value(const TokenLogprob& entry) {
  return entry.logprob ? Json(static_cast<double>(*entry.logprob)) : Json();
}

Json ChatEntry(const TokenLogprob& entry, const text::Vocabulary& vocabulary) {
  Json::Array bytes;
  for (const char byte : vocabulary.Bytes(entry.token)) {
    bytes.emplace_back(static_cast<std::uint64_t>(static_cast<unsigned char>(byte)));
  }
  return Json(Json::Object{{"token", TokenText(vocabulary, entry.token)},
                           {"logprob", Value(entry)},
                           {"bytes", std::move(bytes)}});
}

std::uint64_t Characters(std::string_view text) {
  return static_cast<std::uint64_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

}  // namespace

Json ChatLogprobs(const engine::Logprobs& logprobs, const text::Vocabulary& vocabulary) {
  Json::Array content;
  for (std::size_t i = 0; i < logprobs.tokens.size(); ++i) {
    Json::Array top;
    if (i < logprobs.top.size()) {
      for (const TokenLogprob& entry : logprobs.top[i]) {
        top.push_back(ChatEntry(entry, vocabulary));
      }
    }
    Json entry = ChatEntry(logprobs.tokens[i], vocabulary);
    Json::Object members = *entry.object();
    members.emplace_back("top_logprobs", std::move(top));
    content.emplace_back(std::move(members));
  }
  return Json(Json::Object{{"content", std::move(content)}, {"refusal", nullptr}});
}

void CompletionLogprobs::Add(const engine::Logprobs& logprobs) {
  for (std::size_t i = 0; i < logprobs.tokens.size(); ++i) {
    const std::string text = TokenText(*vocabulary_, logprobs.tokens[i].token);
    Json::Object top;
    if (i < logprobs.top.size()) {
      for (const TokenLogprob& entry : logprobs.top[i]) {
        std::string name = TokenText(*vocabulary_, entry.token);
        // Tokens that are no whole characters may look alike: the more probable one stays.
        const bool there = std::ranges::any_of(
            top, [&](const Json::Member& other) { return other.first == name; });
        if (!there) top.emplace_back(std::move(name), Value(entry));
      }
    }
    top_.push_back(top.empty() ? Json() : Json(std::move(top)));
    values_.push_back(Value(logprobs.tokens[i]));
    offsets_.emplace_back(offset_);
    offset_ += Characters(text);
    tokens_.emplace_back(text);
  }
}

Json CompletionLogprobs::Take() {
  return Json(Json::Object{{"tokens", std::exchange(tokens_, {})},
                           {"token_logprobs", std::exchange(values_, {})},
                           {"top_logprobs", std::exchange(top_, {})},
                           {"text_offset", std::exchange(offsets_, {})}});
}

}  // namespace syncline::serve
