#include "ranks/protocol.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <span>
#include <string_view>
#include <utility>

#include "base/wire.h"

namespace syncline::ranks {
namespace {

using base::ByteSpan;
using base::Code;
using base::Error;
using base::Fail;
using base::Load;
using base::Result;
using base::Status;

constexpr std::string_view kMagic = "SynRanks";
constexpr std::size_t kErrorHead = 4;
constexpr std::size_t kWelcomeBytes = 8;

constexpr std::size_t kBufferBytes = std::size_t{64} << 10;
constexpr std::size_t kStep = std::size_t{1} << 20;  // written to at once

std::uint64_t MaxPayload(FrameType type) {
  switch (type) {
    case FrameType::kHello:
      return kMaxHello;
    case FrameType::kWelcome:
      return kWelcomeBytes;
    case FrameType::kRefused:
    case FrameType::kFault:
    case FrameType::kFarewell:
      return kErrorHead + kMaxErrorText;
    case FrameType::kHeartbeat:
    case FrameType::kEnd:
      return 0;
    case FrameType::kCommand:
    case FrameType::kAsk:
    case FrameType::kAnswer:
      return kMaxPayload;
  }
  return 0;
}

class Writer {
 public:
  explicit Writer(std::size_t bytes) { bytes_.reserve(bytes); }

