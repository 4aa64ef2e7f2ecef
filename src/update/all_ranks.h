// The weights of all ranks of an engine, from rank 0: each step of an update (rank_weights.h) on all of
// them, and what they answered as one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "update/others.h"
#include "update/rank_weights.h"
#include "update/selector.h"

namespace syncline::update {

class RankGroups;
class RankProducer;
struct TensorUpdate;

// One thread at a time. A step that fails on one rank has failed: the error is that rank's, with its
// name where there are several. All have answered when a call returns.
class AllRanks {
 public:
  // All must outlive it. `host`: what rank 0's is called in messages.
  AllRanks(RankWeights& own, RankGroups& groups, RankProducer& producer, const Others& others,
           std::string host)
      : own_(own), groups_(groups), producer_(producer), others_(others), host_(std::move(host)) {}

  std::uint32_t size() const { return static_cast<std::uint32_t>(others_.peers().size()) + 1; }

  // kOutOfOrder too where the hosts' replicas are at different versions.
  base::Result<Staged> Stage(const std::string& path);
  // To each rank its own message, or to all the only one; or what each has under the ticket.
  base::Result<Staged> Receive(const TensorUpdate& update, Selector selector);
  // What the producers at these endpoints send, by rank. An error that explains something counts
  // before one that says that a producer gave up or went away: one rank's failure ends them all.
  // `refusal`: as in ProducerRequest.
  base::Result<Staged> ReceiveFromProducers(const std::vector<std::string>& endpoints,
                                            Selector selector, const std::string& refusal);
  // RankProducer::Finish.
  void FinishProducers(const std::string& failure);
  base::Result<Staged> Prepare(Selector selector, bool whole);
  // By rank.
  base::Result<std::vector<WindowInfo>> Offer();
  base::Status Open();
  // Names of the tensors that are lost.
  base::Result<std::vector<std::string>> Drop();
  // The same, as RankWeights::Release and Resume. Where a rank fails those that have not must be
  // told the contrary.
  base::Result<std::vector<std::string>> Release();
  base::Result<std::vector<std::string>> Resume();
  // On any of them.
  base::Result<bool> MayWriteInPlace();
  // The same, as far as it was asked before.
  bool known_to_write_in_place() const { return may_write_.value_or(false); }

  // The engine's thread, between two steps.
  base::Result<std::vector<std::string>> Commit();
  base::Status DeriveLive();

 private:
  base::Result<std::vector<std::string>> AddNames(base::Result<std::vector<std::string>> own,
                                                  const Answers& answers) const;
  base::Result<Staged> AddUp(const base::Result<Staged>& own, const Answers& answers) const;

  base::Result<Staged> ReceiveOwn(const TensorUpdate& update, Selector selector);

  RankWeights& own_;
  RankGroups& groups_;
  RankProducer& producer_;
  const Others& others_;
  const std::string host_;
  std::optional<bool> may_write_;  // in place, on any rank
};

}  // namespace syncline::update
