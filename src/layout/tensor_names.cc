#include "layout/tensor_names.h"

#include <algorithm>
#include <array>

namespace syncline::layout {

std::string WithoutWrappers(std::string_view name) {
  constexpr std::array<std::string_view, 3> kWrappers = {"module", "_orig_mod",
                                                         "_fsdp_wrapped_module"};
  std::string plain;
  while (!name.empty()) {
    const std::size_t dot = std::min(name.find('.'), name.size());
    const std::string_view component = name.substr(0, dot);
    // The last component names the parameter itself.
    if (dot == name.size() || std::ranges::find(kWrappers, component) == kWrappers.end()) {
      plain += name.substr(0, dot + 1);
    }
    name.remove_prefix(std::min(dot + 1, name.size()));
  }
  return plain;
}

}  // namespace syncline::layout
