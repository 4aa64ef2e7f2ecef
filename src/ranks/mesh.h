// A connection between every two ranks of a group, over which they exchange bytes in step: what sums
// over ranks are made of. Small exchanges cost one trip and no thread but the caller's.
//
// Life: Listen() on every rank, everybody learns everybody's port (leader.h), Connect() on every
// rank, then Exchange() in the same order on all ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "ranks/address.h"

namespace syncline::ranks {

class Mesh {
 public:
  // `host`: an address of this host at which the other ranks reach it. `token`: a secret of the
  // group; who connects without it is dropped.
  static base::Result<std::unique_ptr<Mesh>> Listen(std::uint32_t rank, std::uint32_t size,
                                                    const std::string& host, std::string token);
  virtual ~Mesh() = default;

  virtual Address address() const = 0;  // for the others

  // `ranks`: of all ranks, by rank. Returns when this rank is connected with all others. kTimeout
  // and kUnavailable name who is missing.
  virtual base::Status Connect(std::span<const Address> ranks, Deadline deadline) = 0;

  // Sends send[r] to rank r and fills receive[r] with what rank r sends here, for all r; those of
  // this rank itself are not looked at. Rank r must call it with sizes that fit. Waits as long as it
  // takes. kUnavailable names the rank whose connection is broken, or is what Abort was called with;
  // kInternal: the ranks are not in step. After an error the mesh cannot be used any more.
  virtual base::Status Exchange(std::span<const base::ByteSpan> send,
                                std::span<const base::MutableByteSpan> receive) = 0;

  // Ends a running Exchange and all later ones with this error. Any thread; the first call counts.
  virtual void Abort(base::Error reason) = 0;
};

}  // namespace syncline::ranks
