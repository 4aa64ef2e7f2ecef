// Is a request one that the engine can serve?
#pragma once

#include <cstdint>

#include "base/error.h"
#include "engine/request.h"

namespace syncline::engine {

struct RequestLimits {
  std::uint32_t vocabulary = 0;
  std::uint32_t max_context = 0;  // prompt and output together
  bool experts = false;           // the model has a mixture of them
};

// kInvalidArgument names the field, with expected and actual.
base::Status CheckRequest(const Request& request, const RequestLimits& limits);

}  // namespace syncline::engine
