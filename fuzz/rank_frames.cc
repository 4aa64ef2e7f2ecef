// What a rank hears from a peer: ranks::DecodeHello, FrameReader, DecodeError and DecodeWelcome,
// and the messages inside of frames, read by base::WireReader.
//
// The input is a byte of what is read and of how often what follows is repeated, a byte n, n bytes
// of a script (sizes of pieces, or kinds of values), and the bytes themselves.
//
// - However a stream is cut, the same comes out of it, and as early as it can.
// - What was read is written as the same bytes.
// - Memory stays within a multiple of the bytes that have come.
#include <algorithm>
#include <optional>

#include "base/wire.h"
#include "ranks/protocol.h"
#include "support.h"

namespace syncline::fuzz {
namespace {

using base::ByteSpan;
using base::Code;
using base::Load;
using base::Status;
using Buffer = std::vector<std::byte>;
using ranks::FrameType;

constexpr std::size_t kMaxBytes = std::size_t{192} << 10;
constexpr std::uint64_t kSmallRoom = 4096;  // so that announced bytes would be seen
constexpr std::size_t kReaderBytes = std::size_t{128} << 10;  // of a reader that has seen nothing

Buffer Joined(ByteSpan a, ByteSpan b) {
  Buffer joined(a.begin(), a.end());
  joined.insert(joined.end(), b.begin(), b.end());
  return joined;
}

bool Same(ByteSpan a, ByteSpan b) { return std::ranges::equal(a, b); }

// Numbers from the input, over and over again.
class Script {
 public:
  explicit Script(ByteSpan bytes) : bytes_(bytes) {}

  std::size_t Next() {
    if (bytes_.empty()) return 255;
    return static_cast<std::size_t>(bytes_[at_++ % bytes_.size()]);
  }
  // 1 to 32 bytes as they are, then up to 70 kB.
  std::size_t NextPiece() {
    const std::size_t number = Next();
    return number < 32 ? number + 1 : (number - 31) * (number - 31) * 7 / 5;
  }
  bool AtEnd() const { return at_ >= bytes_.size(); }

