// The journals that a replica keeps: those of the last pull, for undo, and as long as what they
// changed may not have reached the device.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "replica/journal.h"
#include "replica/state.h"

namespace syncline::replica {

struct StoredJournal {
  std::string path;
  Journal journal;
};

class Journals {
 public:
  // Reads all. Those that were not committed, or are damaged, are not among all().
  static base::Result<Journals> Open(const ReplicaState& state);

  // Where the journal of an apply that leads to `to` belongs; its folder exists afterwards.
  static base::Result<std::string> NewPath(const ReplicaState& state, const HeldVersion& to);

  // The unbroken line of applies that led to the version with that token, the oldest first.
  std::vector<const StoredJournal*> LeadingTo(std::string_view token) const;
  // The apply that began at that version; null: there is none.
  const StoredJournal* StartingAt(std::string_view token) const;
  const std::vector<StoredJournal>& all() const { return all_; }
  bool any_unreadable() const { return !unreadable_.empty(); }

  // Removes all but those in `keep`, the unreadable ones too.
  base::Status RemoveOthers(const std::vector<const StoredJournal*>& keep);

 private:
  base::FileSystem* files_ = nullptr;
  std::vector<StoredJournal> all_;
  std::vector<std::string> unreadable_;  // paths
};

}  // namespace syncline::replica