  template <typename T>
  void Number(T value) {
    std::array<std::byte, sizeof(T)> bytes;
    base::Store(bytes.data(), value);
    for (const std::byte byte : bytes) bytes_.push_back(byte);
  }
  void Text(std::string_view text) {
    const ByteSpan bytes = base::AsBytes(text);
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  void SizedText(std::string_view text) {
    Number(static_cast<std::uint32_t>(text.size()));
    Text(text);
  }
  std::vector<std::byte> Take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

std::string TakeSizedText(base::WireReader& reader) {
  return std::string(base::AsText(reader.TakeBytes(reader.Take<std::uint32_t>())));
}

Result<Hello> DecodeHelloPayload(ByteSpan payload) {
  base::WireReader reader(payload);
  Hello hello;
  const auto channel = reader.Take<std::uint32_t>();
  hello.group.rank = reader.Take<std::uint32_t>();
  hello.group.size = reader.Take<std::uint32_t>();
  hello.group.node_rank = reader.Take<std::uint32_t>();
  hello.group.nodes = reader.Take<std::uint32_t>();
  (void)reader.Take<std::uint32_t>();
  hello.pid = reader.Take<std::int64_t>();
  hello.chance = reader.Take<std::uint64_t>();
  hello.token = TakeSizedText(reader);
  hello.fingerprint = TakeSizedText(reader);
  hello.host = TakeSizedText(reader);
  if (!reader.status()) {
    return Fail(Code::kCorrupt, "its hello does not have the size that it says");
  }
  if (channel != 1 && channel != 2) {
    return Fail(Code::kCorrupt,
                fmt::format("its hello names channel {}, expected 1 or 2", channel));
  }
  hello.channel = channel == 1 ? Channel::kCommands : Channel::kWork;
  return hello;
}

}  // namespace

Status Check(const Group& group) {
  if (group.size == 0 || group.size > kMaxRanks) {
    return Fail(Code::kInvalidArgument,
                fmt::format("a group of {} ranks, expected 1 to {}", group.size, kMaxRanks));
  }
  if (group.rank >= group.size) {
    return Fail(Code::kInvalidArgument,
                fmt::format("rank {} in a group of {} ranks", group.rank, group.size));
  }
  if (group.nodes == 0 || group.nodes > group.size) {
    return Fail(Code::kInvalidArgument,
                fmt::format("{} nodes for a group of {} ranks", group.nodes, group.size));
  }
  if (group.node_rank >= group.nodes) {
    return Fail(Code::kInvalidArgument,
                fmt::format("node rank {} in a group of {} nodes", group.node_rank, group.nodes));
  }
  return {};
}

FrameHeaderBytes Encode(const FrameHeader& header) {
  FrameHeaderBytes bytes{};
  base::Store(bytes.data(), header.size);
  base::Store(bytes.data() + 8, header.id);
  base::Store(bytes.data() + 16, header.kind);
  base::Store(bytes.data() + 20, static_cast<std::uint32_t>(header.type));
  return bytes;
}

Result<FrameHeader> DecodeFrameHeader(std::span<const std::byte, kFrameHeaderBytes> bytes) {
  FrameHeader header;
  header.size = Load<std::uint64_t>(bytes.data());
  header.id = Load<std::uint64_t>(bytes.data() + 8);
  header.kind = Load<std::uint32_t>(bytes.data() + 16);
  const auto type = Load<std::uint32_t>(bytes.data() + 20);
  if (type < static_cast<std::uint32_t>(FrameType::kHello) ||
      type > static_cast<std::uint32_t>(FrameType::kFarewell)) {
    return Fail(Code::kCorrupt, fmt::format("there is no frame of type {}", type));
  }
  header.type = static_cast<FrameType>(type);
  if (header.size > MaxPayload(header.type)) {
    return Fail(Code::kCorrupt, fmt::format("a frame of type {} with {} bytes, expected at most {}",
                                            type, header.size, MaxPayload(header.type)));
  }
  return header;
}

std::vector<std::byte> Encode(const Error& error) {
  std::string_view message = error.message;
  if (message.size() > kMaxErrorText) {
    std::size_t end = kMaxErrorText;  // not inside a character
    while (end > 0 && (static_cast<unsigned char>(message[end]) & 0xC0) == 0x80) --end;
    message = message.substr(0, end);
  }
  Writer writer(kErrorHead + message.size());
  writer.Number(static_cast<std::uint32_t>(error.code));
  writer.Text(message);
  return writer.Take();
}

Error DecodeError(ByteSpan payload) {
  if (payload.size() < kErrorHead) return {Code::kInternal, "an error without text"};
  const auto number = Load<std::uint32_t>(payload.data());
  const bool known = number >= static_cast<std::uint32_t>(Code::kInternal) &&
                     number <= static_cast<std::uint32_t>(Code::kCancelled);
  return {known ? static_cast<Code>(number) : Code::kInternal,
          std::string(base::AsText(payload.subspan(kErrorHead)))};
}

Result<std::vector<std::byte>> Encode(const Hello& hello) {
  Writer body(64 + hello.token.size() + hello.fingerprint.size() + hello.host.size());
  body.Number(static_cast<std::uint32_t>(hello.channel));
  body.Number(hello.group.rank);
  body.Number(hello.group.size);
  body.Number(hello.group.node_rank);
  body.Number(hello.group.nodes);
  body.Number(std::uint32_t{0});
  body.Number(hello.pid);
  body.Number(hello.chance);
  body.SizedText(hello.token);
  body.SizedText(hello.fingerprint);
  body.SizedText(hello.host);
  const std::vector<std::byte> payload = body.Take();
  if (payload.size() > kMaxHello) {
    return Fail(Code::kLimitExceeded,
                fmt::format("token, fingerprint and host name make a hello of {} bytes, expected "
                            "at most {}",
                            payload.size(), kMaxHello));
  }
  Writer writer(kPreambleBytes + kFrameHeaderBytes + payload.size());
  writer.Text(kMagic);
  writer.Number(kProtocol);
  writer.Number(std::uint32_t{0});
  writer.Text(base::AsText(Encode(FrameHeader{.size = payload.size(), .type = FrameType::kHello})));
  writer.Text(base::AsText(payload));
  return writer.Take();
}

Result<std::optional<Hello>> DecodeHello(ByteSpan received) {
  const std::string_view text =
      base::AsText(received.first(std::min(received.size(), kMagic.size())));
  if (!kMagic.starts_with(text)) {
    return Fail(Code::kCorrupt, "it does not begin as a rank does");
  }
  if (received.size() < kPreambleBytes) return std::nullopt;
  const auto protocol = Load<std::uint32_t>(received.data() + kMagic.size());
  if (protocol != kProtocol) {
    return Fail(Code::kIncompatible,
                fmt::format("it speaks protocol {}, the leader {}", protocol, kProtocol));
  }
  received = received.subspan(kPreambleBytes);
  if (received.size() < kFrameHeaderBytes) return std::nullopt;
  SYNCLINE_ASSIGN(const FrameHeader header, DecodeFrameHeader(received.first<kFrameHeaderBytes>()));
  if (header.type != FrameType::kHello) {
    return Fail(Code::kCorrupt, fmt::format("it begins with a frame of type {}, expected a hello",
                                            static_cast<std::uint32_t>(header.type)));
  }
  received = received.subspan(kFrameHeaderBytes);
  if (received.size() < header.size) return std::nullopt;
  if (received.size() > header.size) {
    return Fail(Code::kCorrupt, "it did not wait for an answer to its hello");
  }
  SYNCLINE_ASSIGN(Hello hello, DecodeHelloPayload(received));
  return hello;
}

std::vector<std::byte> Encode(const Welcome& welcome) {
  Writer writer(kWelcomeBytes);
  writer.Number(welcome.heartbeat_ms);
  writer.Number(welcome.silence_ms);
  return writer.Take();
}

Result<Welcome> DecodeWelcome(ByteSpan payload) {
  base::WireReader reader(payload);
  Welcome welcome;
  welcome.heartbeat_ms = reader.Take<std::uint32_t>();
  welcome.silence_ms = reader.Take<std::uint32_t>();
  if (!reader.status() || welcome.heartbeat_ms == 0 || welcome.silence_ms <= welcome.heartbeat_ms) {
    return Fail(Code::kCorrupt, "a welcome that makes no sense");
  }
  return welcome;
}

FrameReader::FrameReader(std::uint64_t room_ahead)
    : room_ahead_(room_ahead), buffer_(kBufferBytes) {}

Result<base::MutableByteSpan> FrameReader::Space() {
  if (!in_payload_) return base::MutableByteSpan(buffer_).subspan(end_);
  if (filled_ == payload_.size()) {
    try {
      if (payload_.size() == payload_.capacity()) MakeRoom();
      const std::size_t room = payload_.capacity() - payload_.size();
      const std::size_t missing = header_.size - filled_;
      payload_.resize(filled_ + std::min({kStep, room, missing}));
    } catch (const std::bad_alloc&) {
      return Fail(Code::kLimitExceeded,
                  fmt::format("there is no memory for a frame of {} bytes", header_.size));
    }
  }
  return base::MutableByteSpan(payload_).subspan(filled_);
}

// Pages become memory when they are written to, a step at a time as bytes come; the room ahead only
// saves copies. Where even that is too much, it doubles.
void FrameReader::MakeRoom() {
  try {
    payload_.reserve(std::min(header_.size, std::max<std::uint64_t>(room_ahead_, filled_ * 4)));
  } catch (const std::bad_alloc&) {
    payload_.reserve(std::min(header_.size, std::max<std::uint64_t>(kStep, filled_ * 2)));
  }
}

Status FrameReader::BeginFrame() {
  SYNCLINE_ASSIGN(header_, DecodeFrameHeader(std::span<const std::byte, kFrameHeaderBytes>(
                               buffer_.data() + begin_, kFrameHeaderBytes)));
  begin_ += kFrameHeaderBytes;
  // What of the payload is in the buffer already; the rest goes straight to where it belongs.
  const std::size_t here = std::min<std::uint64_t>(header_.size, end_ - begin_);
  payload_.assign(buffer_.data() + begin_, buffer_.data() + begin_ + here);
  filled_ = here;
  begin_ += here;
  in_payload_ = true;
  return {};
}

Status FrameReader::Took(std::size_t count, std::vector<Frame>& frames) {
  (in_payload_ ? filled_ : end_) += count;
  while (true) {
    if (in_payload_) {
      if (filled_ < header_.size) return {};
      frames.push_back(Frame{
          .type = header_.type,
          .message = {.kind = header_.kind, .id = header_.id, .payload = std::move(payload_)}});
      payload_ = {};
      in_payload_ = false;
    }
    if (end_ - begin_ < kFrameHeaderBytes) break;
    SYNCLINE_TRY(BeginFrame());
  }
  std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
  end_ -= begin_;
  begin_ = 0;
  return {};
}

}  // namespace syncline::ranks
