// Bytes that wait for a socket, in order. Large strings are kept as they came, small ones are
// joined, so that a burst of small writes costs neither many allocations nor many segments.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace syncline::http {

class WriteQueue {
 public:
  static constexpr std::size_t kMaxGather = 64;  // pieces of one write
  using Pieces = std::array<std::string_view, kMaxGather>;

  void Append(std::string_view bytes);
  void Adopt(std::string bytes);     // without a copy if it is large
  void Append(WriteQueue&& others);  // leaves `others` empty

  std::size_t bytes() const { return bytes_; }
  bool empty() const { return bytes_ == 0; }

  // The bytes at the front, as far as they fit into `pieces`. Valid until the queue changes.
  std::span<const std::string_view> Front(Pieces& pieces) const;
  void Consume(std::size_t bytes);  // takes that many from the front
  void Clear();                     // and gives its memory back

 private:
  std::vector<std::string> pieces_;  // never holds an empty one
  std::size_t first_ = 0;            // pieces before it are sent
  std::size_t offset_ = 0;           // bytes of the first one that are sent
  std::size_t bytes_ = 0;
};

}  // namespace syncline::http
