// From rank 0: the live weights of all ranks to another engine, or from one (seeding.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "update/others.h"
#include "update/rank_weights.h"

namespace syncline::update {

// Thread-safe as Seeding is.
class Seeds {
 public:
  // All must outlive it.
  Seeds(RankWeights& own, const Others& others, std::string host)
      : own_(own), others_(others), host_(std::move(host)) {}

  // Begins to join on all ranks; the ports.
  base::Result<std::vector<std::uint16_t>> Open(const SeedGroups& groups) const;
  base::Status Wait(const std::string& name) const;
  // Hashes by rank. After an error all ranks have left.
  base::Result<std::vector<std::string>> Send(const std::string& name) const;
  base::Result<std::vector<std::string>> Receive(const std::string& name) const;
  void Close(const std::string& name) const;

 private:
  base::Result<std::vector<std::string>> OnAll(
      RankMessage kind, const std::string& name,
      base::Result<std::string> (RankWeights::*move)(const std::string&)) const;

  RankWeights& own_;
  const Others& others_;
  const std::string host_;
};

}  // namespace syncline::update
