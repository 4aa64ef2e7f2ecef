// Protocol of a receive on all ranks:
//   1. Every rank is asked; each receives on a thread of its own.
//   2. As soon as one has failed all are told to leave the group: those that still wait for the sender,
//      or for the failed rank, fail too.
//   3. When all have answered the first error counts.
// Invariant: a ticket that is given out has come whole on every rank, and in one order: two receives of
// one group are never under way together.
#include "update/groups.h"

#include <fmt/format.h>

#include <chrono>
#include <optional>
#include <utility>

namespace syncline::update {

using base::Code;
using base::Fail;
using base::Result;
using base::Status;
using payload::NamedTensor;

Status RankGroups::Receive(std::uint64_t ticket, const std::string& group,
                           std::vector<NamedTensor> announced, bool flattened) {
  SYNCLINE_ASSIGN(std::unique_ptr<payload::Batch> batch,
                  table_.Receive(group, std::move(announced), flattened));
  const std::scoped_lock lock(mutex_);
  came_[ticket] = std::move(batch);
  return {};
}

Result<std::unique_ptr<payload::Batch>> RankGroups::Take(std::uint64_t ticket) {
  const std::scoped_lock lock(mutex_);
  const auto found = came_.find(ticket);
  if (found == came_.end()) {
    return Fail(Code::kInternal, fmt::format("nothing came under ticket {}", ticket));
  }
  std::unique_ptr<payload::Batch> batch = std::move(found->second);
  came_.erase(found);
  return batch;
}

Groups::Group Groups::Find(const std::string& name) const {
  const std::scoped_lock lock(mutex_);
  const auto found = groups_.find(name);
  return found == groups_.end() ? Group() : found->second;
}

void Groups::Remember(const std::string& name, std::uint64_t number) {
  const std::scoped_lock lock(mutex_);
  groups_[name] = Group{.number = number};
}

namespace {

bool IsReady(const auto& future) {
  return future.wait_for(std::chrono::milliseconds(0)) == std::future_status::ready;
}

}  // namespace

// `payloads`: of each other rank; `own` runs here.
template <typename Own>
Status Groups::OnAll(RankMessage kind, std::vector<Payload> payloads, const LeaveGroup& on_failure,
                     const Own& own) {
  std::vector<std::future<Answers>> asked = others_.AskEach(kind, std::move(payloads));
  std::future<Status> here = std::async(std::launch::async, own);
  std::optional<base::Error> first;
  const auto note = [&](const Status& status, bool is_own) {
    if (status || first) return;
    first = is_own && others_.any() ? base::Annotate(status.error(), RankText(0, host_)).error()
                                    : status.error();
    others_.Ask(kLeaveGroup, Encode(on_failure)).wait();
    static_cast<void>(own_.table().Leave(on_failure.name, on_failure.number));
  };
  while (here.valid() || !asked.empty()) {
    if (here.valid() && here.wait_for(std::chrono::milliseconds(1)) == std::future_status::ready) {
      note(here.get(), true);
    }
    std::erase_if(asked, [&](std::future<Answers>& one) {
      if (!IsReady(one)) return false;
      note(AllWell(one.get()), false);
      return true;
    });
    if (!here.valid() && !asked.empty()) asked[0].wait_for(std::chrono::milliseconds(1));
  }
  if (first) return std::unexpected(*first);
  return {};
}

Status Groups::Join(const GroupRequest& request) {
  const std::uint64_t ranks = others_.peers().size() + 1;
  if (request.rank_offset == 0 || request.rank_offset + ranks > request.address.size) {
    return Fail(
        Code::kInvalidArgument,
        fmt::format("rank_offset {} and world_size {}: expected ranks for the trainer (0) and "
                    "for the engine's {} ranks from rank_offset on",
                    request.rank_offset, request.address.size, ranks));
  }
  const auto of = [&](std::uint64_t rank) {
    transport::GroupAddress address = request.address;
    address.rank = static_cast<std::uint32_t>(request.rank_offset + rank);
    return address;
  };
  const std::uint64_t number = ++numbers_;
  const std::string& name = request.address.name;
  std::vector<Payload> payloads;
  for (std::uint64_t rank = 1; rank < ranks; ++rank) {
    payloads.push_back(Encode(JoinGroup{number, of(rank)}));
  }
  // One that comes in its place meanwhile must not be left for its failure: hence the number.
  SYNCLINE_TRY(OnAll(kJoinGroup, std::move(payloads), {number, name},
                     [&] { return own_.table().Join(of(0), number); }));
  Remember(name, number);
  return {};
}

Status Groups::Leave(const std::string& name) {
  {
    const std::scoped_lock lock(mutex_);
    groups_.erase(name);
  }
  std::future<Answers> asked = others_.Ask(kLeaveGroup, Encode(LeaveGroup{0, name}));
  const Status own = own_.table().Leave(name, 0);
  // A rank that had failed may have left before.
  for (const Result<Payload>& answer : asked.get()) {
    if (!answer && answer.error().code != Code::kNotFound) return std::unexpected(answer.error());
  }
  return own;
}

Result<std::uint64_t> Groups::Receive(const GroupTensors& tensors) {
  const Group group = Find(tensors.group);
  const std::scoped_lock lock(*group.receiving);
  const std::uint64_t ticket = ++numbers_;
  const std::vector<Payload> payloads(others_.peers().size(),
                                      Encode(ReceiveGroup{ticket, tensors}));
  SYNCLINE_TRY(OnAll(kReceiveGroup, payloads, {group.number, tensors.group}, [&] {
    return own_.Receive(ticket, tensors.group, tensors.announced, tensors.flattened);
  }));
  return ticket;
}

void Groups::Forget(std::uint64_t ticket) {
  std::future<Answers> asked = others_.Ask(kForget, EncodeNumber(ticket));
  static_cast<void>(own_.Take(ticket));
  asked.wait();
}

}  // namespace syncline::update
