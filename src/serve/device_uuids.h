// What producers of checkpoint-engine, which run beside a device each, call the ranks of an engine.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace syncline::serve {

// By rank: "CPU-" and a UUID. The same as long as the host runs, and no other engine's: made from
// the host's boot (`boot_id`), the address that rank 0 listens at, and the rank.
std::vector<std::string> DeviceUuids(std::string_view boot_id, std::string_view host,
                                     std::uint16_t port, std::uint32_t ranks);

}  // namespace syncline::serve
