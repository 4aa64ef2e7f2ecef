#include "text/vocabulary.h"

#include <fmt/format.h>

#include <unordered_map>
#include <unordered_set>

#include "base/json.h"

namespace syncline::text {
namespace {

using base::Code;
using base::Fail;
using base::Json;
using base::Result;
using base::Status;

constexpr std::uint64_t kMaxFileBytes = 128 << 20;
constexpr std::uint64_t kEndOfIds = 1 << 22;
constexpr std::size_t kMaxBytes = 256 << 20;  // of all tokens together

Result<std::uint64_t> CheckedId(const Json& json, std::string_view content) {
  const std::uint64_t* id = json.unsigned_integer();
  if (id == nullptr || *id >= kEndOfIds) {
    return Fail(Code::kCorrupt,
                fmt::format("token \"{}\" has the id {}, expected a number below {}",
                            content.substr(0, 100), ToText(json).substr(0, 100), kEndOfIds));
  }
  return *id;
}

struct AddedToken {
  std::string_view content;
  bool special = false;
};

Result<AddedToken> ParseAddedToken(const Json& json) {
  const Json* content = json.Find("content");
  const Json* id = json.Find("id");
  if (content == nullptr || content->string() == nullptr || id == nullptr) {
    return Fail(Code::kCorrupt, fmt::format("an added token has no content or no id: {}",
                                            ToText(json).substr(0, 200)));
  }
  AddedToken token{.content = *content->string()};
  SYNCLINE_TRY(CheckedId(*id, token.content));
  if (const Json* special = json.Find("special"); special != nullptr) {
    const bool* value = std::get_if<bool>(&special->value());
    if (value == nullptr) {
      return Fail(Code::kCorrupt, fmt::format("added token \"{}\": \"special\" is {}",
                                              token.content, ToText(*special).substr(0, 100)));
    }
    token.special = *value;
  }
  return token;
}

}  // namespace

// Collects the pieces of the model and the added tokens under their ids, as the reference numbers
// them, then computes the bytes of each. Views reach into the JSON that is being read.
class VocabularyBuilder {
 public:
  Result<Vocabulary> Build(const Json& root) {
    SYNCLINE_ASSIGN(const DecoderRules rules, ParseDecoder(root.Find("decoder")));
    const Json* model = root.Find("model");
    if (model == nullptr) return Fail(Code::kCorrupt, "there is no model");
    SYNCLINE_TRY(AddModel(*model));
    if (const Json* added = root.Find("added_tokens"); added != nullptr && !added->is_null()) {
      SYNCLINE_TRY(AddAddedTokens(*added));
    }
    return Compute(rules);
  }

 private:
  Status AddModel(const Json& model) {
    const Json* vocabulary = model.Find("vocab");
    if (vocabulary == nullptr) return Fail(Code::kCorrupt, "model: there is no vocab");
    std::string_view type = vocabulary->array() != nullptr ? "Unigram" : "BPE";
    if (const Json* named = model.Find("type"); named != nullptr) {
      if (named->string() == nullptr) return Fail(Code::kCorrupt, "model: type is not a string");
      type = *named->string();
    }
    if (type == "Unigram") return AddList(*vocabulary);
    if (type == "BPE" || type == "WordPiece" || type == "WordLevel") return AddTable(*vocabulary);
    return Fail(Code::kIncompatible,
                fmt::format("model: type \"{}\" is not known (expected BPE, Unigram, WordPiece "
                            "or WordLevel)",
                            type));
  }

  Status AddTable(const Json& vocabulary) {
    if (vocabulary.object() == nullptr) {
      return Fail(Code::kCorrupt, "model: vocab is not an object of token to id");
    }
    for (const auto& [content, value] : *vocabulary.object()) {
      SYNCLINE_ASSIGN(const std::uint64_t id, CheckedId(value, content));
      std::string_view& place = Place(id);
      if (place.data() != nullptr) {
        return Fail(Code::kCorrupt, fmt::format("tokens \"{}\" and \"{}\" both have the id {}",
                                                place, content, id));
      }
      place = content;
      ids_.emplace(content, id);
    }
    model_size_ = vocabulary.object()->size();
    return {};
  }

  Status AddList(const Json& vocabulary) {
    if (vocabulary.array() == nullptr) {
      return Fail(Code::kCorrupt, "model: vocab is not a list of piece and score");
    }
    model_size_ = vocabulary.array()->size();
    if (model_size_ > kEndOfIds) {
      return Fail(Code::kCorrupt, fmt::format("model: vocab has {} pieces, expected at most {}",
                                              model_size_, kEndOfIds));
    }
    for (std::size_t id = 0; id < model_size_; ++id) {
      const Json::Array* pair = vocabulary.array()->at(id).array();
      if (pair == nullptr || pair->empty() || pair->front().string() == nullptr) {
        return Fail(Code::kCorrupt,
                    fmt::format("model: piece {} of the vocab is {}, expected [piece, score]", id,
                                ToText(vocabulary.array()->at(id)).substr(0, 100)));
      }
      Place(id) = *pair->front().string();
      ids_.insert_or_assign(*pair->front().string(), id);
    }
    return {};
  }

