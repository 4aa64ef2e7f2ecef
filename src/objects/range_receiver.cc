#include "objects/range_receiver.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace syncline::objects {
using base::Code;

RangeReceiver::RangeReceiver(std::string object, base::MutableByteSpan into, std::uint64_t offset,
                             std::string tag, const std::function<void(std::uint64_t)>& received)
    : object_(std::move(object)),
      into_(into),
      offset_(offset),
      tag_(std::move(tag)),
      received_(received) {}

std::string RangeReceiver::RangeHeader() const {
  return fmt::format("bytes={}-{}", offset_ + done_, offset_ + into_.size() - 1);
}

base::Error RangeReceiver::Ends(std::uint64_t total) const {
  return {Code::kCorrupt, fmt::format("{} is truncated: expected at least {} bytes, found {}",
                                      object_, offset_ + into_.size(), total)};
}

std::optional<base::Error> RangeReceiver::ErrorOf(const ReplyHead& head) const {
  if (head.status == 412) {
    return base::Error{
        Code::kOutOfOrder,
        fmt::format("{} changed while it was read: it has no longer the tag {}", object_, tag_)};
  }
  if (head.status != 416) return std::nullopt;
  const std::string* value = head.Header("content-range");
  const auto range = value == nullptr ? std::nullopt : ContentRange::Parse(*value);
  if (range && range->total && *range->total < offset_ + into_.size()) return Ends(*range->total);
  return base::Error{
      Code::kCorrupt,
      fmt::format("{}: the server has nothing at {} of it (status 416)", object_, RangeHeader())};
}

Tried<void> RangeReceiver::OnHead(const ReplyHead& head) {
  const std::string tag = head.Tag();
  if (tag_.empty()) {
    tag_ = tag;
  } else if (!tag.empty() && tag != tag_) {
    return FailForGood(
        Code::kOutOfOrder,
        fmt::format("{} changed while it was read: its tag was {} and is {}", object_, tag_, tag));
  }
  skip_ = 0;
  whole_ = head.status != 206;
  framed_ = head.Length() || head.Header("transfer-encoding") != nullptr;
  if (head.status == 206) return TakeRange(head);
  if (head.status == 200) return TakeWhole(head);
  return FailForGood(Code::kIncompatible,
                     fmt::format("{}: the server answers {} to a GET", object_, head.status));
}

Tried<void> RangeReceiver::TakeRange(const ReplyHead& head) {
  const std::string* value = head.Header("content-range");
  const auto range = value == nullptr ? std::nullopt : ContentRange::Parse(*value);
  const auto lie = [&] {
    return FailForGood(Code::kCorrupt,
                       fmt::format("{}: asked for {}, got status 206 with Content-Range '{}'",
                                   object_, RangeHeader(), value == nullptr ? "" : *value));
  };
  if (!range || !range->has_range || range->first != offset_ + done_ ||
      range->last >= offset_ + into_.size()) {
    return lie();
  }
  if (range->total && *range->total < offset_ + into_.size()) {
    return FailForGood(Ends(*range->total));
  }
  promised_ = range->last - range->first + 1;
  if (head.Length().value_or(promised_) != promised_) {
    return FailForGood(Code::kCorrupt,
                       fmt::format("{}: Content-Range '{}' is {} bytes, but Content-Length says {}",
                                   object_, *value, promised_, *head.Length()));
  }
  return {};
}

Tried<void> RangeReceiver::TakeWhole(const ReplyHead& head) {
  const std::uint64_t total = head.Length().value_or(offset_ + into_.size());
  if (total < offset_ + into_.size()) return FailForGood(Ends(total));
  skip_ = offset_ + done_;
  promised_ = into_.size() - done_;
  if (skip_ <= kMaxSkip) return {};
  return FailForGood(
      Code::kIncompatible,
      fmt::format("{}: the server ignores Range (it answers 200): it would send {} bytes before "
                  "the wanted ones, more than {}",
                  object_, skip_, kMaxSkip));
}

Tried<Receiver::Take> RangeReceiver::OnBody(base::ByteSpan bytes) {
  const std::uint64_t skipped = std::min<std::uint64_t>(skip_, bytes.size());
  skip_ -= skipped;
  bytes = bytes.subspan(static_cast<std::size_t>(skipped));
  if (bytes.size() > promised_ && !whole_) {
    return FailForGood(Code::kCorrupt, fmt::format("{}: the server sends more than it promised for "
                                                   "{}",
                                                   object_, RangeHeader()));
  }
  const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), promised_));
  if (size > 0) {
    std::memcpy(into_.data() + done_, bytes.data(), size);
    done_ += size;
    promised_ -= size;
    if (received_) received_(size);
  }
  return whole_ && promised_ == 0 ? Take::kEnough : Take::kMore;
}

Tried<void> RangeReceiver::OnEnd() const {
  if (promised_ == 0) return {};
  return std::unexpected(
      Failure{.error = {framed_ ? Code::kCorrupt : Code::kUnavailable,
                        fmt::format("{}: the reply ends after {} of the {} bytes wanted at {}",
                                    object_, done_, into_.size(), offset_)},
              .may_pass = !framed_});
}

}  // namespace syncline::objects
