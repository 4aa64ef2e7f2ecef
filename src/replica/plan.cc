#include "replica/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "base/log.h"

namespace syncline::replica {
namespace {

using base::Code;
using base::Fail;
using base::Result;
using base::Status;
using store::Described;

constexpr std::size_t kMaxNamed = 1000;  // versions that a message about gaps looks for

// A delta or fold on the way from the target downwards.
struct Hop {
  const Described* delta = nullptr;
  const Hop* above = nullptr;  // what builds on its version; null: nothing, it is the target
  std::uint64_t bytes = 0;     // of all from here to the target
  bool plain = true;           // no fold among them
};

std::uint64_t BytesOf(const Hop* hop) { return hop == nullptr ? 0 : hop->bytes; }
bool IsPlain(const Hop* hop) { return hop == nullptr || hop->plain; }

// The shortest way, by Dijkstra's algorithm: places wait in a queue by the bytes that it takes from
// there to the target; what is taken out first cannot be reached with fewer.
class Search {
 public:
  Search(store::Source& source, const HeldVersion* held, const std::string& seed,
         const FoldUse& folds)
      : source_(source), held_(held), seed_(seed), fold_use_(folds) {}

  Result<Plan> Run(std::uint64_t target) {
    Push(0, {.version = target});
    while (!queue_.empty()) {
      const Place place = queue_.extract(queue_.begin()).mapped();
      if (place.end) return Finish(place);
      const Status seen = place.fold ? TryFold(place) : Visit(place);
      if (seen) continue;
      if (seen.error().code == Code::kCancelled) return std::unexpected(seen.error());
      Note(seen.error(), place.hop);
    }
    if (missing_) return Missing(*missing_);
    if (error_) return std::unexpected(*error_);
    return Fail(Code::kNotFound,
                fmt::format("no version of {} leads to version {}", source_.url(), target));
  }

 private:
  // What waits: a version, to be looked at; a fold that leads to it, to be looked at; or an end.
  struct Place {
    std::uint64_t version = 0;
    const Hop* hop = nullptr;  // what builds on it; null: it is the target
    std::optional<store::FoldRange> fold;
    std::optional<Plan::Start> end;
    const Described* start = nullptr;  // of an end
  };
  // At the same weight a full copy comes last, and what was found earlier first.
  using Key = std::tuple<std::uint64_t, bool, std::size_t>;

  void Push(std::uint64_t weight, Place place) {
    const bool copy = place.end == Plan::Start::kFullCopy;
    queue_.emplace(Key(weight, copy, queue_count_++), place);
  }
  void PushEnd(std::uint64_t more, const Hop* hop, Plan::Start end, const Described* start) {
    Push(BytesOf(hop) + more, {.hop = hop, .end = end, .start = start});
  }
  const Hop* AddHop(const Described& delta, const Hop* above) {
    return &hops_.emplace_back(
        Hop{&delta, above, BytesOf(above) + delta.bytes, IsPlain(above) && !delta.is_fold()});
  }

  Plan Finish(const Place& place) const {
    Plan plan{.kind = *place.end, .bytes = BytesOf(place.hop)};
    if (place.start != nullptr) plan.start = *place.start;
    if (plan.kind == Plan::Start::kSeed) plan.seed = seed_;
    if (plan.kind == Plan::Start::kFullVersion) plan.bytes += place.start->bytes;
    if (plan.kind == Plan::Start::kFullCopy) plan.bytes += *place.start->full_copy_bytes;
    for (const Hop* hop = place.hop; hop != nullptr; hop = hop->above) {
      plan.deltas.push_back(*hop->delta);
    }
    return plan;
  }

  // Why the plain way ends; of ways with folds only if there is nothing else to say.
  void Note(const base::Error& error, const Hop* hop) {
    if (!IsPlain(hop) && (error_ || missing_)) return;
    if (IsPlain(hop) && plain_error_) return;
    plain_error_ = IsPlain(hop);
    error_ = error;
    missing_.reset();
  }
  void NoteMissing(std::uint64_t version, const Hop* hop) {
    if (IsPlain(hop) ? plain_error_ : error_ || missing_) return;
    plain_error_ = IsPlain(hop);
    missing_ = version;
  }

