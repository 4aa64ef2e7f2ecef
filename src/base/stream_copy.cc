#include "base/stream_copy.h"

#include <cstdint>
#include <cstring>

// The thread sanitizer does not see stores past the caches.
#if defined(__SSE2__) && !defined(__SANITIZE_THREAD__)
#include <emmintrin.h>
#define SYNCLINE_STREAMS 1
#endif

namespace syncline::base {

#ifdef SYNCLINE_STREAMS

namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kLeast = 4 << 10;  // where the fence at the end no longer counts
constexpr std::size_t kAhead = 1 << 10;  // of the prefetch; reading beyond the end does no harm

// Whole lines; `to` is aligned to them.
void CopyLines(std::byte* to, const std::byte* from, std::size_t lines) {
  for (std::size_t i = 0; i < lines; ++i, to += kLine, from += kLine) {
    _mm_prefetch(reinterpret_cast<const char*>(from) + kAhead, _MM_HINT_NTA);
    const auto* const source = reinterpret_cast<const __m128i*>(from);
    auto* const target = reinterpret_cast<__m128i*>(to);
    const __m128i a = _mm_loadu_si128(source);
    const __m128i b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2);
    const __m128i d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  // Such stores are not ordered with those that follow, as of a lock that is given back.
  _mm_sfence();
}

}  // namespace

void StreamCopy(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes < kLeast) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return;
  }
  const std::size_t head = -reinterpret_cast<std::uintptr_t>(to) % kLine;
  std::memcpy(to, from, head);
  const std::size_t lines = (bytes - head) / kLine;
  CopyLines(to + head, from + head, lines);
  const std::size_t done = head + lines * kLine;
  std::memcpy(to + done, from + done, bytes - done);
}

#else

void StreamCopy(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

#endif

}  // namespace syncline::base
