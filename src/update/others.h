// The other ranks of an engine, asked all together; none where rank 0 is alone.
#pragma once

#include <cstdint>
#include <future>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "ranks/leader.h"
#include "update/rank_protocol.h"

namespace syncline::update {

using Answers = std::vector<base::Result<Payload>>;

// Thread-safe.
class Others {
 public:
  explicit Others(ranks::Leader* leader) : leader_(leader) {}

  bool any() const { return leader_ != nullptr; }
  const std::vector<ranks::Peer>& peers() const;

  // In the order of commands; one answer for each rank, from rank 1.
  std::future<Answers> Command(RankMessage kind, Payload payload) const;
  // As work, overtaking commands.
  std::future<Answers> Ask(RankMessage kind, Payload payload) const;
  std::future<Answers> Ask(std::span<const ranks::Peer> of, RankMessage kind,
                           Payload payload) const;
  // To each rank its own.
  std::vector<std::future<Answers>> AskEach(RankMessage kind, std::vector<Payload> payloads) const;

 private:
  ranks::Leader* leader_;
};

// The first failure, if there is one.
base::Status AllWell(const Answers& answers);
// Adds the texts that the ranks answered (DecodeTexts).
base::Status AddTexts(const Answers& answers, std::vector<std::string>& texts);

// "rank 1 (host 10.0.0.2)"
std::string RankText(std::uint32_t rank, const std::string& host);

}  // namespace syncline::update
