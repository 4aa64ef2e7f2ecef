#include "text/decoder_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "text/byte_level.h"
#include "text/utf8.h"

namespace syncline::text {
namespace {

using base::Code;
using base::Fail;
using base::Json;
using base::Result;
using base::Status;
using Join = DecoderRules::Join;
using Step = DecoderRules::Step;

constexpr std::size_t kMaxSteps = 16;
constexpr std::size_t kMaxTokenBytes = 1 << 20;

// The string at `key` of a decoder.
Result<std::string> Text(const Json& decoder, std::string_view key) {
  const Json* value = decoder.Find(key);
  if (value == nullptr || value->string() == nullptr) {
    return Fail(Code::kCorrupt, fmt::format("decoder: \"{}\" is not a string: {}", key,
                                            ToText(decoder).substr(0, 200)));
  }
  return *value->string();
}

Result<std::string> Character(const Json& decoder, std::string_view key) {
  SYNCLINE_ASSIGN(std::string text, Text(decoder, key));
  if (text.empty() || NextUtf8(text).size != text.size()) {
    return Fail(Code::kCorrupt,
                fmt::format("decoder: \"{}\" is \"{}\", expected one character", key, text));
  }
  return text;
}

Result<std::uint64_t> Count(const Json& decoder, std::string_view key) {
  const Json* value = decoder.Find(key);
  if (value == nullptr || value->unsigned_integer() == nullptr) {
    return Fail(Code::kCorrupt, fmt::format("decoder: \"{}\" is not a count: {}", key,
                                            ToText(decoder).substr(0, 200)));
  }
  return *value->unsigned_integer();
}

Result<Step> ParseReplace(const Json& decoder) {
  const Json* pattern = decoder.Find("pattern");
  if (pattern == nullptr || pattern->object() == nullptr) {
    return Fail(Code::kCorrupt, "decoder: Replace has no pattern");
  }
  if (pattern->Find("String") == nullptr) {
    return Fail(Code::kIncompatible,
                fmt::format("decoder: Replace with the pattern {}, expected a String",
                            ToText(*pattern).substr(0, 200)));
  }
  Step step{.kind = Step::Kind::kReplace};
  SYNCLINE_ASSIGN(step.from, Text(*pattern, "String"));
  SYNCLINE_ASSIGN(step.to, Text(decoder, "content"));
  if (step.from.empty()) {
    return Fail(Code::kIncompatible, "decoder: Replace of an empty string");
  }
  return step;
}

// Drops spaces of the first token unless told never to. Older files say it with
// `add_prefix_space`.
Result<Step> ParseMetaspace(const Json& decoder) {
  Step step{.kind = Step::Kind::kReplaceOrDropInFirst, .to = " "};
  SYNCLINE_ASSIGN(step.from, Character(decoder, "replacement"));
  if (decoder.Find("prepend_scheme") == nullptr) return step;
  SYNCLINE_ASSIGN(const std::string scheme, Text(decoder, "prepend_scheme"));
  if (scheme == "never") step.kind = Step::Kind::kReplace;
  return step;
}

Result<Step> ParseStrip(const Json& decoder) {
  Step step{.kind = Step::Kind::kStrip};
  SYNCLINE_ASSIGN(step.from, Character(decoder, "content"));
  SYNCLINE_ASSIGN(step.left, Count(decoder, "start"));
  SYNCLINE_ASSIGN(step.right, Count(decoder, "stop"));
  return step;
}

// Reads decoders in their order into rules.
class Parser {
 public:
  Status Add(const Json& decoder) {
    if (++count_ > kMaxSteps) {
      return Fail(Code::kIncompatible, fmt::format("decoder: more than {} of them", kMaxSteps));
    }
    SYNCLINE_ASSIGN(const std::string type, Text(decoder, "type"));
    if (type == "Sequence") return AddSequence(decoder);
    if (type == "Fuse") return AddFuse();
    if (type == "Strip") return AddStrip(decoder);
    if (stage_ != Stage::kTokens) return OutOfPlace(type);
    if (type == "ByteLevel") {
      rules_.join = Join::kBytes;
      stage_ = Stage::kWhole;
      return {};
    }
    if (type == "ByteFallback") {
      rules_.join = Join::kByteFallback;
      stage_ = Stage::kRuns;
      return {};
    }
    if (type == "Replace") return AddStep(ParseReplace(decoder));
    if (type == "Metaspace") return AddStep(ParseMetaspace(decoder));
    return Fail(Code::kIncompatible,
                fmt::format("decoder: \"{}\" is not known (expected ByteLevel, Replace, "
                            "Metaspace, Strip, ByteFallback, Fuse or a Sequence of them)",
                            type));
  }