  // The reference does not take the file's word for the id: a token that the model has keeps the
  // model's id, and the others count on from the number of the model's tokens.
  Status AddAddedTokens(const Json& added) {
    if (added.array() == nullptr) return Fail(Code::kCorrupt, "added_tokens is not a list");
    std::uint64_t next = model_size_;
    for (const Json& json : *added.array()) {
      SYNCLINE_ASSIGN(const AddedToken token, ParseAddedToken(json));
      if (token.content.empty()) continue;
      if (token.special) special_.insert(token.content);
      const auto [found, is_new] = ids_.try_emplace(token.content, next);
      const std::uint64_t id = found->second;
      if (id >= kEndOfIds) {
        return Fail(Code::kCorrupt, fmt::format("more than {} tokens", kEndOfIds));
      }
      Place(id) = token.content;
      if (is_new) ++next;
    }
    return {};
  }

  std::string_view& Place(std::uint64_t id) {
    if (id >= contents_.size()) contents_.resize(id + 1);
    return contents_[id];
  }

  Result<Vocabulary> Compute(const DecoderRules& rules) {
    Vocabulary vocabulary;
    vocabulary.join_ = rules.join;
    vocabulary.strip_ = rules.strip;
    vocabulary.strip_count_ = rules.strip_count;
    vocabulary.tokens_.resize(contents_.size());
    for (std::size_t id = 0; id < contents_.size(); ++id) {
      const std::string_view content = contents_[id];
      if (content.data() == nullptr) continue;
      Vocabulary::Token& token = vocabulary.tokens_[id];
      token.is_known = true;
      token.is_special = special_.contains(content);
      SYNCLINE_ASSIGN(const auto later, rules.Apply(content, false));
      SYNCLINE_ASSIGN(token.later, Store(vocabulary, later.bytes));
      token.later_is_byte = later.is_byte;
      token.first = token.later;
      token.first_is_byte = token.later_is_byte;
      if (!rules.first_differs()) continue;
      SYNCLINE_ASSIGN(const auto first, rules.Apply(content, true));
      if (first.bytes != later.bytes) {
        SYNCLINE_ASSIGN(token.first, Store(vocabulary, first.bytes));
      }
      token.first_is_byte = first.is_byte;
    }
    return vocabulary;
  }

  static Result<Vocabulary::Piece> Store(Vocabulary& vocabulary, std::string_view bytes) {
    std::string& all = vocabulary.bytes_;
    if (all.size() + bytes.size() > kMaxBytes) {
      return Fail(Code::kLimitExceeded,
                  fmt::format("the tokens stand for more than {} bytes", kMaxBytes));
    }
    const Vocabulary::Piece piece{.begin = static_cast<std::uint32_t>(all.size()),
                                  .size = static_cast<std::uint32_t>(bytes.size())};
    all += bytes;
    return piece;
  }

  std::vector<std::string_view> contents_;  // by id; null data: no token
  std::unordered_map<std::string_view, std::uint64_t> ids_;
  std::unordered_set<std::string_view> special_;
  std::uint64_t model_size_ = 0;  // entries of the model, which is not one more than its highest id
};

Result<Vocabulary> Vocabulary::Load(base::FileSystem& files, const std::string& directory) {
  const std::string path = base::JoinPath(directory, "tokenizer.json");
  SYNCLINE_ASSIGN(const std::string text, base::ReadText(files, path, kMaxFileBytes));
  Result<Json> json = base::ParseJson(text);
  if (!json) return base::Annotate(std::move(json).error(), path);
  Result<Vocabulary> vocabulary = VocabularyBuilder().Build(*json);
  if (!vocabulary) return base::Annotate(std::move(vocabulary).error(), path);
  return vocabulary;
}

std::string_view Vocabulary::Bytes(TokenId id) const {
  const Token* token = Find(id);
  return token == nullptr ? std::string_view() : Bytes(token->later);
}

bool Vocabulary::IsSpecial(TokenId id) const {
  const Token* token = Find(id);
  return token != nullptr && token->is_special;
}

const Vocabulary::Token* Vocabulary::Find(TokenId id) const {
  if (id < 0 || static_cast<std::size_t>(id) >= tokens_.size()) return nullptr;
  const Token& token = tokens_[static_cast<std::size_t>(id)];
  return token.is_known ? &token : nullptr;
}

}  // namespace syncline::text
