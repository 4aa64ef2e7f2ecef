// What the ranks of an engine say to each other about weights (payloads of ranks::Message).
//
// A command is answered too, and comes in the order of commands, between two steps.
//
//   kind         sent as   payload                       answer
//   kStage       work      text path                     Staged
//   kReceive     work      ReceiveRequest                Staged
//   kFromProducer    work      ProducerRequest               Staged
//   kFinishProducer      work      text failure, or empty        none: the producer has been told
//   kPrepare     work      PrepareRequest                Staged
//   kOffer       work      none                          WindowInfo
//   kOpen        work      none                          none
//   kSeedOpen    work      JoinGroup without a number    u64: port
//   kSeedWait    work      text name of the group        none
//   kSeedSend    work      text name of the group        text: hash of what was sent
//   kSeedReceive work      text name of the group        text: hash of what came
//   kSeedClose   work      text name of the group        none
//   kDrop        work      none                          texts: names of tensors that are lost
//   kMayWrite    work      none                          u64: may an update write in place
//   kRelease     work      none                          texts: names of tensors that are lost
//   kResume      work      none                          texts: the same
//   kSnapshot    work      CheckMessage                  none
//   kPull        work      PullRequest                   PullOutcome
//   kCancel      work      none                          none: work ends, for good
//   kJoinGroup     work    JoinGroup                     none
//   kLeaveGroup    work    LeaveGroup                    none
//   kReceiveGroup  work    ReceiveGroup                  none
//   kForget        work    u64 ticket                    none: what came under it is not wanted
//   kCommit      command   none                          texts: names of tensors that are lost
//   kDeriveLive  command   none                          none
//   kReset       command   CheckMessage                  none
//   kPutBack     command   CheckMessage                  texts: names of parameters
//   kCompare     command   CheckMessage                  RankChecks
//   kChecksums   command   CheckMessage                  RankChecks
//   kExport      command   u64 number of the tensor      OwnedParts
//   kDigests     command   none                          RankDigests
// A text is u64 length and bytes. The answers are as the functions below write them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "engine/rank_messages.h"
#include "transport/process_group.h"
#include "update/group_tensors.h"
#include "update/producer.h"
#include "update/rank_weights.h"

namespace syncline::update {

enum RankMessage : std::uint32_t {
  kStage = engine::kFirstOther,
  kReceive,
  kFromProducer,
  kFinishProducer,
  kPrepare,
  kOffer,
  kOpen,
  kSeedSend,
  kSeedReceive,
  kDrop,
  kMayWrite,
  kRelease,
  kResume,
  kSnapshot,
  kPull,
  kCancel,
  kJoinGroup,
  kSeedOpen,
  kSeedWait,
  kSeedClose,
  kLeaveGroup,
  kReceiveGroup,
  kForget,
  kCommit,
  kDeriveLive,
  kReset,
  kPutBack,
  kCompare,
  kChecksums,
  kExport,
  kDigests,
};

struct ReceiveRequest {
  Selector selector = Selector::kAll;
  payload::Format format = payload::Format::kPlain;
  bool direct = false;
  std::uint64_t ticket = 0;  // of what came before the request (groups.h); 0: it is in the message
  base::ByteSpan message;    // of a decoded one: in what it was decoded from
};

// Groups of one name are told apart by numbers (transport/group_table.h).
struct JoinGroup {
  std::uint64_t number = 0;
  transport::GroupAddress address;
};

struct LeaveGroup {
  std::uint64_t number = 0;
  std::string name;
};

struct ReceiveGroup {
  std::uint64_t ticket = 0;
  GroupTensors tensors;
};

struct PrepareRequest {
  Selector selector = Selector::kAll;
  bool whole = false;
};

struct CheckMessage {
  Selector selector = Selector::kAll;
  checker::CheckOptions options;
};

using Payload = std::vector<std::byte>;

// Decoding gives kCorrupt for anything that Encode does not write.
Payload EncodeText(const std::string& text);
base::Result<std::string> DecodeText(base::ByteSpan bytes);
Payload EncodeNumber(std::uint64_t number);
base::Result<std::uint64_t> DecodeNumber(base::ByteSpan bytes);
Payload EncodeTexts(std::span<const std::string> texts);
base::Result<std::vector<std::string>> DecodeTexts(base::ByteSpan bytes);
Payload Encode(const ReceiveRequest& request);
base::Result<ReceiveRequest> DecodeReceiveRequest(base::ByteSpan bytes);
Payload Encode(const JoinGroup& request);
base::Result<JoinGroup> DecodeJoinGroup(base::ByteSpan bytes);
Payload Encode(const LeaveGroup& request);
base::Result<LeaveGroup> DecodeLeaveGroup(base::ByteSpan bytes);
Payload Encode(const ReceiveGroup& request);
base::Result<ReceiveGroup> DecodeReceiveGroup(base::ByteSpan bytes);
Payload Encode(const ProducerRequest& request);
base::Result<ProducerRequest> DecodeProducerRequest(base::ByteSpan bytes);
Payload Encode(const PrepareRequest& request);
base::Result<PrepareRequest> DecodePrepareRequest(base::ByteSpan bytes);
Payload Encode(const CheckMessage& message);
base::Result<CheckMessage> DecodeCheckMessage(base::ByteSpan bytes);
Payload Encode(std::span<const RankCheck> checks);
base::Result<std::vector<RankCheck>> DecodeRankChecks(base::ByteSpan bytes);
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
Payload Encode(const WindowInfo& info);
base::Result<WindowInfo> DecodeWindowInfo(base::ByteSpan bytes);

}  // namespace syncline::update
