// The groups of trainers' processes that one rank is a member of, by name, and what comes over them.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/cancel.h"
#include "base/error.h"
#include "payload/payload.h"
#include "transport/process_group.h"

namespace syncline::transport {

// Thread-safe.
class GroupTable {
 public:
  struct Options {
    std::chrono::milliseconds timeout = std::chrono::seconds(300);  // of joining, and of a transfer
    std::uint64_t most_bytes = ~std::uint64_t{0};                   // that come at once
    std::size_t most_groups = 64;
  };
  // `cancel`: ends what waits, for good. Must outlive it.
  GroupTable(Options options, const base::CancelToken& cancel)
      : options_(options), cancel_(cancel) {}

  // Waits until all members have come. A group of that name, or one that is being joined, is left: its
  // trainer has begun anew. `number` tells groups of one name apart. As ProcessGroup::Join, and
  // kLimitExceeded for too many groups.
  base::Status Join(const GroupAddress& address, std::uint64_t number);
  // Only the one with that number; 0: whichever there is. kNotFound: there is none. Who waits for this
  // member fails at once.
  base::Status Leave(const std::string& name, std::uint64_t number);

  // Receives tensors that rank 0 broadcasts: each by itself in the order of the list or, `flattened`, all
  // as one. One after the other in each group. kNotFound: no such group. After any other error the group
  // has been left.
  base::Result<std::unique_ptr<payload::Batch>> Receive(const std::string& name,
                                                        std::vector<payload::NamedTensor> announced,
                                                        bool flattened);

  std::vector<std::string> names() const;  // of groups that are joined

 private:
  struct Entry {
    Entry(std::uint64_t own_number, const base::CancelToken* parent)
        : number(own_number), left(parent) {}
    const std::uint64_t number;
    base::CancelToken left;
    std::unique_ptr<ProcessGroup>
        group;  // null while it is being joined; guarded by the table's mutex
    std::mutex receiving;
    std::shared_ptr<base::Arena> buffer;  // guarded by receiving
  };

  void Forget(const std::string& name, const std::shared_ptr<Entry>& entry);
  base::Result<std::shared_ptr<Entry>> Find(const std::string& name) const;
  static void Abandon(Entry& entry, const std::string& reason);
  base::Result<std::shared_ptr<base::Arena>> BufferOf(Entry& entry, std::uint64_t bytes) const;

  const Options options_;
  const base::CancelToken& cancel_;
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Entry>> groups_;  // guarded by mutex_
};

}  // namespace syncline::transport
