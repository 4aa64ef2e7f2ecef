// Collectives over libtorch's Gloo, to compare ours with.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"

namespace syncline::model {
class Collectives;
}

namespace syncline::bench {

// Where the ranks of a group find each other: a small key-value server (c10d's TCPStore) that rank 0
// runs.
class GlooMeeting {
 public:
  // Listens on all addresses, at a port that the system picks.
  static base::Result<std::unique_ptr<GlooMeeting>> Open();
  virtual ~GlooMeeting() = default;
  virtual std::uint16_t port() const = 0;
};

struct GlooOptions {
  std::uint32_t rank = 0;
  std::uint32_t size = 1;
  std::string meeting_host;  // rank 0's, as seen from here
  std::uint16_t meeting_port = 0;
  std::string own_host;  // address of this host at which the other ranks reach it
  std::chrono::milliseconds timeout{std::chrono::minutes(30)};  // of each operation
};

// Returns when all ranks are connected. kUnavailable with the library's message. On rank 0 the
// meeting must outlive the collectives.
base::Result<std::unique_ptr<model::Collectives>> JoinGloo(const GlooOptions& options);

}  // namespace syncline::bench
