#include "serve/replies.h"

#include <fmt/format.h>

namespace syncline::serve {
namespace {

using base::Json;

constexpr std::size_t kMaxDepth = 64;

// What OpenAI's clients look for in `type`.
std::string_view OpenAiType(int status) {
  if (status == 401) return "authentication_error";
  if (status == 404) return "not_found_error";
  if (status == 429) return "rate_limit_error";
  return status < 500 ? "invalid_request_error" : "server_error";
}

Json OpenAiError(int status, std::string_view message) {
  return Json(Json::Object{{"error", Json(Json::Object{{"message", message},
                                                       {"type", OpenAiType(status)},
                                                       {"param", nullptr},
                                                       {"code", std::uint64_t(status)}})}});
}

Json DetailedError(int status, std::string_view type, std::string_view message) {
  return Json(Json::Object{{"object", "error"},
                           {"message", message},
                           {"type", type},
                           {"param", nullptr},
                           {"code", static_cast<std::uint64_t>(status)}});
}

}  // namespace

http::Response JsonReply(const Json& json, int status) {
  return {.status = status, .body = ToText(json)};
}

http::Response TextReply(std::string text, int status) {
  return {.status = status, .content_type = "text/plain; charset=utf-8", .body = std::move(text)};
}

http::Response InvalidRequest(ErrorStyle style, std::string_view message) {
  return JsonReply(style == ErrorStyle::kOpenAi ? OpenAiError(400, message)
                                                : DetailedError(400, "Bad Request", message),
                   400);
}

http::Response Failure(ErrorStyle style, int status, std::string_view message) {
  Json body;
  if (style == ErrorStyle::kOpenAi) {
    body = OpenAiError(status, message);
  } else if (status >= 500) {
    body = DetailedError(status, fmt::to_string(status), message);
  } else {
    body = Json(Json::Object{{"error", Json(Json::Object{{"message", message}})}});
  }
  http::Response response = JsonReply(body, status);
  if (status == 429) response.headers.emplace_back("Retry-After", "1");
  return response;
}

http::Response Failure(ErrorStyle style, const base::Error& error) {
  return Failure(style, Info(error.code).http_status, error.message);
}

http::Response Outcome(bool success, std::string_view message) {
  return JsonReply(Json(Json::Object{{"success", success}, {"message", message}}),
                   success ? 200 : 400);
}

base::Result<Json> ParseBody(const http::Request& request) {
  if (request.body.find_first_not_of(" \t\r\n") == std::string::npos) return Json(Json::Object{});
  SYNCLINE_ASSIGN(Json body, base::ParseJson(request.body, kMaxDepth));
  if (body.object() == nullptr) {
    return base::Fail(base::Code::kInvalidArgument, "the body: expected a JSON object");
  }
  return body;
}

std::string ServerSentEvent(std::string_view text) {
  std::string event = "data: ";
  event.reserve(text.size() + 8);
  while (!text.empty()) {
    const std::size_t at = text.find_first_of("\xC2\xE2");
    event += text.substr(0, at);
    if (at == std::string_view::npos) break;
    text.remove_prefix(at);
    if (text.starts_with("\xC2\x85")) {
      event += "\\u0085";
      text.remove_prefix(2);
    } else if (text.starts_with("\xE2\x80\xA8") || text.starts_with("\xE2\x80\xA9")) {
      event += text[2] == '\xA8' ? "\\u2028" : "\\u2029";
      text.remove_prefix(3);
    } else {
      event += text.front();
      text.remove_prefix(1);
    }
  }
  return event += "\n\n";
}

}  // namespace syncline::serve
