// The shapes in which the server answers.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "http/server.h"

namespace syncline::serve {

// How errors look to the clients of a route.
enum class ErrorStyle {
  kSglang,  // 400 of validation: {"object":"error",...}; else {"error":{"message":...}}
  kOpenAi,  // {"error":{"message","type","param","code"}}
};

http::Response JsonReply(const base::Json& json, int status = 200);
http::Response TextReply(std::string text, int status = 200);

// 400 for a request that cannot be understood.
http::Response InvalidRequest(ErrorStyle style, std::string_view message);

// A request that was understood and failed. 429 says when to try again.
http::Response Failure(ErrorStyle style, int status, std::string_view message);
http::Response Failure(ErrorStyle style, const base::Error& error);  // status: of the error table

// {"success", "message"}: 200, or 400 where it failed. What the weight routes answer.
http::Response Outcome(bool success, std::string_view message);

// The JSON object of a request; an empty body stands for {}.
base::Result<base::Json> ParseBody(const http::Request& request);

// One server-sent event with `text` as its data. Characters that some clients take for the end of a
// line (U+0085, U+2028, U+2029) are written as JSON escapes.
std::string ServerSentEvent(std::string_view text);
inline constexpr std::string_view kStreamEnd = "data: [DONE]\n\n";

}  // namespace syncline::serve