 private:
  ByteSpan bytes_;
  std::size_t at_ = 0;
};

// The parts of a hello that say nothing, which are not looked at.
void ClearIdle(Buffer& hello) {
  constexpr std::size_t kHeader = ranks::kPreambleBytes;
  constexpr std::size_t kPayload = kHeader + ranks::kFrameHeaderBytes;
  std::fill_n(hello.begin() + 12, 4, std::byte{0});
  std::fill_n(hello.begin() + kHeader + 8, 12, std::byte{0});
  std::fill_n(hello.begin() + kPayload + 20, 4, std::byte{0});
}

void CheckHello(ByteSpan received, Script script) {
  std::optional<Code> refused;
  bool read = false;
  for (std::size_t size = 0;; size = std::min(received.size(), size + script.NextPiece())) {
    const MemoryWatch watch;
    const auto hello = ranks::DecodeHello(received.first(size));
    Must(watch.peak() <= 4096 + 4 * size, "memory of a hello is bounded by what has come");
    if (!hello) {
      const Code code = hello.error().code;
      Must(code == Code::kCorrupt || code == Code::kIncompatible, "a known reason");
      Must(!refused || *refused == code, "who is refused stays refused");
      refused = code;
    } else {
      Must(!refused && !read, "nothing may follow a hello, and nothing mends one");
      if (!*hello) {
        Must(size < ranks::kPreambleBytes + ranks::kFrameHeaderBytes + ranks::kMaxHello,
             "nobody waits for a hello that is too long");
      } else {
        read = true;
        Buffer expected(received.begin(), received.begin() + static_cast<std::ptrdiff_t>(size));
        ClearIdle(expected);
        const auto written = ranks::Encode(**hello);
        Must(written && *written == expected, "a hello survives writing");
      }
    }
    if (size == received.size()) return;
  }
}

// Where frames of a stream end, found as plainly as can be.
struct Ends {
  std::vector<std::size_t> frames;
  std::optional<std::size_t> corrupt;  // behind a header that is none
};

Ends FindEnds(ByteSpan stream) {
  Ends ends;
  std::size_t at = 0;
  while (stream.size() - at >= ranks::kFrameHeaderBytes) {
    const auto bytes = stream.subspan(at).first<ranks::kFrameHeaderBytes>();
    at += ranks::kFrameHeaderBytes;
    const auto header = ranks::DecodeFrameHeader(bytes);
    if (!header) {
      ends.corrupt = at;
      return ends;
    }
    Must(Same(ranks::Encode(*header), bytes), "a header survives writing");
    if (header->size > stream.size() - at) return ends;
    at += header->size;
    ends.frames.push_back(at);
  }
  return ends;
}

void CheckFrames(ByteSpan stream, const std::vector<ranks::Frame>& frames, const Ends& ends) {
  std::size_t begin = 0;
  for (std::size_t i = 0; i < frames.size(); ++i) {
    const ranks::Message& message = frames[i].message;
    const auto header = ranks::Encode(ranks::FrameHeader{.size = message.payload.size(),
                                                         .id = message.id,
                                                         .kind = message.kind,
                                                         .type = frames[i].type});
    const ByteSpan expected = stream.subspan(begin, ends.frames[i] - begin);
    Must(Same(Joined(header, message.payload), expected), "a frame survives writing");
    begin = ends.frames[i];
  }
}

void CheckStream(ByteSpan stream, Script script) {
  const Ends ends = FindEnds(stream);
  const MemoryWatch watch;
  ranks::FrameReader reader(kSmallRoom);
  std::vector<ranks::Frame> frames;
  for (std::size_t come = 0; come < stream.size();) {
    const auto space = reader.Space();
    Must(space && !space->empty(), "there is always room for a byte");
    Must(space->size() <= kReaderBytes + 4 * come, "what is written to is bounded");
    const std::size_t count = std::min({space->size(), stream.size() - come, script.NextPiece()});
    std::ranges::copy(stream.subspan(come, count), space->begin());
    come += count;
    const Status took = reader.Took(count, frames);
    Must(watch.peak() <= kReaderBytes + 16 * come, "memory is bounded by what has come");
    const bool corrupt = ends.corrupt && *ends.corrupt <= come;
    Must(took.has_value() != corrupt, "a bad header is noticed at once, and nothing else is bad");
    const auto whole = std::ranges::upper_bound(ends.frames, come) - ends.frames.begin();
    Must(std::cmp_equal(frames.size(), whole), "a frame comes out as soon as it is complete");
    if (!took) {
      Must(took.error().code == Code::kCorrupt, "a stream that is refused is corrupt");
      break;
    }
  }
  CheckFrames(stream, frames, ends);
}

void CheckPayloads(ByteSpan payload) {
  const MemoryWatch watch;
  const base::Error error = ranks::DecodeError(payload);
  const auto welcome = ranks::DecodeWelcome(payload);
  Must(watch.peak() <= 4096 + 4 * payload.size(), "memory is bounded by the payload");

  Must(error.code >= Code::kInternal && error.code <= Code::kCancelled, "a code that is known");
  const Buffer written = ranks::Encode(error);
  Must(written.size() <= 4 + ranks::kMaxErrorText, "an error fits into its frame");
  const base::Error again = ranks::DecodeError(written);
  Must(again.code == error.code && error.message.starts_with(again.message),
       "an error survives writing");
  if (payload.size() >= 4 && payload.size() <= 4 + ranks::kMaxErrorText) {
    const bool known =
        Load<std::uint32_t>(payload.data()) == static_cast<std::uint32_t>(error.code);
    Must(Same(ByteSpan(written).subspan(4), payload.subspan(4)), "its text is what has come");
    Must(known ? Same(written, payload) : error.code == Code::kInternal, "as is its code");
  }

  if (!welcome) {
    Must(welcome.error().code == Code::kCorrupt, "a welcome that is refused is corrupt");
    return;
  }
  Must(Same(ranks::Encode(*welcome), payload), "a welcome survives writing");
  Must(welcome->heartbeat_ms > 0 && welcome->silence_ms > welcome->heartbeat_ms,
       "a welcome makes sense");
}

// Reads a value of the kind that the script names, and writes what was read.
template <typename T>
bool TakeNumberOrArray(base::WireReader& reader, base::WireWriter& writer, bool array) {
  if (array) {
    const std::vector<T> values = reader.TakeArray<T>();
    writer.PutArray(values);
    return std::ranges::all_of(values, [](T value) { return value == T{}; });
  }
  const T value = reader.Take<T>();
  writer.Put(value);
  return value == T{};
}

// Was it zero or empty?
bool TakeValue(std::size_t kind, base::WireReader& reader, base::WireWriter& writer) {
  const bool array = kind % 2 == 1;
  switch (kind / 2 % 8) {
    case 0:
      return TakeNumberOrArray<std::uint8_t>(reader, writer, array);
    case 1:
      return TakeNumberOrArray<std::int16_t>(reader, writer, array);
    case 2:
      return TakeNumberOrArray<std::uint32_t>(reader, writer, array);
    case 3:
      return TakeNumberOrArray<std::uint64_t>(reader, writer, array);
    case 4:
      return TakeNumberOrArray<float>(reader, writer, array);
    case 5:
      return TakeNumberOrArray<double>(reader, writer, array);
    case 6: {
      const std::string text = reader.TakeText();
      writer.PutText(text);
      return text.empty();
    }
    default: {
      const ByteSpan bytes = reader.TakeBytes();
      writer.PutBytes(bytes);
      return bytes.empty();
    }
  }
}

void CheckMessage(ByteSpan message, Script script) {
  const MemoryWatch watch;
  base::WireReader reader(message);
  std::size_t read = 0;
  bool broken = false;
  while (true) {
    base::WireWriter writer;
    const bool nothing = TakeValue(script.Next(), reader, writer);
    const Buffer written = std::move(writer).Take();
    const ByteSpan rest = message.subspan(read);
    const bool fits = written.size() <= rest.size() && Same(written, rest.first(written.size()));
    broken = broken || !fits;
    Must(!broken || nothing, "behind what is missing there is nothing");
    if (!broken) read += written.size();
    if (script.AtEnd() || broken) break;
  }
  Must(watch.peak() <= 4096 + 8 * message.size(), "memory is bounded by the message");
  const Status status = reader.status();
  Must(status.has_value() == (!broken && read == message.size()), "all was read, and no more");
  Must(status || status.error().code == Code::kCorrupt, "a message that does not fit is corrupt");
  if (!broken) return;
  base::WireWriter writer;
  for (std::size_t kind = 0; kind < 16; ++kind) {
    Must(TakeValue(kind, reader, writer), "a reader that is broken stays so");
  }
  Must(!reader.status(), "a reader that is broken stays so");
}

Buffer Repeated(ByteSpan bytes, std::size_t times) {
  Buffer all;
  for (std::size_t i = 0; i < times && all.size() + bytes.size() <= kMaxBytes; ++i) {
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

}  // namespace
}  // namespace syncline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace syncline;
  constexpr std::size_t kTimes[] = {1, 1, 2, 1000};
  if (size < 2) return 0;
  const std::size_t script_size = std::min<std::size_t>(data[1], size - 2);
  const fuzz::Script script(fuzz::Bytes(data + 2, script_size));
  const base::ByteSpan rest = fuzz::Bytes(data + 2 + script_size, size - 2 - script_size);
  const fuzz::Buffer bytes = fuzz::Repeated(rest, kTimes[data[0] / 4 % 4]);
  switch (data[0] % 4) {
    case 0:
      fuzz::CheckHello(bytes, script);
      break;
    case 1:
      fuzz::CheckStream(bytes, script);
      break;
    case 2:
      fuzz::CheckPayloads(bytes);
      break;
    default:
      fuzz::CheckMessage(bytes, script);
  }
  return 0;
}
