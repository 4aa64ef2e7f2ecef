#include "update/rank_protocol.h"

#include <algorithm>

#include "base/wire.h"

namespace syncline::update {

using base::Result;
using base::Status;
using base::WireReader;
using base::WireWriter;

namespace {

void PutFlag(WireWriter& writer, bool flag) { writer.Put<std::uint8_t>(flag ? 1 : 0); }
bool TakeFlag(WireReader& reader) { return reader.Take<std::uint8_t>() != 0; }

void PutTexts(WireWriter& writer, std::span<const std::string> texts) {
  writer.Put<std::uint64_t>(texts.size());
  for (const std::string& text : texts) writer.PutText(text);
}

std::vector<std::string> TakeTexts(WireReader& reader) {
  const auto count = reader.Take<std::uint64_t>();
  std::vector<std::string> texts;
  for (std::uint64_t i = 0; i < count && !reader.broken(); ++i) texts.push_back(reader.TakeText());
  return texts;
}

void PutHashes(WireWriter& writer, const std::vector<checker::NamedHash>& hashes) {
  writer.Put<std::uint64_t>(hashes.size());
  for (const checker::NamedHash& hash : hashes) {
    writer.PutText(hash.name);
    writer.PutText(hash.hash);
  }
}

std::vector<checker::NamedHash> TakeHashes(WireReader& reader) {
  const auto count = reader.Take<std::uint64_t>();
  std::vector<checker::NamedHash> hashes;
  for (std::uint64_t i = 0; i < count && !reader.broken(); ++i) {
    checker::NamedHash& hash = hashes.emplace_back();
    hash.name = reader.TakeText();
    hash.hash = reader.TakeText();
  }
  return hashes;
}

// An enumerator below `count`; kCorrupt for any other.
template <typename T>
Status TakeEnum(WireReader& reader, std::uint8_t count, T& value) {
  const auto number = reader.Take<std::uint8_t>();
  if (number >= count) {
    return base::Fail(base::Code::kCorrupt, "a message has a number that means nothing");
  }
  value = static_cast<T>(number);
  return {};
}

constexpr std::uint8_t kSelectors = 3;
constexpr std::uint8_t kFormats = 3;
constexpr std::uint8_t kHashes = 2;

}  // namespace

Payload EncodeTexts(std::span<const std::string> texts) {
  WireWriter writer;
  PutTexts(writer, texts);
  return std::move(writer).Take();
}

Result<std::vector<std::string>> DecodeTexts(base::ByteSpan bytes) {
  WireReader reader(bytes);
  std::vector<std::string> texts = TakeTexts(reader);
  SYNCLINE_TRY(reader.status());
  return texts;
}

Payload Encode(const ReceiveRequest& request) {
  WireWriter writer;
  writer.Put(static_cast<std::uint8_t>(request.selector));
  writer.Put(static_cast<std::uint8_t>(request.format));
  PutFlag(writer, request.direct);
  writer.Put(request.ticket);
  writer.PutBytes(request.message);
  return std::move(writer).Take();
}

Result<ReceiveRequest> DecodeReceiveRequest(base::ByteSpan bytes) {
  WireReader reader(bytes);
  ReceiveRequest request;
  SYNCLINE_TRY(TakeEnum(reader, kSelectors, request.selector));
  SYNCLINE_TRY(TakeEnum(reader, kFormats, request.format));
  request.direct = TakeFlag(reader);
  request.ticket = reader.Take<std::uint64_t>();
  request.message = reader.TakeBytes();
  SYNCLINE_TRY(reader.status());
  return request;
}

Payload Encode(const JoinGroup& request) {
  const transport::GroupAddress& address = request.address;
  WireWriter writer;
  writer.Put(request.number);
  writer.PutText(address.name);
  writer.PutText(address.host);
  writer.Put(address.port);
  writer.Put(address.rank);
  writer.Put(address.size);
  writer.PutText(address.backend);
  return std::move(writer).Take();
}

Result<JoinGroup> DecodeJoinGroup(base::ByteSpan bytes) {
  WireReader reader(bytes);
  JoinGroup request;
  request.number = reader.Take<std::uint64_t>();
  transport::GroupAddress& address = request.address;
  address.name = reader.TakeText();
  address.host = reader.TakeText();
  address.port = reader.Take<std::uint16_t>();
  address.rank = reader.Take<std::uint32_t>();
  address.size = reader.Take<std::uint32_t>();
  address.backend = reader.TakeText();
  SYNCLINE_TRY(reader.status());
  return request;
}

Payload Encode(const LeaveGroup& request) {
  WireWriter writer;
  writer.Put(request.number);
  writer.PutText(request.name);
  return std::move(writer).Take();
}

Result<LeaveGroup> DecodeLeaveGroup(base::ByteSpan bytes) {
  WireReader reader(bytes);
  LeaveGroup request;
  request.number = reader.Take<std::uint64_t>();
  request.name = reader.TakeText();
  SYNCLINE_TRY(reader.status());
  return request;
}

Payload Encode(const ReceiveGroup& request) {
  WireWriter writer;
  writer.Put(request.ticket);
  writer.PutText(request.tensors.group);
  PutFlag(writer, request.tensors.flattened);
  writer.Put<std::uint64_t>(request.tensors.announced.size());
  for (const payload::NamedTensor& tensor : request.tensors.announced) {
    writer.PutText(tensor.name);
    writer.Put(static_cast<std::uint8_t>(tensor.dtype));
    writer.PutArray(tensor.shape);
  }
  return std::move(writer).Take();
}

Result<ReceiveGroup> DecodeReceiveGroup(base::ByteSpan bytes) {
  WireReader reader(bytes);
  ReceiveGroup request;
  request.ticket = reader.Take<std::uint64_t>();
  request.tensors.group = reader.TakeText();
  request.tensors.flattened = TakeFlag(reader);
  const auto count = reader.Take<std::uint64_t>();
  for (std::uint64_t i = 0; i < count && !reader.broken(); ++i) {
    payload::NamedTensor& tensor = request.tensors.announced.emplace_back();
    tensor.name = reader.TakeText();
    SYNCLINE_TRY(
        TakeEnum(reader, static_cast<std::uint8_t>(tensor::DtypeTable().size()), tensor.dtype));
    tensor.shape = reader.TakeArray<std::uint64_t>();
  }
  SYNCLINE_TRY(reader.status());
  return request;
}

Payload Encode(const ProducerRequest& request) {
  WireWriter writer;
  writer.Put(static_cast<std::uint8_t>(request.selector));
  writer.PutText(request.endpoint);
  writer.PutText(request.refusal);
  return std::move(writer).Take();
}

Result<ProducerRequest> DecodeProducerRequest(base::ByteSpan bytes) {
  WireReader reader(bytes);
  ProducerRequest request;
  SYNCLINE_TRY(TakeEnum(reader, kSelectors, request.selector));
  request.endpoint = reader.TakeText();
  request.refusal = reader.TakeText();
  SYNCLINE_TRY(reader.status());
  return request;
}

Payload Encode(const PrepareRequest& request) {
  WireWriter writer;
  writer.Put(static_cast<std::uint8_t>(request.selector));
  PutFlag(writer, request.whole);
  return std::move(writer).Take();
}

Result<PrepareRequest> DecodePrepareRequest(base::ByteSpan bytes) {
  WireReader reader(bytes);
  PrepareRequest request;
  SYNCLINE_TRY(TakeEnum(reader, kSelectors, request.selector));
  request.whole = TakeFlag(reader);
  SYNCLINE_TRY(reader.status());
  return request;
}

Payload Encode(const CheckMessage& message) {
  WireWriter writer;
  writer.Put(static_cast<std::uint8_t>(message.selector));
  writer.Put(static_cast<std::uint8_t>(message.options.hash));
  PutFlag(writer, message.options.allow_quant_error);
  PutTexts(writer, message.options.skip);
  return std::move(writer).Take();
}

Result<CheckMessage> DecodeCheckMessage(base::ByteSpan bytes) {
  WireReader reader(bytes);
  CheckMessage message;
  SYNCLINE_TRY(TakeEnum(reader, kSelectors, message.selector));
  SYNCLINE_TRY(TakeEnum(reader, kHashes, message.options.hash));
  message.options.allow_quant_error = TakeFlag(reader);
  message.options.skip = TakeTexts(reader);
  SYNCLINE_TRY(reader.status());
  return message;
}

Payload Encode(std::span<const RankCheck> checks) {
  WireWriter writer;
  writer.Put<std::uint64_t>(checks.size());
  for (const RankCheck& check : checks) {
    writer.PutText(check.role);
    writer.PutText(check.message);
    writer.Put(check.compared);
    PutHashes(writer, check.checksums.tensors);
    PutHashes(writer, check.checksums.derived);
    writer.Put(check.scrambled);
  }
  return std::move(writer).Take();
}

Result<std::vector<RankCheck>> DecodeRankChecks(base::ByteSpan bytes) {
  WireReader reader(bytes);
  const auto count = reader.Take<std::uint64_t>();
  std::vector<RankCheck> checks;
  for (std::uint64_t i = 0; i < count && !reader.broken(); ++i) {
    RankCheck& check = checks.emplace_back();
    check.role = reader.TakeText();
    check.message = reader.TakeText();
    check.compared = reader.Take<std::uint64_t>();
    check.checksums.tensors = TakeHashes(reader);
    check.checksums.derived = TakeHashes(reader);
    check.scrambled = reader.Take<std::uint64_t>();
  }
  SYNCLINE_TRY(reader.status());
  return checks;
}

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
  PutFlag(writer, outcome.status.has_value());
  writer.Put(static_cast<std::uint8_t>(outcome.status ? base::Code::kInternal
                                                      : outcome.status.error().code));
  writer.PutText(outcome.status ? "" : outcome.status.error().message);
  PutFlag(writer, outcome.held.has_value());
  writer.Put(outcome.held.value_or(0));
  return std::move(writer).Take();
}

