#include "update/all_ranks.h"

#include <fmt/core.h>

#include <algorithm>
#include <future>

#include "update/groups.h"
#include "update/producer.h"
#include "update/weights.h"

namespace syncline::update {

using base::Code;
using base::Fail;
using base::Result;
using base::Status;
using Names = std::vector<std::string>;

Result<Staged> AllRanks::AddUp(const Result<Staged>& own, const Answers& answers) const {
  const std::string self = RankText(0, host_);
  if (!own && others_.any()) return base::Annotate(own.error(), self);
  if (!own) return std::unexpected(own.error());
  Staged all = *own;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if (!answers[i]) return std::unexpected(answers[i].error());
    SYNCLINE_ASSIGN(const Staged other, DecodeStaged(*answers[i]));
    if (other.held != own->held) {
      const auto text = [](const std::string& held) { return held.empty() ? "no replica" : held; };
      const ranks::Peer& peer = others_.peers()[i];
      return Fail(Code::kOutOfOrder,
                  fmt::format("the hosts do not hold the same: {} has {}, {} has {}", self,
                              text(own->held), RankText(peer.rank, peer.host), text(other.held)));
    }
    all.tensors = std::max(all.tensors, other.tensors);
    all.skipped = std::max(all.skipped, other.skipped);
    all.bytes += other.bytes;
    // What one rank has and another has not does not count.
    if (other.loaded) all.unchanged = all.unchanged && other.unchanged;
    all.loaded = all.loaded || other.loaded;
    all.in_place = all.in_place || other.in_place;
    for (const std::string& name : other.pending) {
      if (std::ranges::find(all.pending, name) == all.pending.end()) all.pending.push_back(name);
    }
  }
  return all;
}

Result<Staged> AllRanks::Stage(const std::string& path) {
  std::future<Answers> asked = others_.Ask(kStage, EncodeText(path));
  const Result<Staged> own = own_.Stage(path);
  Result<Staged> all = AddUp(own, asked.get());
  if (!all && all.error().code == Code::kOutOfOrder && own) {
    return base::Annotate(all.error(), path);
  }
  return all;
}

namespace {

// By rank from 1; each was asked by itself.
Answers Together(std::vector<std::future<Answers>> asked) {
  Answers answers;
  for (std::future<Answers>& one : asked) {
    Answers answer = one.get();
    answers.push_back(std::move(answer[0]));
  }
  return answers;
}

template <typename T>
bool Explains(const Result<T>& result) {
  return !result && result.error().code != Code::kUnavailable;
}

}  // namespace

Result<Staged> AllRanks::ReceiveOwn(const TensorUpdate& update, Selector selector) {
  if (update.ticket == 0) {
    return own_.Receive(selector, update.format, update.direct, update.payloads[0]);
  }
  SYNCLINE_ASSIGN(const auto batch, groups_.Take(update.ticket));
  return own_.Receive(selector, *batch);
}

Result<Staged> AllRanks::Receive(const TensorUpdate& update, Selector selector) {
  if (!update.endpoints.empty()) return ReceiveFromProducers(update.endpoints, selector, "");
  const auto of = [&](std::size_t rank) -> base::ByteSpan {
    if (update.ticket != 0) return {};
    return update.payloads[update.payloads.size() == 1 ? 0 : rank];
  };
  std::vector<Payload> messages;
  for (std::uint32_t rank = 1; rank < size(); ++rank) {
    messages.push_back(
        Encode(ReceiveRequest{selector, update.format, update.direct, update.ticket, of(rank)}));
  }
  std::vector<std::future<Answers>> asked = others_.AskEach(kReceive, std::move(messages));
  const Result<Staged> own = ReceiveOwn(update, selector);
  return AddUp(own, Together(std::move(asked)));
}

