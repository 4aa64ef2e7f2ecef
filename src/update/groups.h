// Groups of processes shared with trainers, on all ranks of an engine: joining, leaving, receiving.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.h"
#include "payload/payload.h"
#include "transport/group_table.h"
#include "update/group_tensors.h"
#include "update/others.h"

namespace syncline::update {

// Thread-safe. What one rank holds: its groups, and tensors that came over them until they are taken.
class RankGroups {
 public:
  RankGroups(transport::GroupTable::Options options, const base::CancelToken& cancel)
      : table_(options, cancel) {}

  transport::GroupTable& table() { return table_; }

  // Receives and keeps what came under `ticket`.
  base::Status Receive(std::uint64_t ticket, const std::string& group,
                       std::vector<payload::NamedTensor> announced, bool flattened);
  // kInternal: nothing came under that ticket.
  base::Result<std::unique_ptr<payload::Batch>> Take(std::uint64_t ticket);

 private:
  transport::GroupTable table_;
  std::mutex mutex_;
  std::map<std::uint64_t, std::unique_ptr<payload::Batch>> came_;  // guarded by mutex_
};

struct GroupRequest {
  transport::GroupAddress address;  // without the rank
  std::uint32_t rank_offset = 1;    // rank of the engine's rank 0; those of the others follow
};

// On rank 0, for all ranks. Thread-safe; calls wait for all ranks. The error is that of the rank that
// failed first, with its name where there are several; all ranks have left the group then, so that its
// other members fail at once.
class Groups {
 public:
  // All must outlive it. `host`: what rank 0's is called in messages.
  Groups(RankGroups& own, const Others& others, std::string host)
      : own_(own), others_(others), host_(std::move(host)) {}

  base::Status Join(const GroupRequest& request);
  // kNotFound: there is no such group.
  base::Status Leave(const std::string& name);
  // The ticket of what came, on every rank. One at a time in each group.
  base::Result<std::uint64_t> Receive(const GroupTensors& tensors);
  // Nobody will take it.
  void Forget(std::uint64_t ticket);

 private:
  struct Group {
    std::uint64_t number = ~std::uint64_t{0};  // of the last one joined; at first that of none
    std::shared_ptr<std::mutex> receiving = std::make_shared<std::mutex>();
  };

  template <typename Own>
  base::Status OnAll(RankMessage kind, std::vector<Payload> payloads, const LeaveGroup& on_failure,
                     const Own& own);
  Group Find(const std::string& name) const;
  void Remember(const std::string& name, std::uint64_t number);

  RankGroups& own_;
  const Others& others_;
  const std::string host_;
  std::atomic<std::uint64_t> numbers_ = 0;  // of groups and tickets
  mutable std::mutex mutex_;
  std::map<std::string, Group> groups_;  // guarded by mutex_
};

}  // namespace syncline::update
