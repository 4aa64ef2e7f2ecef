// Which runners of an engine an update is for.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace syncline::update {

enum class Selector : std::uint8_t { kAll, kTarget, kDraft };

// In the order of the enumerators.
inline constexpr std::array<std::string_view, 3> kSelectorNames = {"all", "target", "draft"};

constexpr std::string_view Name(Selector selector) {
  return kSelectorNames[static_cast<std::size_t>(selector)];
}

// One of the names, exactly.
constexpr std::optional<Selector> FindSelector(std::string_view name) {
  for (std::size_t i = 0; i < kSelectorNames.size(); ++i) {
    if (kSelectorNames[i] == name) return static_cast<Selector>(i);
  }
  return std::nullopt;
}

// A runner's role is empty for the target, else "draft", "draft_step_1", …
constexpr bool Selects(Selector selector, std::string_view role) {
  return selector == Selector::kAll || (selector == Selector::kTarget) == role.empty();
}

// Is every runner that `inner` selects also selected by `outer`?
constexpr bool Covers(Selector outer, Selector inner) {
  return outer == Selector::kAll || outer == inner;
}

}  // namespace syncline::update