Result<PullOutcome> DecodePullOutcome(base::ByteSpan bytes) {
  WireReader reader(bytes);
  PullOutcome outcome;
  const bool succeeded = TakeFlag(reader);
  const auto code = reader.Take<std::uint8_t>();
  std::string message = reader.TakeText();
  const bool holds = TakeFlag(reader);
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
  writer.Put(staged.tensors);
  writer.Put(staged.skipped);
  writer.Put(staged.bytes);
  PutFlag(writer, staged.loaded);
  PutFlag(writer, staged.unchanged);
  PutFlag(writer, staged.in_place);
  writer.PutText(staged.held);
  PutTexts(writer, staged.pending);
  return std::move(writer).Take();
}

Result<Staged> DecodeStaged(base::ByteSpan bytes) {
  WireReader reader(bytes);
  Staged staged;
  staged.tensors = reader.Take<std::uint64_t>();
  staged.skipped = reader.Take<std::uint64_t>();
  staged.bytes = reader.Take<std::uint64_t>();
  staged.loaded = TakeFlag(reader);
  staged.unchanged = TakeFlag(reader);
  staged.in_place = TakeFlag(reader);
  staged.held = reader.TakeText();
  staged.pending = TakeTexts(reader);
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
  for (std::uint64_t i = 0; i < count && !reader.broken(); ++i) {
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
  for (std::uint64_t i = 0; i < count && !reader.broken(); ++i) {
    tensor::Digest& digest = digests.tensors.emplace_back();
    digest.low = reader.Take<std::uint64_t>();
    digest.high = reader.Take<std::uint64_t>();
  }
  digests.derived = reader.TakeText();
  SYNCLINE_TRY(reader.status());
  return digests;
}

Payload Encode(const WindowInfo& info) {
  WireWriter writer;
  writer.PutText(info.session);
  writer.Put<std::uint64_t>(info.parameters.size());
  for (const ParameterPlace& place : info.parameters) {
    writer.PutText(place.name);
    writer.Put(place.address);
    writer.Put(place.elements);
    writer.Put(place.element_bytes);
  }
  return std::move(writer).Take();
}

Result<WindowInfo> DecodeWindowInfo(base::ByteSpan bytes) {
  WireReader reader(bytes);
  WindowInfo info;
  info.session = reader.TakeText();
  const auto count = reader.Take<std::uint64_t>();
  for (std::uint64_t i = 0; i < count && !reader.broken(); ++i) {
    ParameterPlace& place = info.parameters.emplace_back();
    place.name = reader.TakeText();
    place.address = reader.Take<std::uint64_t>();
    place.elements = reader.Take<std::uint64_t>();
    place.element_bytes = reader.Take<std::uint64_t>();
  }
  SYNCLINE_TRY(reader.status());
  return info;
}

}  // namespace syncline::update
