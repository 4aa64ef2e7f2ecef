// Messages about a name that a plan does not know.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace syncline::layout {

// The number of characters to insert, remove or replace.
std::size_t EditDistance(std::string_view a, std::string_view b);

// The name that is most likely meant: the least edit distance among those that agree most at the
// start and the end. Nothing if even that one differs in more than a third of its characters, or
// if `name` is longer than any sensible name.
std::optional<std::string_view> NearestName(std::string_view name,
                                            std::span<const std::string_view> known);

// At most the first 200 bytes: names come from outside.
std::string ClippedName(std::string_view name);

// "a, b and c"; of a long list the first few and "and 12 more".
std::string ListText(std::span<const std::string_view> names);

// "a, b, c, d, e (and 7 more)": at most the first five.
std::string FirstNamesText(std::span<const std::string> names);

}  // namespace syncline::layout
