// Regular expressions over module names, as checkpoints give them.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace syncline::quant {

// Immutable, thread-safe.
class ModulePatterns {
 public:
  // ECMAScript's grammar, without references to groups. kIncompatible names one that is longer than
  // 512 characters or cannot be read.
  static base::Result<std::shared_ptr<const ModulePatterns>> Compile(
      std::span<const std::string> patterns);
  virtual ~ModulePatterns() = default;

  // Does one of them match a beginning of the name? (Python's re.match, which compressed-tensors
  // uses.) Takes time of the product of the lengths, whatever the pattern.
  virtual bool Match(std::string_view module) const = 0;
};

}  // namespace syncline::quant
