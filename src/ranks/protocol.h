// What goes over the wire between leader and followers. Pure data: no sockets, no threads.
//
// A follower opens two TCP connections to the leader, one for each channel:
//
//   commands (1)   leader → follower: commands in their order, at last the end
//   work (2)       both ways: asks of the leader, replies of the follower, farewells
//
// All numbers are little-endian. A connection begins with the follower's preamble and a hello
// frame; the leader answers with one frame, welcome or refused, when the group is complete. From
// there on both sides send frames.
//
//   preamble       8  magic "SynRanks"
//                  4  protocol number, 1
//                  4  zero
//
//   frame          8  n, bytes of payload
//                  8  id
//                  4  kind
//                  4  type
//                  n  payload
//
//   type           payload                                  id, kind      channels
//   1 hello        see below, at most 64 KiB                0             both, follower → leader
//   2 welcome      4 heartbeat in ms, 4 silence in ms       0             both, leader → follower
//   3 refused      error                                    0             both, leader → follower
//   4 heartbeat    none                                     0             both, both ways
//   5 command      any, at most 8 GiB                       0 or ask's    commands
//   6 ask          any, at most 8 GiB                       ask's         work, leader → follower
//   7 answer       any, at most 8 GiB                       ask's, 0      work, follower → leader
//   8 fault        error                                    ask's, 0      work, follower → leader
//   9 end          none: the last frame of an orderly end   0             both, leader → follower
//   10 farewell    error: the last frame of a failed group  0             work, both ways
//
//   error          4  base::Code
//                  …  message, UTF-8, at most 64 KiB
//
//   hello          4  channel          8  pid
//                  4  rank             8  number by chance, the same on both channels of a follower
//                  4  size             4 + n  token: length, bytes
//                  4  node rank        4 + n  fingerprint
//                  4  nodes            4 + n  what the host calls itself
//                  4  zero
//
// Preamble, frame header, refused and error stay as they are in later protocols, so that every
// version can refuse every other. Who gets an end or a farewell closes the connection.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "ranks/group.h"

namespace syncline::ranks {

constexpr std::uint32_t kProtocol = 1;
constexpr std::size_t kPreambleBytes = 16;
constexpr std::size_t kFrameHeaderBytes = 24;
constexpr std::uint64_t kMaxPayload = std::uint64_t{8} << 30;
constexpr std::size_t kMaxHello = std::size_t{64} << 10;
constexpr std::size_t kMaxErrorText = std::size_t{64} << 10;

enum class Channel : std::uint32_t { kCommands = 1, kWork = 2 };

enum class FrameType : std::uint32_t {
  kHello = 1,
  kWelcome = 2,
  kRefused = 3,
  kHeartbeat = 4,
  kCommand = 5,
  kAsk = 6,
  kAnswer = 7,
  kFault = 8,
  kEnd = 9,
  kFarewell = 10,
};

struct FrameHeader {
  std::uint64_t size = 0;
  std::uint64_t id = 0;
  std::uint32_t kind = 0;
  FrameType type = FrameType::kHeartbeat;
};

using FrameHeaderBytes = std::array<std::byte, kFrameHeaderBytes>;
FrameHeaderBytes Encode(const FrameHeader& header);
// kCorrupt: no such type, or more payload than the type may have.
base::Result<FrameHeader> DecodeFrameHeader(std::span<const std::byte, kFrameHeaderBytes> bytes);

// One that has come.
struct Frame {
  FrameType type = FrameType::kHeartbeat;
  Message message;
};

// One to be sent; the payload is shared by all that it is sent to.
struct OutgoingFrame {
  FrameType type = FrameType::kHeartbeat;
  std::uint32_t kind = 0;
  std::uint64_t id = 0;
  std::shared_ptr<const std::vector<std::byte>> payload;  // may be null: none
};

// A message that is too long is cut.
std::vector<std::byte> Encode(const base::Error& error);
// A code that is not known becomes kInternal; never fails.
base::Error DecodeError(base::ByteSpan payload);

struct Hello {
  Channel channel = Channel::kCommands;
  Group group;
  std::int64_t pid = 0;
  std::uint64_t chance = 0;
  std::string token;
  std::string fingerprint;
  std::string host;
};

// Preamble and frame. kLimitExceeded if it is longer than kMaxHello.
base::Result<std::vector<std::byte>> Encode(const Hello& hello);
// `received`: all bytes of a connection up to now. Nothing: more must come. kCorrupt: it is not one
// of ours; kIncompatible: it is, with another protocol.
base::Result<std::optional<Hello>> DecodeHello(base::ByteSpan received);

struct Welcome {
  std::uint32_t heartbeat_ms = 0;
  std::uint32_t silence_ms = 0;
};
std::vector<std::byte> Encode(const Welcome& welcome);  // the payload
base::Result<Welcome> DecodeWelcome(base::ByteSpan payload);

// Address space, not memory, that is set aside at once for a payload that announces as much.
constexpr std::uint64_t kRoomAhead = std::uint64_t{1} << 30;

// Cuts a stream of bytes into frames. Memory grows with the bytes that have come, not with the
// announced size.
class FrameReader {
 public:
  explicit FrameReader(std::uint64_t room_ahead = kRoomAhead);

  // Where the next bytes belong; never empty. kLimitExceeded if there is no memory.
  base::Result<base::MutableByteSpan> Space();
  // `count` bytes were put there: appends the frames that are complete now. After kCorrupt the
  // stream cannot be read further.
  base::Status Took(std::size_t count, std::vector<Frame>& frames);

 private:
  base::Status BeginFrame();
  void MakeRoom();

  const std::uint64_t room_ahead_;
  std::vector<std::byte> buffer_;  // fixed size; [begin_, end_) holds bytes not looked at yet
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  bool in_payload_ = false;
  FrameHeader header_;              // of the frame under way
  std::vector<std::byte> payload_;  // of the frame under way; its size is what may be written to
  std::size_t filled_ = 0;          // bytes of payload_ that have come
};

}  // namespace syncline::ranks
