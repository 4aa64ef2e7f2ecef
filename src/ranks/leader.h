// Rank 0's end of the group: commands that every follower gets in the same order, questions and
// their answers, and the news that a follower is gone.
//
// Life: Listen() (the port is known from here on, so that followers can be started with it), then
// Join() once, then everything else, then Shutdown() or destruction.
//
// The group fails as a whole. The first follower that closes its connection, is silent for
// `silence`, breaks the protocol or gives up ends it: all asks that are open end with kUnavailable
// and a text such as "rank 2 (host 10.0.0.2, pid 77) is gone: connection closed", the other
// followers are told the same text, and on_failure hears it once. Nothing can be mended then:
// destroy it and form a new group.
//
// Thread-safe from the end of Join() on, but for the destructor. Callbacks (on_failure, Replies)
// run one after the other on a thread of the leader's own that holds no lock: they may call
// everything here but Shutdown() and the destructor, and may take their time, which delays other
// callbacks and nothing else.
//
// Neither encrypted nor proof against who can read the traffic: the token keeps strangers out that
// only know the port. Meant for a network that is trusted.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "base/error.h"
#include "ranks/address.h"
#include "ranks/group.h"

namespace syncline::ranks {

struct LeaderOptions {
  Address listen;  // port 0: the system picks one; a name: all of its addresses
  std::uint32_t size = 1;
  std::uint32_t nodes = 1;
  std::string token;        // a secret of this group
  std::string fingerprint;  // what all ranks must agree upon: model, options
  // Every connection carries a sign of life both ways this often; whoever has sent nothing for
  // `silence` is gone. Followers use the leader's values.
  std::chrono::milliseconds heartbeat{500};
  std::chrono::milliseconds silence{3000};
  std::chrono::milliseconds join_timeout{60000};
  std::function<void(base::Error)> on_failure;
  const base::CancelToken* cancel = nullptr;  // of Join(); must outlive it
};

class Leader {
 public:
  // One for each follower that was asked, in the order of the ranks given (CommandAndAsk:
  // ascending). The error of a follower is its own, with "rank 1 (host 10.0.0.2): " in front.
  using Replies = std::function<void(std::vector<base::Result<std::vector<std::byte>>>)>;

  // Errors as in address.h; kInvalidArgument for options that make no sense.
  static base::Result<std::unique_ptr<Leader>> Listen(LeaderOptions options);

  // Open asks end with kCancelled before it returns, which takes a second at most (for farewells
  // after a failure) beside what callbacks take. Without Shutdown() the followers see that the
  // leader is gone.
  virtual ~Leader() = default;

  virtual std::uint16_t port() const = 0;

  // Waits until all followers are there, and stops listening. kTimeout names the ranks that are
  // missing and who was refused meanwhile; kCancelled. Whoever does not speak the protocol is
  // dropped with a log line; a wrong token, fingerprint or group, a rank out of range or one that
  // is there already is refused with a reason that both sides log. Not to be called again.
  virtual base::Status Join() = 0;

  virtual const std::vector<Peer>& peers() const = 0;  // in the order of their ranks, from rank 1

  // Every follower gets it after everything that was sent before by Command or CommandAndAsk. Does
  // not wait for the followers: what the network does not take at once is queued, without a bound,
  // so who is faster than the followers should ask from time to time. Dropped after a failure.
  virtual void Command(std::uint32_t kind, std::vector<std::byte> payload) = 0;

  // The same, and every follower is to answer by id. `replies` is called exactly once.
  virtual void CommandAndAsk(std::uint32_t kind, std::vector<std::byte> payload,
                             Replies replies) = 0;

  // Overtakes commands: goes to Follower::OnWork. May take minutes and hundreds of megabytes both
  // ways. `replies` is called exactly once; a rank that is no follower is kInvalidArgument for all.
  virtual void Ask(std::span<const std::uint32_t> ranks, std::uint32_t kind,
                   std::vector<std::byte> payload, Replies replies) = 0;

  virtual std::optional<base::Error> failure() const = 0;

  // Ends the group for all with kUnavailable and "the leader has failed: <message>", as if a
  // follower had been lost. on_failure is called too.
  virtual void GiveUp(const base::Error& reason) = 0;

  // Orderly: followers get all commands sent before, then their Next() returns the end, and nobody
  // reports a failure. Open asks end with kCancelled. Returns when all have heard it, after at most
  // `silence`. Everything sent later is dropped.
  virtual void Shutdown() = 0;
};

}  // namespace syncline::ranks
