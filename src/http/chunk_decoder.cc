#include "http/chunk_decoder.h"

#include <limits>

namespace syncline::http {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

ChunkDecoder::State ChunkDecoder::StepSize(char c) {
  if (const int digit = HexDigit(c); digit >= 0) {
    if (size_ > std::numeric_limits<std::uint64_t>::max() / 16) return State::kMalformed;
    size_ = size_ * 16 + static_cast<std::uint64_t>(digit);
    return State::kSize;
  }
  if (state_ == State::kSizeStart) return State::kMalformed;
  if (c == '\r') return State::kSizeEnd;
  return c == ';' || c == ' ' || c == '\t' ? State::kExtension : State::kMalformed;
}

ChunkDecoder::State ChunkDecoder::EndOfSizeLine() {
  line_bytes_ = 0;
  if (size_ == 0) return State::kTrailerStart;
  data_left_ = size_;
  size_ = 0;
  return State::kDataLine;
}

ChunkDecoder::State ChunkDecoder::Step(char c) {
  switch (state_) {
    case State::kSizeStart:
    case State::kSize:
      return StepSize(c);
    case State::kExtension:
      if (c == '\n') return State::kMalformed;
      return c == '\r' ? State::kSizeEnd : State::kExtension;
    case State::kSizeEnd:
      return c == '\n' ? EndOfSizeLine() : State::kMalformed;
    case State::kDataLine:
      return c == '\r' ? State::kDataEnd : State::kMalformed;
    case State::kDataEnd:
      return c == '\n' ? State::kSizeStart : State::kMalformed;
    case State::kTrailerStart:
      if (c == '\r') return State::kLastEnd;
      [[fallthrough]];
    case State::kTrailer:
      if (c == '\n') return State::kMalformed;
      return c == '\r' ? State::kTrailerEnd : State::kTrailer;
    case State::kTrailerEnd:
      return c == '\n' ? State::kTrailerStart : State::kMalformed;
    case State::kLastEnd:
      return c == '\n' ? State::kDone : State::kMalformed;
    case State::kDone:
    case State::kMalformed:
      break;
  }
  return state_;
}

ChunkDecoder::Status ChunkDecoder::Skip(std::string_view& input) {
  while (true) {
    if (data_left_ > 0) return Status::kData;
    if (state_ == State::kDone) return Status::kDone;
    if (state_ == State::kMalformed) return Status::kMalformed;
    if (input.empty()) return Status::kMore;
    const bool in_trailers = state_ >= State::kTrailerStart;
    if (++line_bytes_ > (in_trailers ? max_trailer_bytes_ : max_line_bytes_)) {
      if (in_trailers) return Status::kTrailersTooLong;
      state_ = State::kMalformed;
      continue;
    }
    state_ = Step(input.front());
    input.remove_prefix(1);
  }
}

}  // namespace syncline::http
