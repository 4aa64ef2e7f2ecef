#include "update/seeding.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vector>

#include "model/model.h"
#include "tensor/hash.h"

namespace syncline::update {
namespace {

using base::Code;
using base::Fail;
using base::Result;
using base::Status;
using transport::ProcessGroup;

constexpr std::size_t kGroups = 16;
constexpr std::chrono::seconds kTimeout(300);  // of joining, and of the transfer

// One that is free now. Whoever takes it in between makes the group fail.
Result<std::uint16_t> FreePort() {
  const int socket_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket_fd < 0) return base::FailErrno(errno, "socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t length = sizeof(address);
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  const bool done = bind(socket_fd, raw, length) == 0 && getsockname(socket_fd, raw, &length) == 0;
  const int error = errno;
  close(socket_fd);
  if (!done) return base::FailErrno(error, "a free port");
  return ntohs(address.sin_port);
}

std::vector<ProcessGroup::Range> Slots(model::Model& model) {
  const std::byte* const begin = model.parameters().live_arena().bytes().data();
  std::vector<ProcessGroup::Range> slots;
  for (const base::MutableByteSpan slot : model.parameters().live()) {
    if (slot.empty()) continue;
    slots.push_back({static_cast<std::uint64_t>(slot.data() - begin), slot.size()});
  }
  return slots;
}

std::string HashOf(model::Model& model) {
  const auto hasher = tensor::MakeHasher(tensor::HashKind::kXxh3);
  for (const base::MutableByteSpan slot : model.parameters().live()) hasher->Update(slot);
  return hasher->Hex();
}

}  // namespace

Seeding::~Seeding() {
  for (auto& [name, entry] : groups_) entry->left.Cancel();
}

Result<std::uint16_t> Seeding::Open(transport::GroupAddress address, std::uint32_t engine_rank) {
  auto entry = std::make_shared<Entry>(&cancel_);
  entry->acknowledged = address.port == 0;
  if (address.port == 0) {
    SYNCLINE_ASSIGN(address.port, FreePort());
  }
  const std::string name = address.name;
  address.name = fmt::format("{}_{}_{}", name, address.port, engine_rank);
  entry->joined =
      std::async(std::launch::async,
                 [address, &left = entry->left]() -> Result<std::shared_ptr<ProcessGroup>> {
                   SYNCLINE_ASSIGN(Group group, ProcessGroup::Join(address, kTimeout, &left));
                   return std::shared_ptr<ProcessGroup>(std::move(group));
                 })
          .share();
  std::shared_ptr<Entry> before;  // waits for its end outside of the lock
  const std::scoped_lock lock(mutex_);
  std::shared_ptr<Entry>& place = groups_[name];
  before = std::exchange(place, entry);
  if (before) before->left.Cancel();
  if (groups_.size() <= kGroups) return address.port;
  entry->left.Cancel();
  groups_.erase(name);
  return Fail(Code::kLimitExceeded, fmt::format("there are {} groups already", kGroups));
}

Result<std::shared_ptr<Seeding::Entry>> Seeding::Find(const std::string& name) const {
  const std::scoped_lock lock(mutex_);
  const auto found = groups_.find(name);
  if (found != groups_.end()) return found->second;
  return Fail(Code::kNotFound, fmt::format("Group {} not in _weights_send_group list. Please call "
                                           "`init_weights_send_group_for_remote_instance` first.",
                                           name));
}

Status Seeding::Wait(const std::string& name) {
  SYNCLINE_ASSIGN(const std::shared_ptr<Entry> entry, Find(name));
  const auto& joined = entry->joined.get();
  if (joined) return {};
  Close(name);
  return std::unexpected(joined.error());
}

// `move(entry, group, ranges)`
template <typename Move>
Result<std::string> Seeding::Transfer(const std::string& name, const Move& move) {
  SYNCLINE_ASSIGN(const std::shared_ptr<Entry> entry, Find(name));
  const auto& joined = entry->joined.get();
  if (!joined) return std::unexpected(joined.error());
  SYNCLINE_TRY(move(*entry, **joined, Slots(model_)));
  return HashOf(model_);
}

Result<std::string> Seeding::Send(const std::string& name) {
  const int memory = model_.parameters().live_arena().descriptor();
  const auto move = [&](const Entry& entry, ProcessGroup& group, const auto& slots) -> Status {
    SYNCLINE_TRY(group.Send(memory, slots, &entry.left));
    if (!entry.acknowledged) return {};
    return group.Signal(/*root=*/1, &entry.left);
  };
  Result<std::string> sent = Transfer(name, move);
  Close(name);
  return sent;
}

Result<std::string> Seeding::Receive(const std::string& name) {
  const int memory = model_.parameters().live_arena().descriptor();
  return Transfer(name, [&](const Entry& entry, ProcessGroup& group, const auto& slots) -> Status {
    SYNCLINE_TRY(group.ReceiveInto(memory, slots, &entry.left));
    return group.Signal(/*root=*/1, &entry.left);
  });
}

void Seeding::Close(const std::string& name) {
  std::shared_ptr<Entry> left;  // ends outside of the lock
  const std::scoped_lock lock(mutex_);
  const auto found = groups_.find(name);
  if (found == groups_.end()) return;
  left = std::move(found->second);
  left->left.Cancel();
  groups_.erase(found);
}

}  // namespace syncline::update
