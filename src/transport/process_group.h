// Membership in a group of processes that a trainer makes with torch.distributed. The collectives run in
// a helper process, syncline-group (group_main.cc), because the libraries under them end their process
// when a peer sends more than was announced, and cannot be interrupted.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/arena.h"
#include "base/cancel.h"
#include "base/error.h"

namespace syncline::transport {

// Where and how to meet. The recipe is that of SGLang, slime and their like: a TCP store at the trainer's
// rank 0, the group's name as prefix of its keys, a group of one backend.
struct GroupAddress {
  std::string name;
  std::string host;  // IPv4, IPv6 (brackets are left out) or a name
  std::uint16_t port = 0;
  std::uint32_t rank = 0;  // of this process, in [0, size)
  std::uint32_t size = 0;
  std::string backend = "gloo";
};

class ProcessGroup {
 public:
  // Waits until all members have come. kInvalidArgument: an address that makes no sense, or a backend
  // that this machine has none of; kUnavailable: nobody answers there, or a member went away; kTimeout;
  // kCancelled. `timeout` is also that of each transfer.
  static base::Result<std::unique_ptr<ProcessGroup>> Join(const GroupAddress& address,
                                                          std::chrono::milliseconds timeout,
                                                          const base::CancelToken* cancel);
  // Leaves: who waits for this member in a collective fails at once.
  virtual ~ProcessGroup() = default;

  // One broadcast of rank 0 after the other, of so many bytes each, to `memory` without gaps. One caller
  // at a time. After an error this member has left.
  virtual base::Status Receive(const base::Arena& memory, std::span<const std::uint64_t> sizes,
                               const base::CancelToken* cancel) = 0;

  // The same as rank 0: broadcasts the ranges of a file of shared memory, in order.
  struct Range {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
  };
  virtual base::Status Send(int descriptor, std::span<const Range> ranges,
                            const base::CancelToken* cancel) = 0;

  // Thread-safe. A transfer that waits fails with `reason`.
  virtual void Leave(const std::string& reason) = 0;
};

}  // namespace syncline::transport
