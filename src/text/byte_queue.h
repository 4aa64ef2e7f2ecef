// Bytes that come in at the end and go out at the start, in amortised linear time.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace syncline::text {

class ByteQueue {
 public:
  bool empty() const { return done_ == bytes_.size(); }
  // Valid until the next call that is not const.
  std::string_view view() const { return std::string_view(bytes_).substr(done_); }

  void Append(std::string_view bytes) { bytes_ += bytes; }
  // Takes the first `count` bytes away.
  void Drop(std::size_t count) {
    done_ += count;
    if (done_ * 2 < bytes_.size()) return;
    bytes_.erase(0, done_);
    done_ = 0;
  }

 private:
  std::string bytes_;
  std::size_t done_ = 0;  // so many bytes of bytes_ are gone
};

}  // namespace syncline::text
