// The framing of a chunked body (RFC 9112 section 7.1), byte for byte: input may be split anywhere.
//
// Strict: sizes are hexadecimal with nothing in front, lines end in CRLF. Extensions and trailers
// are skipped. Nothing is buffered; the data stays in the caller's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace syncline::http {

class ChunkDecoder {
 public:
  // max_line_bytes: of a size line with its extension; max_trailer_bytes: of all trailers.
  ChunkDecoder(std::size_t max_line_bytes, std::size_t max_trailer_bytes)
      : max_line_bytes_(max_line_bytes), max_trailer_bytes_(max_trailer_bytes) {}

  enum class Status {
    kMore,             // all input was framing; more is needed
    kData,             // data_left() bytes of the body come next in the input
    kDone,             // the body is complete; what follows belongs to the next request
    kMalformed,        // a byte that the framing does not allow
    kTrailersTooLong,  // more than max_trailer_bytes
  };

  // Skips framing at the front of `input` and says what follows. When kData is returned the caller
  // takes data from the input and reports it with TakeData before it goes on.
  Status Skip(std::string_view& input);

  std::uint64_t data_left() const { return data_left_; }
  void TakeData(std::uint64_t bytes) { data_left_ -= bytes; }

 private:
  enum class State {
    kSizeStart,  // expects the first digit
    kSize,
    kExtension,
    kSizeEnd,  // the CR of a size line has come
    kDataLine,
    kDataEnd,
    kTrailerStart,  // at the start of a trailer line
    kTrailer,
    kTrailerEnd,
    kLastEnd,  // the CR of the empty line has come
    kDone,
    kMalformed,
  };
  State Step(char c);
  State StepSize(char c);
  State EndOfSizeLine();

  std::size_t max_line_bytes_;
  std::size_t max_trailer_bytes_;
  State state_ = State::kSizeStart;
  std::uint64_t size_ = 0;       // of the chunk whose size line is being read
  std::uint64_t data_left_ = 0;  // of the chunk whose data is being read
  std::size_t line_bytes_ = 0;   // of this size line, or of all trailers
};

}  // namespace syncline::http
