#include "http/write_queue.h"

#include <algorithm>
#include <utility>

namespace syncline::http {
namespace {

constexpr std::size_t kJoinedBytes = 16 << 10;  // small strings are joined up to this size
constexpr std::size_t kLargeBytes = 4 << 10;    // from this size on a string is not copied
constexpr std::size_t kSentPieces = 256;        // so many may stay before the front is cut off

}  // namespace

void WriteQueue::Append(std::string_view bytes) {
  if (bytes.empty()) return;
  const bool has_last = first_ < pieces_.size();
  if (has_last && pieces_.back().size() + bytes.size() <= kJoinedBytes) {
    pieces_.back().append(bytes);
  } else {
    pieces_.emplace_back(bytes);
  }
  bytes_ += bytes.size();
}

void WriteQueue::Adopt(std::string bytes) {
  if (bytes.size() < kLargeBytes) return Append(bytes);
  bytes_ += bytes.size();
  pieces_.push_back(std::move(bytes));
}

void WriteQueue::Append(WriteQueue&& others) {
  if (empty()) {
    std::swap(*this, others);
  } else {
    for (std::size_t i = others.first_; i < others.pieces_.size(); ++i) {
      if (i == others.first_ && others.offset_ > 0) {
        Append(std::string_view(others.pieces_[i]).substr(others.offset_));
      } else {
        Adopt(std::move(others.pieces_[i]));
      }
    }
  }
  others.Clear();
}

std::span<const std::string_view> WriteQueue::Front(Pieces& pieces) const {
  const std::size_t count = std::min(pieces_.size() - first_, kMaxGather);
  for (std::size_t i = 0; i < count; ++i) pieces[i] = pieces_[first_ + i];
  if (count > 0) pieces[0].remove_prefix(offset_);
  return std::span(pieces).first(count);
}

void WriteQueue::Consume(std::size_t bytes) {
  bytes_ -= bytes;
  while (bytes > 0) {
    const std::size_t left = pieces_[first_].size() - offset_;
    if (bytes < left) {
      offset_ += bytes;
      break;
    }
    bytes -= left;
    std::string().swap(pieces_[first_]);
    ++first_;
    offset_ = 0;
  }
  if (first_ == pieces_.size()) return Clear();
  if (first_ >= kSentPieces) {
    pieces_.erase(pieces_.begin(), pieces_.begin() + static_cast<std::ptrdiff_t>(first_));
    first_ = 0;
  }
}

void WriteQueue::Clear() {
  std::vector<std::string>().swap(pieces_);
  first_ = 0;
  offset_ = 0;
  bytes_ = 0;
}

}  // namespace syncline::http
