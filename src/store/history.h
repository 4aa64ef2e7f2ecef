// What a store holds, version by version.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "store/source.h"

namespace syncline::store {

// The share of the elements that changed; nothing where that is not known.
std::optional<double> Density(std::optional<std::uint64_t> elements,
                              std::optional<std::uint64_t> changed);

struct VersionSummary {
  std::uint64_t version = 0;
  std::optional<std::uint64_t> base_version;  // nothing: a full version
  std::uint64_t bytes = 0;                    // of all its files, also in folders
  std::uint64_t tensors = 0;  // held by it: all of a full version, the changed ones of a delta
  std::optional<std::uint64_t>
      elements;  // of the model; from here on only where our manifest is there
  std::optional<std::uint64_t> elements_changed;
  std::optional<std::uint64_t> created_ns;  // since the epoch
  bool full_copy = false;                   // a delta that carries a full copy too
  std::string
      signed_by;      // fingerprint that its signature claims, checked if the source trusts keys;
                      // empty: not signed
  std::string fault;  // why the version cannot be read; empty: it can

  std::optional<double> density() const { return Density(elements, elements_changed); }
};

// A fold (folds.h).
struct FoldSummary {
  FoldRange range;
  std::uint64_t bytes = 0;                        // of all its files
  std::uint64_t tensors = 0;                      // held by it
  std::optional<std::uint64_t> elements;          // of the model
  std::optional<std::uint64_t> elements_changed;  // between both versions
  std::optional<std::uint64_t> created_ns;        // since the epoch
  std::string signed_by;                          // as of VersionSummary
  std::string fault;                              // why no reader takes it; empty: it can be used
};

// All folds that can be found, ascending.
base::Result<std::vector<FoldSummary>> ReadFolds(Source& source);

// All versions, oldest first; of a store that cannot be listed those that lead to the newest. A
// version that cannot be read is listed with its fault.
base::Result<std::vector<VersionSummary>> ReadHistory(Source& source);

}  // namespace syncline::store
