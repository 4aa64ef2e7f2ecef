// Which runners of an engine an update is for.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace syncline::update {

enum class Selector : std::uint8_t { kAll, kTarget, kDraft };

// "all", "target" or "draft", exactly.
std::optional<Selector> FindSelector(std::string_view name);
std::string_view Name(Selector selector);

// A runner's role is empty for the target, else "draft", "draft_step_1", …
bool Selects(Selector selector, std::string_view role);
// Is every runner that `inner` selects also selected by `outer`?
bool Covers(Selector outer, Selector inner);

}  // namespace syncline::update
