#include "delta/encoding.h"

namespace syncline::delta {

std::optional<Encoding> FindEncoding(std::string_view name) {
  if (name == "xor") return Encoding::kXor;
  if (name == "overwrite") return Encoding::kOverwrite;
  return std::nullopt;
}

std::string_view Name(Encoding encoding) {
  return encoding == Encoding::kXor ? "xor" : "overwrite";
}

}  // namespace syncline::delta
