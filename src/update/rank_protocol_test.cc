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
  const Staged staged = {.tensors = 3,
                         .skipped = 1,
                         .bytes = 1ULL << 40,
                         .loaded = true,
                         .unchanged = true,
                         .in_place = true,
                         .held = "version 7",
                         .pending = {"a: weight", "b"}};
  ASSERT_OK_AND_ASSIGN(const Staged found, DecodeStaged(Encode(staged)));
  EXPECT_EQ(found.tensors, 3U);
  EXPECT_EQ(found.bytes, 1ULL << 40);
  EXPECT_EQ(found.skipped, 1U);
  EXPECT_EQ(found.held, "version 7");
  EXPECT_TRUE(found.loaded && found.unchanged && found.in_place);
  EXPECT_EQ(found.pending, staged.pending);
  ExpectStrict(Encode(staged), DecodeStaged);
  const RankDigests digests = {.tensors = {{1, 2}, {3, 4}}, .derived = "ab"};
  ASSERT_OK_AND_ASSIGN(const RankDigests same, DecodeRankDigests(Encode(digests)));
  EXPECT_EQ(same.tensors, digests.tensors);
  EXPECT_EQ(same.derived, "ab");
  ExpectStrict(Encode(digests), DecodeRankDigests);
  const WindowInfo window = {
      .session = "h:1",
      .parameters = {{.name = "w", .address = 1, .elements = 2, .element_bytes = 3}}};
  ASSERT_OK_AND_ASSIGN(const WindowInfo offered, DecodeWindowInfo(Encode(window)));
  EXPECT_EQ(offered.session, "h:1");
  ASSERT_EQ(offered.parameters.size(), 1U);
  EXPECT_EQ(offered.parameters[0].name, "w");
  EXPECT_EQ(offered.parameters[0].address, 1U);
  EXPECT_EQ(offered.parameters[0].elements, 2U);
  EXPECT_EQ(offered.parameters[0].element_bytes, 3U);
  ExpectStrict(Encode(window), DecodeWindowInfo);
}

TEST(RankProtocol, OwnedParts) {
  const std::vector<layout::OwnedPart> parts = {{{{0, 1}, {2, 3}}, Payload(4, std::byte{9})}, {}};
  ASSERT_OK_AND_ASSIGN(const auto found, DecodeOwnedParts(Encode(std::span(parts))));
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].box, parts[0].box);
  EXPECT_EQ(found[0].bytes, parts[0].bytes);
  ExpectStrict(Encode(std::span(parts)), DecodeOwnedParts);
}

TEST(RankProtocol, Groups) {
  const Payload join = Encode(JoinGroup{
      4, {.name = "g", .host = "::1", .port = 65535, .rank = 3, .size = 9, .backend = "gloo"}});
  ASSERT_OK_AND_ASSIGN(const JoinGroup joined, DecodeJoinGroup(join));
  EXPECT_EQ(joined.number, 4U);
  EXPECT_EQ(joined.address.name, "g");
  EXPECT_EQ(joined.address.host, "::1");
  EXPECT_EQ(joined.address.port, 65535);
  EXPECT_EQ(joined.address.rank, 3U);
  EXPECT_EQ(joined.address.size, 9U);
  EXPECT_EQ(joined.address.backend, "gloo");
  ExpectStrict(join, DecodeJoinGroup);
  const Payload leave = Encode(LeaveGroup{4, "g"});
  ASSERT_OK_AND_ASSIGN(const LeaveGroup left, DecodeLeaveGroup(leave));
  EXPECT_EQ(left.number, 4U);
  EXPECT_EQ(left.name, "g");
  ExpectStrict(leave, DecodeLeaveGroup);
  const Payload request = Encode(ReceiveGroup{
      5,
      {.group = "g",
       .announced = {{.name = "a", .dtype = tensor::Dtype::kU64, .shape = {2, 0}, .bytes = {}},
                     {.name = "b", .dtype = tensor::Dtype::kBool, .shape = {}, .bytes = {}}},
       .flattened = true}});
  ASSERT_OK_AND_ASSIGN(const ReceiveGroup receive, DecodeReceiveGroup(request));
  EXPECT_EQ(receive.ticket, 5U);
  EXPECT_TRUE(receive.tensors.flattened);
  ASSERT_EQ(receive.tensors.announced.size(), 2U);
  EXPECT_EQ(receive.tensors.announced[0].dtype, tensor::Dtype::kU64);
  EXPECT_EQ(receive.tensors.announced[0].shape, (std::vector<std::uint64_t>{2, 0}));
  EXPECT_EQ(receive.tensors.announced[1].name, "b");
  ExpectStrict(request, DecodeReceiveGroup);
}

