#include "update/selector.h"

#include <array>
#include <utility>

namespace syncline::update {
namespace {

constexpr std::array<std::pair<Selector, std::string_view>, 3> kNames = {{
    {Selector::kAll, "all"},
    {Selector::kTarget, "target"},
    {Selector::kDraft, "draft"},
}};

}  // namespace

std::optional<Selector> FindSelector(std::string_view name) {
  for (const auto& [selector, own] : kNames) {
    if (own == name) return selector;
  }
  return std::nullopt;
}

std::string_view Name(Selector selector) {
  return kNames[static_cast<std::size_t>(selector)].second;
}

bool Selects(Selector selector, std::string_view role) {
  return selector == Selector::kAll || (selector == Selector::kTarget) == role.empty();
}

bool Covers(Selector outer, Selector inner) { return outer == Selector::kAll || outer == inner; }

}  // namespace syncline::update
