#include "serve/device_uuids.h"

#include <fmt/format.h>

#include "base/bytes.h"
#include "tensor/hash.h"

namespace syncline::serve {

std::vector<std::string> DeviceUuids(std::string_view boot_id, std::string_view host,
                                     std::uint16_t port, std::uint32_t ranks) {
  std::vector<std::string> uuids;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const std::string seed = fmt::format("syncline\n{}\n{}\n{}\n{}", boot_id, host, port, rank);
    std::string hex = tensor::HashHex(tensor::HashKind::kXxh3, base::AsBytes(seed));
    hex[12] = '8';  // a UUID of its maker's own kind (RFC 9562)
    hex[16] = 'a';
    const std::string_view digits = hex;
    uuids.push_back(fmt::format("CPU-{}-{}-{}-{}-{}", digits.substr(0, 8), digits.substr(8, 4),
                                digits.substr(12, 4), digits.substr(16, 4), digits.substr(20)));
  }
  return uuids;
}

}  // namespace syncline::serve