  DecoderRules Take() { return std::move(rules_); }

 private:
  enum class Stage {
    kTokens,  // the list is still that of the tokens
    kRuns,    // runs of byte tokens have become one
    kWhole,   // all is one text
  };

  Status AddSequence(const Json& decoder) {
    const Json* all = decoder.Find("decoders");
    if (all == nullptr || all->array() == nullptr) {
      return Fail(Code::kCorrupt, "decoder: Sequence has no list of decoders");
    }
    for (const Json& one : *all->array()) SYNCLINE_TRY(Add(one));
    return {};
  }

  Status AddFuse() {
    stage_ = Stage::kWhole;
    return {};
  }

  Status AddStep(Result<Step> step) {
    if (!step) return std::unexpected(std::move(step).error());
    rules_.steps.push_back(*std::move(step));
    return {};
  }

  Status AddStrip(const Json& decoder) {
    Result<Step> step = ParseStrip(decoder);
    if (!step || stage_ == Stage::kTokens) return AddStep(std::move(step));
    if (stage_ == Stage::kRuns || step->right != 0 || rules_.strip_count != 0) {
      return OutOfPlace("Strip");
    }
    rules_.strip = step->from;
    rules_.strip_count = step->left;
    return {};
  }

  static Status OutOfPlace(std::string_view type) {
    return Fail(Code::kIncompatible,
                fmt::format("decoder: \"{}\" after tokens were joined is not supported", type));
  }

  DecoderRules rules_;
  Stage stage_ = Stage::kTokens;
  std::size_t count_ = 0;
};

// Nothing if the result would be too large.
std::optional<std::string> ReplaceAll(std::string_view text, std::string_view from,
                                      std::string_view to) {
  std::string replaced;
  while (true) {
    const std::size_t at = text.find(from);
    replaced += text.substr(0, at);
    if (at == std::string_view::npos) return replaced;
    if (replaced.size() + to.size() > kMaxTokenBytes) return std::nullopt;
    replaced += to;
    text.remove_prefix(at + from.size());
  }
}

void StripEnds(std::string& text, const Step& step) {
  std::size_t begin = 0;
  for (std::uint64_t i = 0; i < step.left; ++i) {
    if (!std::string_view(text).substr(begin).starts_with(step.from)) break;
    begin += step.from.size();
  }
  text.erase(0, begin);
  for (std::uint64_t i = 0; i < step.right && text.ends_with(step.from); ++i) {
    text.resize(text.size() - step.from.size());
  }
}

// -1 if it is none.
int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// The byte that "<0x41>" stands for, or -1. The reference also takes "<0x+1>".
int FallbackByte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return -1;
  const int high = token[3] == '+' ? 0 : HexDigit(token[3]);
  const int low = HexDigit(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

}  // namespace

bool DecoderRules::first_differs() const {
  return join == Join::kSpaced || std::ranges::any_of(steps, [](const Step& step) {
           return step.kind == Step::Kind::kReplaceOrDropInFirst;
         });
}

Result<DecoderRules::Applied> DecoderRules::Apply(std::string_view token, bool first) const {
  std::optional<std::string> text(token);
  for (const Step& step : steps) {
    if (text->size() > kMaxTokenBytes) break;
    if (step.kind == Step::Kind::kStrip) {
      StripEnds(*text, step);
      continue;
    }
    const bool drop = first && step.kind == Step::Kind::kReplaceOrDropInFirst;
    text = ReplaceAll(*text, step.from, drop ? std::string_view() : step.to);
    if (!text) break;
  }
  if (!text || text->size() > kMaxTokenBytes) {
    return Fail(Code::kLimitExceeded,
                fmt::format("a token stands for more than {} bytes", kMaxTokenBytes));
  }
  if (join == Join::kBytes) return Applied{.bytes = ByteLevelBytes(*text)};
  if (join == Join::kSpaced && !first) return Applied{.bytes = " " + *text};
  if (join == Join::kByteFallback) {
    if (const int byte = FallbackByte(*text); byte >= 0) {
      return Applied{.bytes = std::string(1, static_cast<char>(byte)), .is_byte = true};
    }
  }
  return Applied{.bytes = *std::move(text)};
}

Result<DecoderRules> ParseDecoder(const Json* decoder) {
  if (decoder == nullptr || decoder->is_null()) return DecoderRules{.join = Join::kSpaced};
  Parser parser;
  SYNCLINE_TRY(parser.Add(*decoder));
  return parser.Take();
}

}  // namespace syncline::text
