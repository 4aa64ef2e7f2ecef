#include "replica/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

namespace syncline::replica {
namespace {

using base::Code;
using base::Fail;
using base::Result;
using base::Status;
using store::Described;

constexpr std::size_t kMaxNamed = 1000;  // versions that a message about gaps looks for

class Walk {
 public:
  Walk(store::Source& source, const HeldVersion* held, const std::string& seed)
      : source_(source), held_(held), seed_(seed) {}

  Result<Plan> Run(std::uint64_t target) {
    std::uint64_t at = target;
    while (true) {
      if (held_ != nullptr && at == held_->version) {
        SYNCLINE_ASSIGN(const bool same,
                        IsHeld(source_, *held_, line_.empty() ? nullptr : &line_.back()));
        if (same) return Choose({.kind = Plan::Start::kHeld, .bytes = bytes_});
        held_ = nullptr;  // another run's
      }
      auto step = Step(at);
      if (!step && best_) return Reversed(*std::move(best_));
      if (!step) return std::unexpected(std::move(step).error());
      if (*step) return **std::move(step);
      at = line_.back().delta->base_version;
    }
  }

 private:
  // Looks at one version: a plan if the walk ends here.
  Result<std::optional<Plan>> Step(std::uint64_t at) {
    SYNCLINE_ASSIGN(const bool in_store, source_.Has(at));
    if (!in_store && at == 0) return AtSeed();
    if (!in_store && !line_.empty()) return Missing(at);
    SYNCLINE_ASSIGN(Described version,
                    source_.Describe(at));  // waits, or says that it is not there
    SYNCLINE_TRY(CheckParent(version));
    if (!version.delta) {
      const std::uint64_t bytes = bytes_ + version.bytes;
      return Choose(
          {.kind = Plan::Start::kFullVersion, .start = std::move(version), .bytes = bytes});
    }
    if (version.full_copy_bytes && (!best_ || bytes_ + *version.full_copy_bytes < best_->bytes)) {
      best_ = Plan{.kind = Plan::Start::kFullCopy,
                   .start = version,
                   .deltas = line_,
                   .bytes = bytes_ + *version.full_copy_bytes};
    }
    if (held_ != nullptr && version.number > held_->version &&
        version.delta->base_version < held_->version) {
      return Fail(Code::kOutOfOrder,
                  fmt::format("out-of-order delta: local at {}, delta {} builds on {}",
                              held_->version, version.number, version.delta->base_version));
    }
    bytes_ += version.bytes;
    line_.push_back(std::move(version));
    if (best_ && bytes_ > best_->bytes) return Reversed(*std::move(best_));
    return std::nullopt;
  }

  Result<std::optional<Plan>> AtSeed() {
    if (!seed_.empty()) {
      const std::uint64_t full =
          line_.empty() || !line_.back().manifest ? 0 : line_.back().manifest->manifest.full_bytes;
      if (best_ && best_->bytes < bytes_ + full) return Reversed(*std::move(best_));
      Plan plan{.kind = Plan::Start::kSeed, .seed = seed_, .deltas = line_, .bytes = bytes_};
      return Reversed(std::move(plan));
    }
    return Fail(Code::kNotFound,
                fmt::format("version 0 is not in {}: say which checkpoint it is (the seed)",
                            source_.url()));
  }

  // The version that was just read must be the one that the last delta was made on.
  Status CheckParent(const Described& version) const {
    if (line_.empty() || !line_.back().manifest || !version.manifest) return {};
    const store::Manifest& child = line_.back().manifest->manifest;
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

  // The walk's end, or a full copy that it passed.
  Plan Choose(Plan end) {
    if (best_ && best_->bytes < end.bytes) return Reversed(*std::move(best_));
    end.deltas = line_;
    return Reversed(std::move(end));
  }

  static Plan Reversed(Plan plan) {
    std::ranges::reverse(plan.deltas);
    return plan;
  }

  store::Source& source_;
  const HeldVersion* held_;
  const std::string& seed_;
  std::vector<Described> line_;  // from the target downwards
  std::uint64_t bytes_ = 0;      // of line_
  std::optional<Plan> best_;     // from a full copy
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
                      const std::string& seed) {
  return Walk(source, held, seed).Run(target);
}

}  // namespace syncline::replica
