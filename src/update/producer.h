// What one rank takes from a producer of checkpoint-engine, which shows it all tensors of an update
// over a socket of their own (transport/checkpoint_socket.h).
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "base/cancel.h"
#include "base/error.h"
#include "transport/checkpoint_socket.h"
#include "update/rank_weights.h"
#include "update/selector.h"

namespace syncline::update {

struct ProducerRequest {
  Selector selector = Selector::kAll;
  std::string endpoint;
  // Not empty: nothing is taken, and the producer is told why.
  std::string refusal;
};

// One thread at a time.
class RankProducer {
 public:
  // Those must outlive it. `timeout`: of each message.
  RankProducer(RankWeights& weights, std::chrono::milliseconds timeout,
               const base::CancelToken& cancel)
      : weights_(weights), timeout_(timeout), cancel_(cancel) {}

  // All that the producer sends until its end, which waits for Finish. What had come before an
  // error must be dropped. Errors are those of CheckpointSocket and RankWeights::Receive.
  base::Result<Staged> Receive(const ProducerRequest& request);

  // Tells the producer what came of it on all ranks; empty: it went well. Nothing, if Receive
  // failed.
  void Finish(const std::string& failure);

 private:
  RankWeights& weights_;
  const std::chrono::milliseconds timeout_;
  const base::CancelToken& cancel_;
  std::unique_ptr<transport::CheckpointSocket> socket_;  // waits for Finish
};

}  // namespace syncline::update
