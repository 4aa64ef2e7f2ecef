// The handlers of the two OpenAI generation routes.
#pragma once

#include "serve/router.h"

namespace syncline::serve {

// POST /v1/completions
void HandleCompletions(Front& front, const RequestPtr& request, const ExchangePtr& exchange);

// POST /v1/chat/completions
void HandleChat(Front& front, const RequestPtr& request, const ExchangePtr& exchange);

}  // namespace syncline::serve
