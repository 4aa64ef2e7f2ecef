#include "replica/checked_text.h"

#include <fmt/format.h>

#include "tensor/hash.h"

namespace syncline::replica {
namespace {

std::string Begin(std::string_view name, std::string_view body) {
  return fmt::format(R"({{"check":"{}","{}":)",
                     tensor::HashHex(tensor::HashKind::kXxh3, base::AsBytes(body)), name);
}

}  // namespace

std::string CheckedText(std::string_view name, std::string_view body) {
  return fmt::format("{}{}}}", Begin(name, body), body);
}

std::optional<std::string_view> CheckedBody(std::string_view name, std::string_view text) {
  const std::size_t begin = Begin(name, "").size();
  if (text.size() <= begin || !text.ends_with('}')) return std::nullopt;
  const std::string_view body = text.substr(begin, text.size() - begin - 1);
  if (text.substr(0, begin) != Begin(name, body)) return std::nullopt;
  return body;
}

}  // namespace syncline::replica
