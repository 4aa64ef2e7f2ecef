// Tensors that a trainer is about to broadcast to a group.
#pragma once

#include <string>
#include <vector>

#include "payload/payload.h"

namespace syncline::update {

struct GroupTensors {
  std::string group;
  std::vector<payload::NamedTensor> announced;  // without bytes, in the order in which they come
  bool flattened = false;                       // as one
};

}  // namespace syncline::update