TEST(RankProtocol, Producers) {
  const Payload encoded = Encode(ProducerRequest{Selector::kDraft, "ipc://@a", "not now"});
  ASSERT_OK_AND_ASSIGN(const ProducerRequest request, DecodeProducerRequest(encoded));
  EXPECT_EQ(request.selector, Selector::kDraft);
  EXPECT_EQ(request.endpoint, "ipc://@a");
  EXPECT_EQ(request.refusal, "not now");
  ExpectStrict(encoded, DecodeProducerRequest);
}

TEST(RankProtocol, UpdatesAndChecks) {
  const Payload message(5, std::byte{3});
  const Payload received = Encode(
      ReceiveRequest{Selector::kDraft, payload::Format::kSafetensors, /*direct=*/true, 7, message});
  ASSERT_OK_AND_ASSIGN(const ReceiveRequest receive, DecodeReceiveRequest(received));
  EXPECT_EQ(receive.selector, Selector::kDraft);
  EXPECT_EQ(receive.format, payload::Format::kSafetensors);
  EXPECT_TRUE(receive.direct);
  EXPECT_TRUE(std::ranges::equal(receive.message, message));
  ExpectStrict(received, DecodeReceiveRequest);
  Payload wrong = received;
  wrong[0] = std::byte{3};
  EXPECT_ERROR(DecodeReceiveRequest(wrong), Code::kCorrupt, "means nothing");

  const Payload prepared = Encode(PrepareRequest{Selector::kTarget, /*whole=*/true});
  ASSERT_OK_AND_ASSIGN(const PrepareRequest prepare, DecodePrepareRequest(prepared));
  EXPECT_EQ(prepare.selector, Selector::kTarget);
  EXPECT_TRUE(prepare.whole);
  ExpectStrict(prepared, DecodePrepareRequest);

  const CheckMessage check = {
      .selector = Selector::kTarget,
      .options = {
          .skip = {"norm", "x"}, .allow_quant_error = true, .hash = checker::CheckHash::kSha256}};
  ASSERT_OK_AND_ASSIGN(const CheckMessage same, DecodeCheckMessage(Encode(check)));
  EXPECT_EQ(same.selector, Selector::kTarget);
  EXPECT_EQ(same.options.skip, check.options.skip);
  EXPECT_TRUE(same.options.allow_quant_error);
  EXPECT_EQ(same.options.hash, checker::CheckHash::kSha256);
  ExpectStrict(Encode(check), DecodeCheckMessage);

  std::vector<RankCheck> checks(2);
  checks[1] = {.role = "draft",
               .message = "differs",
               .compared = 4,
               .checksums = {.tensors = {{"a", "01"}}, .derived = {{"b", "02"}}},
               .scrambled = 9};
  const Payload answered = Encode(std::span<const RankCheck>(checks));
  ASSERT_OK_AND_ASSIGN(const std::vector<RankCheck> found, DecodeRankChecks(answered));
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[1].role, "draft");
  EXPECT_EQ(found[1].message, "differs");
  EXPECT_EQ(found[1].compared, 4U);
  EXPECT_EQ(found[1].checksums.tensors[0].hash, "01");
  EXPECT_EQ(found[1].checksums.derived[0].name, "b");
  EXPECT_EQ(found[1].scrambled, 9U);
  ExpectStrict(answered, DecodeRankChecks);
  const std::vector<std::string> texts = {"", "two"};
  EXPECT_EQ(*DecodeTexts(EncodeTexts(texts)), texts);
  ExpectStrict(EncodeTexts(texts), DecodeTexts);
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
