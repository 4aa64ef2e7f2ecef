// Protocol of a name:
//   1. Join puts an entry without a group under the name, in place of what was there, and joins.
//   2. When all have come the entry gets its group, unless it was replaced or left meanwhile.
//   3. Receive holds the entry, one at a time; it fails when the entry is left.
//   4. Leave takes the entry out and ends its transfer. The last one who holds the entry ends the group.
// Invariant: an entry that is not in the table is left, and nothing more comes over it.
#include "transport/group_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "payload/announced.h"

namespace syncline::transport {

using base::Code;
using base::Fail;
using base::Result;
using base::Status;

namespace {

// A buffer that large is not kept for the next message.
constexpr std::uint64_t kKeptBuffer = std::uint64_t{1} << 30;

}  // namespace

void GroupTable::Abandon(Entry& entry, const std::string& reason) {
  entry.left.Cancel();
  if (entry.group) entry.group->Leave(reason);
}

Status GroupTable::Join(const GroupAddress& address, std::uint64_t number) {
  auto entry = std::make_shared<Entry>(number, &cancel_);
  {
    const std::scoped_lock lock(mutex_);
    std::shared_ptr<Entry>& place = groups_[address.name];
    if (place) Abandon(*place, "the group is joined anew");
    if (!place && groups_.size() > options_.most_groups) {
      groups_.erase(address.name);
      return Fail(Code::kLimitExceeded,
                  fmt::format("there are {} groups already", options_.most_groups));
    }
    place = entry;
  }
  Result<std::unique_ptr<ProcessGroup>> joined =
      ProcessGroup::Join(address, options_.timeout, &entry->left);
  if (!joined) {
    Forget(address.name, entry);
    return std::unexpected(joined.error());
  }
  const std::scoped_lock lock(mutex_);
  if (entry->left.cancelled())
    return Fail(Code::kCancelled, "the group was left while it was joined");
  entry->group = *std::move(joined);
  return {};
}

void GroupTable::Forget(const std::string& name, const std::shared_ptr<Entry>& entry) {
  const std::scoped_lock lock(mutex_);
  const auto found = groups_.find(name);
  if (found != groups_.end() && found->second == entry) groups_.erase(found);
}

Status GroupTable::Leave(const std::string& name, std::uint64_t number) {
  std::shared_ptr<Entry> left;  // ends outside of the lock
  const std::scoped_lock lock(mutex_);
  const auto found = groups_.find(name);
  if (found == groups_.end() || (number != 0 && found->second->number != number)) {
    return Fail(Code::kNotFound, "The group to be destroyed does not exist.");
  }
  left = found->second;
  Abandon(*left, "the group was destroyed");
  groups_.erase(found);
  return {};
}

std::vector<std::string> GroupTable::names() const {
  const std::scoped_lock lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, entry] : groups_) {
    if (entry->group) names.push_back(name);
  }
  return names;
}

Result<std::shared_ptr<GroupTable::Entry>> GroupTable::Find(const std::string& name) const {
  {
    const std::scoped_lock lock(mutex_);
    const auto found = groups_.find(name);
    if (found != groups_.end() && found->second->group) return found->second;
  }
  return Fail(Code::kNotFound,
              fmt::format("Group {} not in [{}]. Please call `init_weights_update_group` first.",
                          name, fmt::join(names(), ", ")));
}

// One that nobody reads any more, or a new one.
Result<std::shared_ptr<base::Arena>> GroupTable::BufferOf(Entry& entry, std::uint64_t bytes) const {
  if (bytes > options_.most_bytes) {
    return Fail(Code::kLimitExceeded,
                fmt::format("{} are announced, expected at most {}", base::HumanBytes(bytes),
                            base::HumanBytes(options_.most_bytes)));
  }
  const bool free = entry.buffer.use_count() == 1;
  if (free && entry.buffer->bytes().size() >= bytes) return entry.buffer;
  entry.buffer.reset();
  SYNCLINE_ASSIGN(base::Arena arena, base::Arena::Create("syncline-group", bytes));
  auto buffer = std::make_shared<base::Arena>(std::move(arena));
  if (bytes <= kKeptBuffer) entry.buffer = buffer;
  return buffer;
}

Result<std::unique_ptr<payload::Batch>> GroupTable::Receive(
    const std::string& name, std::vector<payload::NamedTensor> announced, bool flattened) {
  SYNCLINE_ASSIGN(const std::shared_ptr<Entry> entry, Find(name));
  const std::scoped_lock lock(entry->receiving);
  const std::uint64_t total = payload::TotalBytes(announced);
  Result<std::shared_ptr<base::Arena>> buffer = BufferOf(*entry, total);
  Status received;
  if (buffer) {
    const std::vector<std::uint64_t> sizes =
        flattened ? std::vector{total} : payload::ByteCounts(announced);
    received = entry->group->Receive(**buffer, sizes, &entry->left);
  } else {
    received = std::unexpected(buffer.error());
  }
  if (!received) {
    Forget(name, entry);
    entry->group->Leave(received.error().message);
    return std::unexpected(received.error());
  }
  const base::ByteSpan bytes = (*buffer)->bytes();
  return payload::MakeBatch(std::move(announced), bytes, *std::move(buffer));
}

}  // namespace syncline::transport
