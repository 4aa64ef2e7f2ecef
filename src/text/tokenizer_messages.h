// The messages between TokenizerProcess and its helper (tokenizer_process.h has the protocol).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "text/byte_queue.h"
#include "text/vocabulary.h"

namespace syncline::text {

inline constexpr std::size_t kMaxMessageBytes = 64 << 20;

// Appends length and text. kLimitExceeded above 64 MiB, kInvalidArgument if it is not UTF-8.
base::Status AppendMessage(const base::Json& message, ByteQueue& out);

// Cuts a stream of bytes into messages.
class MessageReader {
 public:
  void Append(std::string_view bytes) { bytes_.Append(bytes); }
  // The next whole message, or nothing if it is not there yet. kCorrupt if it is none of ours.
  base::Result<std::optional<base::Json>> Next();

 private:
  ByteQueue bytes_;
};

// The helper's first message. The error is the helper's own or kCorrupt.
base::Status CheckReady(const base::Json& message);

struct Reply {
  std::string text;
  std::vector<std::vector<TokenId>> tokens;
};
struct ReplyShape {
  std::uint64_t id = 0;
  std::size_t lists = 0;  // of tokens
  bool has_text = false;
};
// Either the reply to that request or the helper's error about it (kInvalidArgument); the outer
// error is kCorrupt if it is neither.
base::Result<base::Result<Reply>> ParseReply(const base::Json& message, const ReplyShape& shape);

}  // namespace syncline::text
