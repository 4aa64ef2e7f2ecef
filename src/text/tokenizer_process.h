// The supervised helper process that turns text into tokens and messages into prompts (Hugging Face
// `tokenizers`, sandboxed jinja2). See python/syncline/tokenizer_helper.py for the other side.
//
// Protocol, over the helper's standard input and output: each message is a 4-byte little-endian
// length and that many bytes of JSON.
//   start:    helper → {"ready": true, "chat_template": bool, "bos_token_id": int|null,
//                       "eos_token_id": int|null}  or  {"error": text}
//   request:  {"id": n, "op": "encode", "texts": [str], "add_special_tokens": bool}
//             {"id": n, "op": "chat", "messages": [...], "options": {...}}
//                                        options: fields given to the template (tools, …)
//   reply:    {"id": n, "tokens": [[int]]}  |  {"id": n, "text": str, "tokens": [[int]]}
//             |  {"id": n, "error": text}
// Replies come in the order of the requests. A message is at most 64 MiB.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "text/vocabulary.h"

namespace syncline::text {

struct TokenizerOptions {
  std::vector<std::string> command;  // program and arguments; the model's directory is appended
  std::string directory;
  std::chrono::milliseconds start_timeout{60000};
  // Of one request, from when it is sent and all before it are answered; then the helper is killed
  // and started again.
  std::chrono::milliseconds timeout{60000};
  std::chrono::milliseconds restart_interval{1000};  // from one start to the next, at least
};

struct ChatPrompt {
  std::string text;
  std::vector<TokenId> tokens;
};

// Thread-safe; no call waits for the helper. Callbacks run on a thread of its own and must neither
// block nor destroy this object.
//
// If the helper dies or answers nonsense, requests in flight fail with kUnavailable, and it is
// started again for the next one. The request that ran out of time fails with kTimeout, those sent
// behind it with kUnavailable. If the helper cannot start, all requests until then fail with
// kUnavailable and its reason. A request beyond the size of a message fails with kLimitExceeded.
// The helper ends with this process, however that ends.
class TokenizerProcess {
 public:
  // Starts the helper in the background; requests may be made at once and wait for it.
  static std::unique_ptr<TokenizerProcess> Start(TokenizerOptions options);
  virtual ~TokenizerProcess() = default;  // requests in flight fail with kCancelled

  // kInvalidArgument with the helper's message where a text cannot be encoded.
  using Encoded = std::function<void(base::Result<std::vector<std::vector<TokenId>>>)>;
  virtual void Encode(std::vector<std::string> texts, bool add_special_tokens, Encoded done) = 0;

  // kInvalidArgument with the template's own message where it refuses the messages or there is no
  // template.
  using Prompted = std::function<void(base::Result<ChatPrompt>)>;
  virtual void ApplyChatTemplate(base::Json messages, base::Json options, Prompted done) = 0;

  virtual int pid() const = 0;  // of the running helper; 0 if there is none. For tests.
};

}  // namespace syncline::text
