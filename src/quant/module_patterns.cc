#include "quant/module_patterns.h"

#include <fmt/core.h>

#include <algorithm>
#include <regex>
#include <vector>

namespace syncline::quant {
namespace {

// What the standard library has by default may take exponential time.
constexpr std::regex::flag_type kGrammar =
    std::regex::ECMAScript | std::regex::nosubs | std::regex_constants::__polynomial;

class Compiled final : public ModulePatterns {
 public:
  explicit Compiled(std::vector<std::regex> all) : all_(std::move(all)) {}

  bool Match(std::string_view module) const override {
    return std::ranges::any_of(all_, [module](const std::regex& pattern) {
      return std::regex_search(module.begin(), module.end(), pattern,
                               std::regex_constants::match_continuous);
    });
  }

 private:
  std::vector<std::regex> all_;
};

}  // namespace

base::Result<std::shared_ptr<const ModulePatterns>> ModulePatterns::Compile(
    std::span<const std::string> patterns) {
  constexpr std::size_t kLongest = 512;
  std::vector<std::regex> all;
  for (const std::string& pattern : patterns) {
    if (pattern.size() > kLongest) {
      return base::Fail(base::Code::kIncompatible,
                        fmt::format("a pattern of module names has {} characters, expected at "
                                    "most {}",
                                    pattern.size(), kLongest));
    }
    try {
      all.emplace_back(pattern, kGrammar);
    } catch (const std::regex_error& error) {
      return base::Fail(
          base::Code::kIncompatible,
          fmt::format("expected a regular expression, found \"{}\": {}", pattern, error.what()));
    }
  }
  return std::make_shared<const Compiled>(std::move(all));
}

}  // namespace syncline::quant
