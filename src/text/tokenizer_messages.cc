#include "text/tokenizer_messages.h"

#include <fmt/format.h>

#include <cstring>
#include <limits>

#include "text/utf8.h"

namespace syncline::text {
namespace {

using base::Code;
using base::Fail;
using base::Json;
using base::Result;
using base::Status;

using Length = std::uint32_t;

std::unexpected<base::Error> Malformed(std::string_view what, const Json& message) {
  return Fail(Code::kCorrupt, fmt::format("{}: {}", what, ToText(message).substr(0, 200)));
}

Result<std::vector<TokenId>> ParseTokens(const Json& list, const Json& message) {
  if (list.array() == nullptr) return Malformed("no list of tokens", message);
  std::vector<TokenId> tokens;
  tokens.reserve(list.array()->size());
  for (const Json& token : *list.array()) {
    const std::uint64_t* id = token.unsigned_integer();
    if (id == nullptr || *id > std::numeric_limits<TokenId>::max()) {
      return Malformed("a token that is no id", message);
    }
    tokens.push_back(static_cast<TokenId>(*id));
  }
  return tokens;
}

}  // namespace

Status AppendMessage(const Json& message, ByteQueue& out) {
  const std::string text = ToText(message);
  if (text.size() > kMaxMessageBytes) {
    return Fail(Code::kLimitExceeded,
                fmt::format("a request to the tokenizer has {} bytes, at most {} are allowed",
                            text.size(), kMaxMessageBytes));
  }
  if (!IsUtf8(text)) return Fail(Code::kInvalidArgument, "the text to encode is not UTF-8");
  const auto length = static_cast<Length>(text.size());
  out.Append({reinterpret_cast<const char*>(&length), sizeof(length)});
  out.Append(text);
  return {};
}

Result<std::optional<Json>> MessageReader::Next() {
  const std::string_view rest = bytes_.view();
  Length length = 0;
  if (rest.size() < sizeof(length)) return std::nullopt;
  std::memcpy(&length, rest.data(), sizeof(length));
  if (length > kMaxMessageBytes) {
    return Fail(Code::kCorrupt, fmt::format("a message of {} bytes, at most {} are allowed", length,
                                            kMaxMessageBytes));
  }
  if (rest.size() - sizeof(length) < length) return std::nullopt;
  Result<Json> json = base::ParseJson(rest.substr(sizeof(length), length));
  bytes_.Drop(sizeof(length) + length);
  if (!json) return std::unexpected(std::move(json).error());
  return *std::move(json);
}

Status CheckReady(const Json& message) {
  if (const Json* error = message.Find("error"); error != nullptr && error->string() != nullptr) {
    return Fail(Code::kUnavailable, *error->string());
  }
  const Json* ready = message.Find("ready");
  const bool* value = ready == nullptr ? nullptr : std::get_if<bool>(&ready->value());
  if (value == nullptr || !*value) return Malformed("not ready", message);
  return {};
}

Result<Result<Reply>> ParseReply(const Json& message, const ReplyShape& shape) {
  const Json* id = message.Find("id");
  if (id == nullptr || id->unsigned_integer() == nullptr || *id->unsigned_integer() != shape.id) {
    return Malformed(fmt::format("not the reply to request {}", shape.id), message);
  }
  if (const Json* error = message.Find("error"); error != nullptr) {
    if (error->string() == nullptr) return Malformed("an error that is no text", message);
    return Result<Reply>(Fail(Code::kInvalidArgument, *error->string()));
  }
  Reply reply;
  if (shape.has_text) {
    const Json* text = message.Find("text");
    if (text == nullptr || text->string() == nullptr) return Malformed("no text", message);
    reply.text = *text->string();
  }
  const Json* tokens = message.Find("tokens");
  if (tokens == nullptr || tokens->array() == nullptr || tokens->array()->size() != shape.lists) {
    return Malformed(fmt::format("not {} lists of tokens", shape.lists), message);
  }
  for (const Json& list : *tokens->array()) {
    SYNCLINE_ASSIGN(std::vector<TokenId> parsed, ParseTokens(list, message));
    reply.tokens.push_back(std::move(parsed));
  }
  return Result<Reply>(std::move(reply));
}

}  // namespace syncline::text
