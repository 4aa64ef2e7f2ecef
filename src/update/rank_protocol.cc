#include "update/rank_protocol.h"

#include <algorithm>

#include "base/wire.h"

namespace syncline::update {

using base::Result;
using base::WireReader;
using base::WireWriter;

Payload EncodeText(const std::string& text) {
  WireWriter writer;
  writer.PutText(text);
  return std::move(writer).Take();
}

Result<std::string> DecodeText(base::ByteSpan bytes) {
  WireReader reader(bytes);
  std::string text = reader.TakeText();
  SYNCLINE_TRY(reader.status());
  return text;
}

Payload EncodeNumber(std::uint64_t number) {
  WireWriter writer;
  writer.Put(number);
  return std::move(writer).Take();
}

Result<std::uint64_t> DecodeNumber(base::ByteSpan bytes) {
  WireReader reader(bytes);
  const auto number = reader.Take<std::uint64_t>();
  SYNCLINE_TRY(reader.status());
  return number;
}

Payload Encode(const PullRequest& request) {
  WireWriter writer;
  writer.PutText(request.source);
  writer.PutText(request.replica);
  writer.Put(request.version);
  return std::move(writer).Take();
}

Result<PullRequest> DecodePullRequest(base::ByteSpan bytes) {
  WireReader reader(bytes);
  PullRequest request;
  request.source = reader.TakeText();
  request.replica = reader.TakeText();
  request.version = reader.Take<std::uint64_t>();
  SYNCLINE_TRY(reader.status());
  return request;
}

Payload Encode(const PullOutcome& outcome) {
  WireWriter writer;
  writer.Put<std::uint8_t>(outcome.status ? 1 : 0);
  writer.Put(static_cast<std::uint8_t>(outcome.status ? base::Code::kInternal
                                                      : outcome.status.error().code));
  writer.PutText(outcome.status ? "" : outcome.status.error().message);
  writer.Put<std::uint8_t>(outcome.held ? 1 : 0);
  writer.Put(outcome.held.value_or(0));
  return std::move(writer).Take();
}

Result<PullOutcome> DecodePullOutcome(base::ByteSpan bytes) {
  WireReader reader(bytes);
  PullOutcome outcome;
  const bool succeeded = reader.Take<std::uint8_t>() != 0;
  const auto code = reader.Take<std::uint8_t>();
  std::string message = reader.TakeText();
  const bool holds = reader.Take<std::uint8_t>() != 0;
  const auto held = reader.Take<std::uint64_t>();
  SYNCLINE_TRY(reader.status());
  const auto known = std::ranges::find_if(base::CodeTable(), [code](const base::CodeInfo& info) {
    return static_cast<std::uint8_t>(info.code) == code;
  });
  if (known == base::CodeTable().end()) {
    return base::Fail(base::Code::kCorrupt, "a message has a code of error that is not known");
  }
  if (!succeeded) outcome.status = base::Fail(known->code, std::move(message));
  if (holds) outcome.held = held;
  return outcome;
}

Payload Encode(const Staged& staged) {
  WireWriter writer;
  writer.Put(staged.loaded.tensors);
  writer.Put(staged.loaded.skipped);
  writer.Put(staged.loaded.bytes);
  writer.PutText(staged.held);
  writer.Put<std::uint8_t>(staged.unchanged ? 1 : 0);
  return std::move(writer).Take();
}

Result<Staged> DecodeStaged(base::ByteSpan bytes) {
  WireReader reader(bytes);
  Staged staged;
  staged.loaded.tensors = reader.Take<std::uint64_t>();
  staged.loaded.skipped = reader.Take<std::uint64_t>();
  staged.loaded.bytes = reader.Take<std::uint64_t>();
  staged.held = reader.TakeText();
  staged.unchanged = reader.Take<std::uint8_t>() != 0;
  SYNCLINE_TRY(reader.status());
  return staged;
}

Payload Encode(std::span<const layout::OwnedPart> parts) {
  WireWriter writer;
  writer.Put<std::uint64_t>(parts.size());
  for (const layout::OwnedPart& part : parts) {
    writer.PutArray(part.box.begin);
    writer.PutArray(part.box.end);
    writer.PutBytes(part.bytes);
  }
  return std::move(writer).Take();
}

Result<std::vector<layout::OwnedPart>> DecodeOwnedParts(base::ByteSpan bytes) {
  WireReader reader(bytes);
  const auto count = reader.Take<std::uint64_t>();
  std::vector<layout::OwnedPart> parts;
  for (std::uint64_t i = 0; i < count && i < bytes.size(); ++i) {
    layout::OwnedPart& part = parts.emplace_back();
    part.box.begin = reader.TakeArray<std::uint64_t>();
    part.box.end = reader.TakeArray<std::uint64_t>();
    const base::ByteSpan content = reader.TakeBytes();
    part.bytes.assign(content.begin(), content.end());
  }
  SYNCLINE_TRY(reader.status());
  return parts;
}

Payload Encode(const RankDigests& digests) {
  WireWriter writer;
  writer.Put<std::uint64_t>(digests.tensors.size());
  for (const tensor::Digest& digest : digests.tensors) {
    writer.Put(digest.low);
    writer.Put(digest.high);
  }
  writer.PutText(digests.derived);
  return std::move(writer).Take();
}

Result<RankDigests> DecodeRankDigests(base::ByteSpan bytes) {
  WireReader reader(bytes);
  RankDigests digests;
  const auto count = reader.Take<std::uint64_t>();
  for (std::uint64_t i = 0; i < count && i < bytes.size(); ++i) {
    tensor::Digest& digest = digests.tensors.emplace_back();
    digest.low = reader.Take<std::uint64_t>();
    digest.high = reader.Take<std::uint64_t>();
  }
  digests.derived = reader.TakeText();
  SYNCLINE_TRY(reader.status());
  return digests;
}

}  // namespace syncline::update
