#include "objects/range_receiver.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "base/result_matchers.h"

namespace syncline::objects {
namespace {

ReplyHead Head(int status, const std::vector<std::string>& lines) {
  ReplyHead head;
  EXPECT_OK(head.AddLine(fmt::format("HTTP/1.1 {} Text", status)));
  for (const std::string& line : lines) EXPECT_OK(head.AddLine(line));
  return head;
}

// Whatever a true server sends, in whatever pieces, with whatever breaks: the bytes are the right
// ones, each is told once, and no byte that came is asked for again.
RC_GTEST_PROP(RangeReceiver, TakesItsPart, ()) {
  const auto content = *rc::gen::nonEmpty<std::string>();
  const auto offset = *rc::gen::inRange<std::size_t>(0, content.size());
  const auto size = *rc::gen::inRange<std::size_t>(1, content.size() - offset + 1);
  std::string into(size, '\0');
  std::uint64_t told = 0;
  const std::function<void(std::uint64_t)> received = [&](std::uint64_t more) { told += more; };
  RangeReceiver receiver("object", std::as_writable_bytes(std::span(into)), offset, "", received);
  for (int tries = 0; !receiver.complete(); ++tries) {
    const std::size_t first = offset + receiver.done();
    const std::size_t last = offset + size - 1;
    RC_ASSERT(receiver.RangeHeader() == fmt::format("bytes={}-{}", first, last));
    const bool whole = *rc::gen::arbitrary<bool>();
    // At last a whole reply without a break.
    const std::size_t end = tries > 20 ? last : *rc::gen::inRange<std::size_t>(first, last + 1);
    const std::string body = whole ? content : content.substr(first, end - first + 1);
    const ReplyHead head =
        whole
            ? Head(200, {fmt::format("Content-Length: {}", body.size())})
            : Head(206, {fmt::format("Content-Range: bytes {}-{}/{}", first, end, content.size())});
    RC_ASSERT(receiver.OnHead(head).has_value());
    const std::size_t broken =
        tries > 20 ? body.size() : *rc::gen::inRange<std::size_t>(0, body.size() + 1);
    auto take = Receiver::Take::kMore;
    for (std::size_t at = 0; at < broken && take == Receiver::Take::kMore;) {
      const std::size_t piece = *rc::gen::inRange<std::size_t>(1, broken - at + 1);
      const auto taken = receiver.OnBody(base::AsBytes(std::string_view(body).substr(at, piece)));
      RC_ASSERT(taken.has_value());
      take = *taken;
      at += piece;
    }
    if (take == Receiver::Take::kEnough) RC_ASSERT(receiver.complete());
  }
  RC_ASSERT(into == content.substr(offset, size));
  RC_ASSERT(told == size);
}

}  // namespace
}  // namespace syncline::objects
