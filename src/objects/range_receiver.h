// Takes a range of an object out of one or more replies to ranged GETs, and believes none of them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/bytes.h"
#include "objects/transfer.h"

namespace syncline::objects {

// Each try asks for what is still missing, [offset + done(), offset + into.size()). Not
// thread-safe. All arguments must outlive it.
class RangeReceiver final : public Receiver {
 public:
  // A server that ignores Range sends all from the beginning: so much of it is thrown away at most.
  static constexpr std::uint64_t kMaxSkip = 64 << 20;

  // object: for messages. tag: the one that the object must have; empty: that of the first reply.
  RangeReceiver(std::string object, base::MutableByteSpan into, std::uint64_t offset,
                std::string tag, const std::function<void(std::uint64_t)>& received);

  std::uint64_t done() const { return done_; }
  bool complete() const { return done_ == into_.size(); }
  std::string RangeHeader() const;  // "bytes=100-199"
  const std::string& tag() const { return tag_; }

  // What a 412 or 416 means here; any other status is left to the caller.
  std::optional<base::Error> ErrorOf(const ReplyHead& head) const;

  Tried<void> OnHead(const ReplyHead& head) override;
  Tried<Take> OnBody(base::ByteSpan bytes) override;
  // After a transfer without failure: has all come that the head promised?
  Tried<void> OnEnd() const;

 private:
  Tried<void> TakeRange(const ReplyHead& head);
  Tried<void> TakeWhole(const ReplyHead& head);
  base::Error Ends(std::uint64_t total) const;

  std::string object_;
  base::MutableByteSpan into_;
  std::uint64_t offset_;
  std::string tag_;
  const std::function<void(std::uint64_t)>& received_;
  std::uint64_t done_ = 0;
  std::uint64_t skip_ = 0;      // bytes of this reply before the wanted ones
  std::uint64_t promised_ = 0;  // wanted bytes of this reply that are still to come
  bool whole_ = false;          // this reply is the whole object
  // Does this reply say where it ends? Otherwise it ends with its connection, be it whole or not.
  bool framed_ = false;
};

}  // namespace syncline::objects
