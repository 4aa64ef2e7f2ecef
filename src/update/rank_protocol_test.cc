#include "update/rank_protocol.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/result_matchers.h"

namespace syncline::update {
namespace {

using base::Code;

// Every shorter message is refused, and so is a longer one.
template <typename Decode>
void ExpectStrict(const Payload& payload, const Decode& decode) {
  for (std::size_t size = 0; size < payload.size(); ++size) {
    EXPECT_FALSE(decode(base::ByteSpan(payload).first(size)).has_value()) << size;
  }
  Payload longer = payload;
  longer.push_back(std::byte{0});
  EXPECT_ERROR(decode(longer), Code::kCorrupt, "too long");
}

TEST(RankProtocol, PullOutcomes) {
  PullOutcome failed = {.status = base::Fail(Code::kNotFound, "versions 1 to 4 are missing"),
                        .held = 7};
  const Payload payload = Encode(failed);
  ASSERT_OK_AND_ASSIGN(const PullOutcome found, DecodePullOutcome(payload));
  EXPECT_ERROR(found.status, Code::kNotFound, "versions 1 to 4 are missing");
  EXPECT_EQ(found.held, 7U);
  ExpectStrict(payload, DecodePullOutcome);
  Payload unknown_code = payload;
  unknown_code[1] = std::byte{200};
  EXPECT_ERROR(DecodePullOutcome(unknown_code), Code::kCorrupt, "code");
  ASSERT_OK_AND_ASSIGN(const PullOutcome nothing, DecodePullOutcome(Encode(PullOutcome())));
  EXPECT_OK(nothing.status);
  EXPECT_FALSE(nothing.held);
}

TEST(RankProtocol, StagedAndDigests) {
  const Staged staged = {.loaded = {.tensors = 3, .skipped = 1, .bytes = 1ULL << 40},
                         .held = "version 7",
                         .unchanged = true};
  ASSERT_OK_AND_ASSIGN(const Staged found, DecodeStaged(Encode(staged)));
  EXPECT_EQ(found.loaded.bytes, 1ULL << 40);
  EXPECT_EQ(found.loaded.skipped, 1U);
  EXPECT_EQ(found.held, "version 7");
  EXPECT_TRUE(found.unchanged);
  ExpectStrict(Encode(staged), DecodeStaged);
  const RankDigests digests = {.tensors = {{1, 2}, {3, 4}}, .derived = "ab"};
  ASSERT_OK_AND_ASSIGN(const RankDigests same, DecodeRankDigests(Encode(digests)));
  EXPECT_EQ(same.tensors, digests.tensors);
  EXPECT_EQ(same.derived, "ab");
  ExpectStrict(Encode(digests), DecodeRankDigests);
}

TEST(RankProtocol, OwnedParts) {
  const std::vector<layout::OwnedPart> parts = {{{{0, 1}, {2, 3}}, Payload(4, std::byte{9})}, {}};
  ASSERT_OK_AND_ASSIGN(const auto found, DecodeOwnedParts(Encode(std::span(parts))));
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].box, parts[0].box);
  EXPECT_EQ(found[0].bytes, parts[0].bytes);
  ExpectStrict(Encode(std::span(parts)), DecodeOwnedParts);
}

TEST(RankProtocol, RequestsAndNumbers) {
  const PullRequest request = {.source = "s3://a", .replica = "/b", .version = 5};
  ASSERT_OK_AND_ASSIGN(const PullRequest found, DecodePullRequest(Encode(request)));
  EXPECT_EQ(found.source, "s3://a");
  EXPECT_EQ(found.replica, "/b");
  EXPECT_EQ(found.version, 5U);
  ExpectStrict(Encode(request), DecodePullRequest);
  ExpectStrict(EncodeText("path"), DecodeText);
  ExpectStrict(EncodeNumber(77), DecodeNumber);
}

}  // namespace
}  // namespace syncline::update
