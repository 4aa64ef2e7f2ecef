// Names of checkpoint tensors as trainers send them.
#pragma once

#include <string>
#include <string_view>

namespace syncline::layout {

// Without the components that wrappers of a module add to the names of its parameters: "module.",
// "_orig_mod.", "_fsdp_wrapped_module.", wherever they stand.
std::string WithoutWrappers(std::string_view name);

}  // namespace syncline::layout