Result<Staged> AllRanks::ReceiveFromProducers(const std::vector<std::string>& endpoints,
                                              Selector selector, const std::string& refusal) {
  std::vector<Payload> messages;
  for (std::uint32_t rank = 1; rank < size(); ++rank) {
    messages.push_back(Encode(ProducerRequest{selector, endpoints[rank], refusal}));
  }
  std::vector<std::future<Answers>> asked = others_.AskEach(kFromProducer, std::move(messages));
  const Result<Staged> own = producer_.Receive({selector, endpoints[0], refusal});
  const Answers answers = Together(std::move(asked));
  const auto reason = std::ranges::find_if(answers, Explains<Payload>);
  if (reason != answers.end() && !Explains(own)) return std::unexpected(reason->error());
  return AddUp(own, answers);
}

void AllRanks::FinishProducers(const std::string& failure) {
  std::future<Answers> asked = others_.Ask(kFinishProducer, EncodeText(failure));
  producer_.Finish(failure);
  asked.wait();
}

Result<Staged> AllRanks::Prepare(Selector selector, bool whole) {
  std::future<Answers> asked = others_.Ask(kPrepare, Encode(PrepareRequest{selector, whole}));
  const Result<Staged> own = own_.Prepare(selector, whole);
  return AddUp(own, asked.get());
}

Result<std::vector<WindowInfo>> AllRanks::Offer() {
  std::future<Answers> asked = others_.Ask(kOffer, {});
  Result<WindowInfo> own = own_.Offer();
  const Answers answers = asked.get();
  if (!own) return base::Annotate(own.error(), RankText(0, host_));
  std::vector<WindowInfo> all = {*std::move(own)};
  for (const Result<Payload>& answer : answers) {
    if (!answer) return std::unexpected(answer.error());
    SYNCLINE_ASSIGN(all.emplace_back(), DecodeWindowInfo(*answer));
  }
  return all;
}

Status AllRanks::Open() {
  std::future<Answers> asked = others_.Ask(kOpen, {});
  const Status own = own_.Open();
  SYNCLINE_TRY(AllWell(asked.get()));
  if (!own) return base::Annotate(own.error(), RankText(0, host_));
  return {};
}

Result<Names> AllRanks::Drop() {
  std::future<Answers> asked = others_.Ask(kDrop, {});
  Names lost = own_.Drop();
  SYNCLINE_TRY(AddTexts(asked.get(), lost));
  return lost;
}

Result<Names> AllRanks::AddNames(Result<Names> own, const Answers& answers) const {
  if (!own && others_.any()) return base::Annotate(own.error(), RankText(0, host_));
  if (own) SYNCLINE_TRY(AddTexts(answers, *own));
  return own;
}

Result<Names> AllRanks::Release() {
  std::future<Answers> asked = others_.Ask(kRelease, {});
  Result<Names> own = own_.Release();
  return AddNames(std::move(own), asked.get());
}

Result<Names> AllRanks::Resume() {
  std::future<Answers> asked = others_.Ask(kResume, {});
  Result<Names> own = own_.Resume();
  return AddNames(std::move(own), asked.get());
}

Result<Names> AllRanks::Commit() {
  std::future<Answers> asked = others_.Command(kCommit, {});
  Names lost = own_.Commit();
  SYNCLINE_TRY(AddTexts(asked.get(), lost));
  return lost;
}

Status AllRanks::DeriveLive() {
  std::future<Answers> asked = others_.Command(kDeriveLive, {});
  const Status derived = own_.DeriveLive();
  SYNCLINE_TRY(AllWell(asked.get()));
  return derived;
}

Result<bool> AllRanks::MayWriteInPlace() {
  if (!may_write_) {
    std::future<Answers> asked = others_.Ask(kMayWrite, {});
    bool may = own_.may_write_in_place();
    const Answers answers = asked.get();
    SYNCLINE_TRY(AllWell(answers));
    for (const Result<Payload>& answer : answers) {
      SYNCLINE_ASSIGN(const std::uint64_t other, DecodeNumber(*answer));
      may = may || other != 0;
    }
    may_write_ = may;
  }
  return *may_write_;
}

}  // namespace syncline::update
