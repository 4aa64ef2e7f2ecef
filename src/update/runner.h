// The models of an engine whose weights are updated together: the target, and the drafts beside it.
#pragma once

#include <string>

namespace syncline::model {
class Model;
}

namespace syncline::update {

struct Runner {
  std::string role;  // empty for the target; "draft", "draft_step_1", …
  model::Model* model = nullptr;
};

}  // namespace syncline::update
