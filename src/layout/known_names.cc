#include "layout/known_names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace syncline::layout {
namespace {

constexpr std::size_t kLongestName = 512;   // for which a nearest one is looked for
constexpr std::size_t kCandidates = 64;     // whose edit distance is computed
constexpr std::size_t kClippedBytes = 200;  // in a message
constexpr std::size_t kListed = 8;

// Characters in which the two agree at the start and at the end.
std::size_t SharedEnds(std::string_view a, std::string_view b) {
  const std::size_t length = std::min(a.size(), b.size());
  std::size_t start = 0;
  while (start < length && a[start] == b[start]) ++start;
  std::size_t end = 0;
  while (end < length - start && a[a.size() - 1 - end] == b[b.size() - 1 - end]) ++end;
  return start + end;
}

}  // namespace

std::size_t EditDistance(std::string_view a, std::string_view b) {
  // row[j]: from the part of a seen so far to the first j characters of b.
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row[b.size()];
}

std::optional<std::string_view> NearestName(std::string_view name,
                                            std::span<const std::string_view> known) {
  if (name.size() > kLongestName) return std::nullopt;
  // Ordered by what differs after the shared ends, then by name so that the answer does not depend
  // on the order of `known`.
  std::vector<std::pair<std::size_t, std::string_view>> candidates;
  for (const std::string_view other : known) {
    if (other.size() > kLongestName) continue;
    candidates.emplace_back(std::max(name.size(), other.size()) - SharedEnds(name, other), other);
  }
  const std::size_t count = std::min(kCandidates, candidates.size());
  std::ranges::partial_sort(candidates, candidates.begin() + static_cast<std::ptrdiff_t>(count));
  candidates.resize(count);
  for (auto& [distance, other] : candidates) distance = EditDistance(name, other);
  const auto best = std::ranges::min_element(candidates);
  if (best == candidates.end() || best->first * 3 > best->second.size()) return std::nullopt;
  return best->second;
}

std::string ClippedName(std::string_view name) {
  if (name.size() <= kClippedBytes) return std::string(name);
  return fmt::format("{}... ({} bytes)", name.substr(0, kClippedBytes), name.size());
}

std::string ListText(std::span<const std::string_view> names) {
  std::string text;
  const std::size_t listed = names.size() <= kListed ? names.size() : kListed - 1;
  for (std::size_t i = 0; i < listed; ++i) {
    const bool last = i + 1 == names.size();
    text += fmt::format("{}{}", i == 0 ? "" : (last ? " and " : ", "), names[i]);
  }
  if (listed < names.size()) text += fmt::format(" and {} more", names.size() - listed);
  return text;
}

std::string FirstNamesText(std::span<const std::string> names) {
  constexpr std::size_t kShown = 5;
  const auto shown = names.first(std::min(names.size(), kShown));
  std::string text = fmt::format("{}", fmt::join(shown, ", "));
  if (names.size() > kShown) text += fmt::format(" (and {} more)", names.size() - kShown);
  return text;
}

}  // namespace syncline::layout
