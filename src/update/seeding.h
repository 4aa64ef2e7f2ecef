// Copies the live parameters of a rank to the same rank of another engine that is laid out alike,
// over a process group of the two (SGLang's remote instances). One broadcast for each parameter in
// the plan's order: its slot, as it is.
#pragma once

#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "base/error.h"
#include "transport/process_group.h"

namespace syncline::model {
class Model;
}

namespace syncline::update {

// A group of two for each rank.
struct SeedGroups {
  std::string name;
  std::string host;                  // of the sender, who holds the groups' stores
  std::vector<std::uint16_t> ports;  // by rank; none: the sender's choice
  std::uint32_t rank = 0;            // of this engine in each group
  std::uint32_t size = 2;
  std::string backend = "gloo";
};

// Thread-safe, but for the parameters: they must not change while they are sent, nor be used while
// they are received.
class Seeding {
 public:
  // Both must outlive it.
  Seeding(model::Model& model, const base::CancelToken& cancel) : model_(model), cancel_(cancel) {}
  ~Seeding();

  // Begins to join; a group of that name is left. Port 0: any free one. Returns the port. The
  // group's own name is NAME_PORT_ENGINE-RANK, as SGLang has it. kLimitExceeded: too many groups.
  base::Result<std::uint16_t> Open(transport::GroupAddress address, std::uint32_t engine_rank);
  // Until all members have come. Fails as ProcessGroup::Join.
  base::Status Wait(const std::string& name);

  // Both wait for the members, and return the xxh3-128 of all slots. The sender leaves the group at
  // once, as SGLang does, or, where the port was its choice, when the receiver has said that all has
  // come.
  base::Result<std::string> Send(const std::string& name);
  // From a sender that chose the port; until Close.
  base::Result<std::string> Receive(const std::string& name);

  void Close(const std::string& name);  // leaves, if there is such a group

 private:
  using Group = std::unique_ptr<transport::ProcessGroup>;
  struct Entry {
    explicit Entry(const base::CancelToken* parent) : left(parent) {}
    base::CancelToken left;
    bool acknowledged = false;
    std::shared_future<base::Result<std::shared_ptr<transport::ProcessGroup>>> joined;
  };

  base::Result<std::shared_ptr<Entry>> Find(const std::string& name) const;
  template <typename Move>
  base::Result<std::string> Transfer(const std::string& name, const Move& move);

  model::Model& model_;
  const base::CancelToken& cancel_;
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Entry>> groups_;  // guarded by mutex_
};

}  // namespace syncline::update
