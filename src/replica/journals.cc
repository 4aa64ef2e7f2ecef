#include "replica/journals.h"

#include <fmt/format.h>

#include <algorithm>

namespace syncline::replica {
namespace {

using base::Code;
using base::Result;
using base::Status;

constexpr std::string_view kFolder = "journal";

}  // namespace

Result<Journals> Journals::Open(const ReplicaState& state) {
  Journals journals;
  journals.files_ = &state.files();
  const std::string folder = state.Path(kFolder);
  const auto names = state.files().List(folder);
  if (!names) {
    if (names.error().code == Code::kNotFound) return journals;
    return std::unexpected(names.error());
  }
  for (const std::string& name : *names) {
    std::string path = base::JoinPath(folder, name);
    auto journal = Journal::Open(state.files(), path);
    if (journal) {
      journals.all_.push_back({std::move(path), *std::move(journal)});
      continue;
    }
    // A journal that merely cannot be read now may still be needed.
    if (journal.error().code != Code::kCorrupt) return std::unexpected(journal.error());
    journals.unreadable_.push_back(std::move(path));
  }
  return journals;
}

Result<std::string> Journals::NewPath(const ReplicaState& state, const HeldVersion& to) {
  const std::string folder = state.Path(kFolder);
  SYNCLINE_TRY(state.files().MakeDirectories(folder));
  return base::JoinPath(folder, fmt::format("{:06}-{:.8}", to.version, to.token));
}

std::vector<const StoredJournal*> Journals::LeadingTo(std::string_view token) const {
  std::vector<const StoredJournal*> line;
  while (line.size() < all_.size()) {
    const auto found = std::ranges::find_if(
        all_, [&](const StoredJournal& stored) { return stored.journal.head().to.token == token; });
    if (found == all_.end()) break;
    line.push_back(&*found);
    token = found->journal.head().from.token;
  }
  std::ranges::reverse(line);
  return line;
}

const StoredJournal* Journals::StartingAt(std::string_view token) const {
  const auto found = std::ranges::find_if(
      all_, [&](const StoredJournal& stored) { return stored.journal.head().from.token == token; });
  return found == all_.end() ? nullptr : &*found;
}

Status Journals::RemoveOthers(const std::vector<const StoredJournal*>& keep) {
  for (const std::string& path : unreadable_) SYNCLINE_TRY(files_->Remove(path));
  unreadable_.clear();
  std::vector<std::string> kept;
  kept.reserve(keep.size());
  for (const StoredJournal* stored : keep) kept.push_back(stored->path);
  for (std::size_t i = all_.size(); i-- > 0;) {
    if (std::ranges::find(kept, all_[i].path) != kept.end()) continue;
    SYNCLINE_TRY(files_->Remove(all_[i].path));
    all_.erase(all_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return {};
}

}  // namespace syncline::replica
