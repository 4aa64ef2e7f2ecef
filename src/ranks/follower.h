// A follower's end of the group (rank 1 and up): takes the leader's commands in their order,
// answers questions, and hears when the leader, or any other rank, is gone.
//
// Next() is for one thread. Reply() and GiveUp() are thread-safe, and may be called from handlers.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "base/error.h"
#include "ranks/address.h"
#include "ranks/group.h"

namespace syncline::ranks {

struct FollowerOptions {
  Address leader;
  Group group;
  std::string token;
  std::string fingerprint;
  std::string host;  // what this host calls itself, for the leader's log; may be empty
  std::chrono::milliseconds join_timeout{60000};
  // Once, on a thread of the follower's own that holds no lock, when the group has failed (not
  // after an orderly end): must not destroy the follower.
  std::function<void(base::Error)> on_failure;
  const base::CancelToken* cancel = nullptr;  // of Join(); must outlive it
};

class Follower {
 public:
  // Tries until the leader is there and the group is complete. kTimeout says what stood in the way
  // last; what the leader refuses is an error at once: kPermissionDenied (token), kIncompatible
  // (fingerprint, group, protocol), kAlreadyExists (the rank is there already). kCancelled.
  static base::Result<std::unique_ptr<Follower>> Join(FollowerOptions options);

  // Closes both connections: unless the group has ended, the leader sees this rank as gone. Next()
  // must have returned.
  virtual ~Follower() = default;

  // The next command, waiting for it as long as it takes; nothing: the leader ended the group.
  // kUnavailable: the group has failed, with the reason. Stays at the end or at the error.
  virtual base::Result<std::optional<Message>> Next() = 0;

  // Who takes what Leader::Ask sends. Called in order on the thread that reads the connection: must
  // not block, must not throw, must not call OnWork. What comes while there is none waits for the
  // next. When a call returns, the handler before is not running and is not called any more: a
  // handler whose object goes first is to be replaced by nullptr.
  virtual void OnWork(std::function<void(Message)> handler) = 0;

  // Answers a command or work by its id. Dropped once the group has ended or failed; id 0 is
  // ignored.
  virtual void Reply(std::uint64_t id, base::Result<std::vector<std::byte>> result) = 0;

  // Tells the leader that this rank cannot go on, which ends the group for all with "rank 1 (…) has
  // failed: <message>". Next() returns the reason; on_failure is called when the leader has heard
  // it, or a second later. A process that ends itself before that cuts the message off.
  virtual void GiveUp(const base::Error& reason) = 0;

  virtual std::optional<base::Error> failure() const = 0;
};

}  // namespace syncline::ranks
