// The kinds of cases: each plays requests to an engine of its own.
#pragma once

#include "base/error.h"
#include "orders/server.h"
#include "torture/dice.h"

namespace syncline::orders {

using torture::Dice;

Setting DrawSetting(const World& world, Dice& dice);

// Requests in an order that is known, some before the last one is answered: what each is to be
// answered is known before it is sent.
base::Status PlayStory(const World& world, Dice& dice, bool verbose);
// Several clients at once, in threads of their own: whatever the order is, it is one.
base::Status PlayCrowd(const World& world, Dice& dice, bool verbose);

// A failed check.
[[nodiscard]] inline std::unexpected<base::Error> Wrong(std::string what) {
  return base::Fail(base::Code::kInternal, std::move(what));
}

}  // namespace syncline::orders
