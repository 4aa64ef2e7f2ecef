#include "ranks/protocol.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <span>

#include "base/result_matchers.h"

namespace syncline::ranks {
namespace {

using base::ByteSpan;
using base::Code;
using base::Error;
using base::Status;

std::vector<std::byte> FrameBytes(const Frame& frame) {
  const FrameHeaderBytes header = Encode(FrameHeader{.size = frame.message.payload.size(),
                                                     .id = frame.message.id,
                                                     .kind = frame.message.kind,
                                                     .type = frame.type});
  std::vector<std::byte> bytes(header.begin(), header.end());
  bytes.insert(bytes.end(), frame.message.payload.begin(), frame.message.payload.end());
  return bytes;
}

// Gives the stream to the reader in pieces of at most `piece` bytes.
Status Feed(FrameReader& reader, ByteSpan stream, std::size_t piece, std::vector<Frame>& frames) {
  while (!stream.empty()) {
    SYNCLINE_ASSIGN(const base::MutableByteSpan space, reader.Space());
    const std::size_t count = std::min({piece, space.size(), stream.size()});
    std::memcpy(space.data(), stream.data(), count);
    SYNCLINE_TRY(reader.Took(count, frames));
    stream = stream.subspan(count);
  }
  return {};
}

TEST(Frames, ComeOutAsTheyWentInHoweverTheStreamIsCut) {
  EXPECT_TRUE(rc::check([] {
    std::vector<Frame> sent;
    std::vector<std::byte> stream;
    const auto count = *rc::gen::inRange(1, 20);
    for (int i = 0; i < count; ++i) {
      Frame frame;
      frame.type = *rc::gen::element(FrameType::kCommand, FrameType::kAsk, FrameType::kAnswer);
      frame.message.id = *rc::gen::arbitrary<std::uint64_t>();
      frame.message.kind = *rc::gen::arbitrary<std::uint32_t>();
      // Of all sizes around those where the reader changes its ways.
      const auto size = *rc::gen::oneOf(rc::gen::inRange(0, 100), rc::gen::inRange(65'400, 65'600),
                                        rc::gen::just(200'000), rc::gen::just(3'000'000));
      frame.message.payload.resize(static_cast<std::size_t>(size));
      for (std::size_t j = 0; j < frame.message.payload.size(); ++j) {
        frame.message.payload[j] = static_cast<std::byte>(j * 31 + static_cast<std::size_t>(i));
      }
      const std::vector<std::byte> bytes = FrameBytes(frame);
      stream.insert(stream.end(), bytes.begin(), bytes.end());
      sent.push_back(std::move(frame));
    }
    FrameReader reader;
    std::vector<Frame> frames;
    const auto piece = *rc::gen::element<std::size_t>(7, 24, 1000, 65'536, 1 << 20, 1 << 30);
    RC_ASSERT(Feed(reader, stream, std::max(piece, stream.size() / 5000), frames).has_value());
    RC_ASSERT(frames.size() == sent.size());
    for (std::size_t i = 0; i < sent.size(); ++i) {
      RC_ASSERT(frames[i].type == sent[i].type);
      RC_ASSERT(frames[i].message.id == sent[i].message.id);
      RC_ASSERT(frames[i].message.kind == sent[i].message.kind);
      RC_ASSERT(frames[i].message.payload == sent[i].message.payload);
    }
  }));
}

// Of this process, in bytes.
std::uint64_t Memory() {
  std::uint64_t virtual_pages = 0;
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> virtual_pages >> pages;
  return pages * 4096;
}

TEST(Frames, AnnouncedBytesAreNotAllocated) {
  const std::uint64_t before = Memory();
  FrameReader reader;
  std::vector<Frame> frames;
  const FrameHeaderBytes header = Encode(FrameHeader{.size = kMaxPayload, .type = FrameType::kAsk});
  ASSERT_OK(Feed(reader, header, 1000, frames));
  const std::vector<std::byte> some(100'000);
  ASSERT_OK(Feed(reader, some, 1 << 20, frames));
  ASSERT_OK_AND_ASSIGN(const base::MutableByteSpan space, reader.Space());
  EXPECT_LE(space.size(), 1 << 20);
  EXPECT_TRUE(frames.empty());
  EXPECT_LT(Memory(), before + (32 << 20));
}

TEST(Frames, WithBadHeadersAreCorrupt) {
  const auto read = [](std::uint64_t size, std::uint32_t type) {
    FrameReader reader;
    std::vector<Frame> frames;
    return Feed(reader, Encode(FrameHeader{.size = size, .type = static_cast<FrameType>(type)}),
                1000, frames);
  };
  EXPECT_ERROR(read(0, 0), Code::kCorrupt, "there is no frame of type 0");
  EXPECT_ERROR(read(0, 11), Code::kCorrupt, "there is no frame of type 11");
  EXPECT_ERROR(read(kMaxPayload + 1, 5), Code::kCorrupt, "expected at most 8589934592");
  EXPECT_ERROR(read(~std::uint64_t{0}, 7), Code::kCorrupt, "with 18446744073709551615 bytes");
  EXPECT_ERROR(read(1, 4), Code::kCorrupt, "a frame of type 4 with 1 bytes, expected at most 0");
  EXPECT_ERROR(read(1, 9), Code::kCorrupt, "a frame of type 9");
  EXPECT_ERROR(read(kMaxErrorText + 5, 8), Code::kCorrupt, "a frame of type 8");
  EXPECT_ERROR(read(kMaxHello + 1, 1), Code::kCorrupt, "a frame of type 1");
}

TEST(Frames, OfAnyBytesDoNotHarm) {
  EXPECT_TRUE(rc::check([](const std::vector<std::uint8_t>& bytes) {
    FrameReader reader;
    std::vector<Frame> frames;
    (void)Feed(reader, std::as_bytes(std::span(bytes)), 5, frames);
  }));
}

TEST(Errors, TravelWhole) {
  EXPECT_TRUE(rc::check([](const std::string& message) {
    const auto code = static_cast<Code>(*rc::gen::inRange(1, 17));
    const Error error = DecodeError(Encode(Error{code, message}));
    RC_ASSERT(error.code == code);
    RC_ASSERT(error.message == message);
  }));
}

TEST(Errors, AreCutAtACharacterAndNeverOfAnUnknownCode) {
  std::string text(kMaxErrorText - 1, 'a');
  text += "ä and more";
  EXPECT_EQ(DecodeError(Encode(Error{Code::kIo, text})).message,
            std::string(kMaxErrorText - 1, 'a'));
  std::vector<std::byte> bytes = Encode(Error{Code::kIo, "text"});
  bytes[0] = std::byte{200};
  EXPECT_EQ(DecodeError(bytes).code, Code::kInternal);
  EXPECT_EQ(DecodeError(bytes).message, "text");
  EXPECT_EQ(DecodeError(ByteSpan(bytes).first(3)).code, Code::kInternal);
}

Hello TestHello() {
  return {.channel = Channel::kWork,
          .group = {.rank = 3, .size = 4, .node_rank = 1, .nodes = 2},
          .pid = 77,
          .chance = 0x1234567890ABCDEF,
          .token = "secret",
          .fingerprint = "model",
          .host = "node-1"};
}

TEST(Hellos, ComeOutAsTheyWentInOnceTheyAreComplete) {
  ASSERT_OK_AND_ASSIGN(const std::vector<std::byte> bytes, Encode(TestHello()));
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    ASSERT_OK_AND_ASSIGN(const auto early, DecodeHello(ByteSpan(bytes).first(size)));
    EXPECT_FALSE(early) << size;
  }
  ASSERT_OK_AND_ASSIGN(const auto decoded, DecodeHello(bytes));
  const Hello& hello = decoded.value();
  const Hello expected = TestHello();
  EXPECT_EQ(hello.channel, expected.channel);
  EXPECT_EQ(hello.group.rank, expected.group.rank);
  EXPECT_EQ(hello.group.size, expected.group.size);
  EXPECT_EQ(hello.group.node_rank, expected.group.node_rank);
  EXPECT_EQ(hello.group.nodes, expected.group.nodes);
  EXPECT_EQ(hello.pid, expected.pid);
  EXPECT_EQ(hello.chance, expected.chance);
  EXPECT_EQ(hello.token, expected.token);
  EXPECT_EQ(hello.fingerprint, expected.fingerprint);
  EXPECT_EQ(hello.host, expected.host);
}

TEST(Hellos, OfOthersAreTold) {
  ASSERT_OK_AND_ASSIGN(const std::vector<std::byte> good, Encode(TestHello()));
  const auto changed = [&](std::size_t at, std::uint8_t value) {
    std::vector<std::byte> bytes = good;
    bytes[at] = std::byte{value};
    return DecodeHello(bytes);
  };
  EXPECT_ERROR(DecodeHello(base::AsBytes("G")), Code::kCorrupt, "does not begin as a rank does");
  EXPECT_ERROR(DecodeHello(base::AsBytes("GET / HTTP/1.1\r\n\r\n")), Code::kCorrupt, "rank");
  EXPECT_ERROR(changed(8, 2), Code::kIncompatible, "it speaks protocol 2, the leader 1");
  EXPECT_ERROR(changed(kPreambleBytes + 20, 5), Code::kCorrupt, "frame of type 5");
  EXPECT_ERROR(changed(kPreambleBytes + 2, 1), Code::kCorrupt, "a frame of type 1 with");
  EXPECT_ERROR(changed(kPreambleBytes + kFrameHeaderBytes, 3), Code::kCorrupt, "channel 3");
  EXPECT_ERROR(changed(kPreambleBytes + kFrameHeaderBytes + 40, 255), Code::kCorrupt, "size");
  std::vector<std::byte> longer = good;
  longer.push_back(std::byte{0});
  EXPECT_ERROR(DecodeHello(longer), Code::kCorrupt, "did not wait");
}

TEST(Hellos, WithAnyByteChangedDoNotHarm) {
  const std::vector<std::byte> good = Encode(TestHello()).value();
  EXPECT_TRUE(rc::check([&] {
    std::vector<std::byte> bytes = good;
    const auto changes = *rc::gen::inRange(1, 5);
    for (int i = 0; i < changes; ++i) {
      bytes[*rc::gen::inRange<std::size_t>(0, bytes.size())] =
          static_cast<std::byte>(*rc::gen::arbitrary<std::uint8_t>());
    }
    bytes.resize(*rc::gen::inRange<std::size_t>(0, bytes.size() + 1));
    (void)DecodeHello(bytes);
  }));
}

TEST(Hellos, AreOfBoundedSize) {
  Hello hello = TestHello();
  hello.fingerprint = std::string(kMaxHello, 'x');
  EXPECT_ERROR(Encode(hello), Code::kLimitExceeded, "expected at most 65536");
}

TEST(Welcomes, ThatMakeNoSenseAreCorrupt) {
  const auto decode = [](std::uint32_t heartbeat, std::uint32_t silence) {
    return DecodeWelcome(Encode(Welcome{.heartbeat_ms = heartbeat, .silence_ms = silence}));
  };
  ASSERT_OK_AND_ASSIGN(const Welcome welcome, decode(500, 3000));
  EXPECT_EQ(welcome.heartbeat_ms, 500);
  EXPECT_EQ(welcome.silence_ms, 3000);
  EXPECT_ERROR(decode(0, 3000), Code::kCorrupt, "welcome");
  EXPECT_ERROR(decode(500, 500), Code::kCorrupt, "welcome");
  EXPECT_ERROR(DecodeWelcome({}), Code::kCorrupt, "welcome");
}

}  // namespace
}  // namespace syncline::ranks