  Status Visit(const Place& place) {
    const std::uint64_t at = place.version;
    const bool by_fold = place.hop != nullptr && place.hop->delta->is_fold();
    if (held_ != nullptr && at == held_->version) {
      SYNCLINE_ASSIGN(const bool same,
                      IsHeld(source_, *held_, place.hop == nullptr ? nullptr : place.hop->delta));
      if (same) {
        PushEnd(0, place.hop, Plan::Start::kHeld, nullptr);
        return {};
      }
      if (!by_fold) held_ = nullptr;  // another run's
    }
    if (visited_.contains(at)) return {};
    SYNCLINE_ASSIGN(const bool in_store, source_.Has(at));
    if (!in_store && at == 0) return AtSeed(place.hop);
    if (!in_store && place.hop != nullptr) {
      if (!by_fold) NoteMissing(at, place.hop);
      return {};
    }
    if (!described_.contains(at)) {
      // Waits, or says that it is not there.
      SYNCLINE_ASSIGN(Described described, source_.Describe(at));
      described_.emplace(at, std::move(described));
    }
    const Described& version = described_.at(at);
    if (by_fold && place.hop->delta->manifest->manifest.fold->base != version.identity) return {};
    SYNCLINE_TRY(CheckParent(version, place.hop));
    visited_.insert(at);
    return Expand(version, place.hop);
  }

  Status Expand(const Described& version, const Hop* hop) {
    SYNCLINE_TRY(PushFolds(version, hop));
    if (!version.delta) {
      PushEnd(version.bytes, hop, Plan::Start::kFullVersion, &version);
      return {};
    }
    if (version.full_copy_bytes) {
      PushEnd(*version.full_copy_bytes, hop, Plan::Start::kFullCopy, &version);
    }
    const std::uint64_t base = version.delta->base_version;
    if (held_ != nullptr && version.number > held_->version && base < held_->version) {
      return Fail(Code::kOutOfOrder,
                  fmt::format("out-of-order delta: local at {}, delta {} builds on {}",
                              held_->version, version.number, base));
    }
    const Hop* next = AddHop(version, hop);
    Push(next->bytes, {.version = base, .hop = next});
    return {};
  }

  Status AtSeed(const Hop* hop) {
    if (seed_.empty()) {
      return Fail(Code::kNotFound,
                  fmt::format("version 0 is not in {}: say which checkpoint it is (the seed)",
                              source_.url()));
    }
    const bool known = hop != nullptr && hop->delta->manifest;
    PushEnd(known ? hop->delta->manifest->manifest.full_bytes : 0, hop, Plan::Start::kSeed,
            nullptr);
    return {};
  }

  // All folds that lead to a version, as yet by what is known of their sizes.
  Status PushFolds(const Described& version, const Hop* hop) {
    if (!fold_use_.use || !version.manifest || version.number == 0) return {};
    // Nothing is shorter than one delta.
    if (held_ != nullptr && version.delta && version.delta->base_version == held_->version) {
      return {};
    }
    if (!folds_) {
      auto known = source_.KnownFolds();
      if (!known && known.error().code == Code::kCancelled) {
        return std::unexpected(std::move(known).error());
      }
      if (!known) {
        base::Log(base::LogLevel::kWarning, fmt::format("the folds of {} cannot be looked for: {}",
                                                        source_.url(), known.error().message));
      }
      folds_ = std::move(known).value_or(std::vector<store::FoldEntry>());
    }
    for (const store::FoldEntry& fold : *folds_) {
      if (fold.range.to != version.number) continue;
      if (fold_use_.without.contains(store::FoldName(fold.range))) continue;
      if (visited_.contains(fold.range.from)) continue;
      Push(BytesOf(hop) + fold.bytes, {.version = version.number, .hop = hop, .fold = fold.range});
    }
    return {};
  }

  Status TryFold(const Place& place) {
    auto described = source_.DescribeFold(*place.fold);
    if (!described) {
      const base::Error& error = described.error();
      if (error.code == Code::kCancelled) return std::unexpected(error);
      if (error.code != Code::kNotFound) {
        base::Log(base::LogLevel::kWarning,
                  fmt::format("a fold cannot be read, and is left alone: {}", error.message));
      }
      return {};
    }
    const Described& version = described_.at(place.version);
    // It was made for another version of that number.
    if (described->identity != version.identity || !Agree(*described, version)) return {};
    const Described& fold =
        *described_folds_.emplace_back(std::make_unique<Described>(*std::move(described)));
    const Hop* hop = AddHop(fold, place.hop);
    Push(hop->bytes, {.version = place.fold->from, .hop = hop});
    return {};
  }

