// What the ranks of an engine say to each other about weights (payloads of ranks::Message).
//
//   kind       sent as                       payload                       answer
//   kStage     work                          text path                     Staged
//   kPull      work                          PullRequest                   PullOutcome
//   kExchange  command that is answered      none                          none
//   kExport    command that is answered      u64 number of the tensor      OwnedParts
//   kDigests   command that is answered      none                          RankDigests
//   kCancel    work                          none                          none: work ends, for good
// A text is u64 length and bytes. The answers are as the functions below write them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "engine/rank_messages.h"
#include "update/rank_weights.h"

namespace syncline::update {

enum RankMessage : std::uint32_t {
  kStage = engine::kFirstOther,
  kPull,
  kExchange,
  kExport,
  kDigests,
  kCancel,
};

using Payload = std::vector<std::byte>;

// Decoding gives kCorrupt for anything that Encode does not write.
Payload EncodeText(const std::string& text);
base::Result<std::string> DecodeText(base::ByteSpan bytes);
Payload EncodeNumber(std::uint64_t number);
base::Result<std::uint64_t> DecodeNumber(base::ByteSpan bytes);
Payload Encode(const PullRequest& request);
base::Result<PullRequest> DecodePullRequest(base::ByteSpan bytes);
Payload Encode(const PullOutcome& outcome);
base::Result<PullOutcome> DecodePullOutcome(base::ByteSpan bytes);
Payload Encode(const Staged& staged);
base::Result<Staged> DecodeStaged(base::ByteSpan bytes);
Payload Encode(std::span<const layout::OwnedPart> parts);
base::Result<std::vector<layout::OwnedPart>> DecodeOwnedParts(base::ByteSpan bytes);
Payload Encode(const RankDigests& digests);
base::Result<RankDigests> DecodeRankDigests(base::ByteSpan bytes);

}  // namespace syncline::update
