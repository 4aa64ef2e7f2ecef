// Which versions of a store must stay: what each builds on, and what that means for the ones that
// are asked for. Inside of retention.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "base/cancel.h"
#include "base/error.h"
#include "base/json.h"
#include "objects/object_store.h"
#include "store/retention.h"

namespace syncline::store {

// Key of an object of a version.
std::string KeyOf(std::uint64_t version, std::string_view name);

struct Node {
  enum class Kind { kFull, kDelta, kUnreadable };
  Kind kind = Kind::kUnreadable;
  std::uint64_t base = 0;  // of a delta
};

// Reads versions through the store, as little of each as will do.
class Survey {
 public:
  Survey(objects::ObjectStore& store, const base::CancelToken* cancel)
      : store_(store), cancel_(cancel) {}

  base::Result<std::set<std::uint64_t>> List();
  // An error only if it may pass.
  base::Result<Node> Read(std::uint64_t version);
  // Of a store that is no directory: versions that are being published, or whose publisher died.
  // Their manifest, which is the commit, is missing, while an older version has one.
  base::Result<std::set<std::uint64_t>> Uncommitted(const std::set<std::uint64_t>& versions);
  // Does the version hold the full copy that its manifest says, as far as names and sizes go?
  base::Result<bool> HoldsFullCopy(std::uint64_t version);
  // What syncline.latest.json names, whatever its format; nothing without a readable one.
  base::Result<std::optional<std::uint64_t>> Pointer();

 private:
  base::Result<Node> ReadIndex(std::uint64_t version);
  base::Status FindFull(std::uint64_t version);

  objects::ObjectStore& store_;
  const base::CancelToken* cancel_;
};

// Follows bases from the versions that are asked for. All arguments must outlive it.
class Keeper {
 public:
  Keeper(Survey& survey, const std::map<std::uint64_t, Node>& nodes)
      : survey_(survey), nodes_(nodes) {}

  // Keeps a version of `nodes` and what it builds on; all older ones where that is not known.
  base::Status Keep(std::uint64_t version);
  const std::set<std::uint64_t>& kept() const { return kept_; }

 private:
  void KeepOlderThan(std::uint64_t version);

  Survey& survey_;
  const std::map<std::uint64_t, Node>& nodes_;
  std::set<std::uint64_t> kept_;
};

// What Collect keeps by its options, whoever reads.
base::Result<std::set<std::uint64_t>> ChooseKept(Survey& survey,
                                                 const std::map<std::uint64_t, Node>& nodes,
                                                 const GcOptions& options);

}  // namespace syncline::store