  // Do a fold and the version that it makes say the same of the tensors that both name? Manifests of
  // compact deltas name none.
  static bool Agree(const Described& fold, const Described& version) {
    const store::Manifest& a = fold.manifest->manifest;
    const store::Manifest& b = version.manifest->manifest;
    if (a.run != b.run || a.tensors_total != b.tensors_total) return false;
    return std::ranges::all_of(a.tensors, [&](const store::ManifestTensor& tensor) {
      const auto found =
          std::ranges::lower_bound(b.tensors, tensor.name, {}, &store::ManifestTensor::name);
      return found == b.tensors.end() || found->name != tensor.name || found->hash == tensor.hash;
    });
  }

  // The version that was just read must be the one that the delta above it was made on.
  Status CheckParent(const Described& version, const Hop* hop) const {
    if (hop == nullptr || !hop->delta->manifest || !version.manifest) return {};
    const store::Manifest& child = hop->delta->manifest->manifest;
    if (child.parent.empty() || child.parent == version.identity) return {};
    return Fail(
        Code::kOutOfOrder,
        fmt::format("version {} of {} was made on another version {} than is there (parent "
                    "{:.12}…, found {:.12}…)",
                    child.version, source_.url(), version.number, child.parent, version.identity));
  }

  // Version `at` is needed and not there; so are all others down to the nearest one to start from.
  std::unexpected<base::Error> Missing(std::uint64_t at) const {
    std::vector<std::uint64_t> missing = {at};
    while (missing.back() > 1 && missing.size() < kMaxNamed) {
      const std::uint64_t next = missing.back() - 1;
      if (held_ != nullptr && next == held_->version) break;
      const auto there = source_.Has(next);
      if (!there || *there) break;
      missing.push_back(next);
    }
    std::ranges::reverse(missing);
    return Fail(Code::kNotFound, fmt::format("the chain is broken: {} lacks versions {}",
                                             source_.url(), RangesText(missing)));
  }

  store::Source& source_;
  const HeldVersion* held_;
  const std::string& seed_;
  const FoldUse& fold_use_;
  std::map<Key, Place> queue_;
  std::size_t queue_count_ = 0;
  std::deque<Hop> hops_;
  std::map<std::uint64_t, Described> described_;  // versions
  std::set<std::uint64_t> visited_;
  std::optional<std::vector<store::FoldEntry>> folds_;  // once they were asked for
  std::vector<std::unique_ptr<Described>> described_folds_;
  std::optional<base::Error> error_;      // why no way leads further, or:
  std::optional<std::uint64_t> missing_;  // the version that is not there
  bool plain_error_ = false;              // of the way without folds
};

}  // namespace

std::string RangesText(const std::vector<std::uint64_t>& numbers) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    parts.push_back(end - i == 1 ? fmt::format("{}", numbers[i])
                                 : fmt::format("{}–{}", numbers[i], numbers[end - 1]));
    i = end;
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

Result<bool> IsHeld(store::Source& source, const HeldVersion& held, const Described* child) {
  if (child != nullptr && child->manifest) {
    const store::Manifest& manifest = child->manifest->manifest;
    if (!held.run.empty() && held.run != manifest.run) return false;
    if (!manifest.parent.empty() && held.identity.size() == manifest.parent.size()) {
      return manifest.parent == held.identity;
    }
  }
  SYNCLINE_ASSIGN(const bool in_store, source.Has(held.version));
  if (!in_store) return true;  // nobody can tell any more; the hashes will
  SYNCLINE_ASSIGN(const Described version, source.Describe(held.version));
  return version.IsIdentity(held.identity);
}

Result<Plan> MakePlan(store::Source& source, std::uint64_t target, const HeldVersion* held,
                      const std::string& seed, const FoldUse& folds) {
  return Search(source, held, seed, folds).Run(target);
}

}  // namespace syncline::replica
