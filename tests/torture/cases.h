// The kinds of cases, each a function that plays one story and checks its end.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "torture/dice.h"
#include "torture/world.h"

namespace syncline::torture {

struct CaseKind {
  std::string name;
  std::uint64_t weight = 1;  // how often, beside the others
  std::function<base::Status(const Settings&, Dice&)> play;
};

// One list for each file of cases.
std::vector<CaseKind> PullCases();     // a disturbed pull, and disturbed recoveries
std::vector<CaseKind> PublishCases();  // a disturbed publisher
std::vector<CaseKind> DamageCases();   // wrong bits in store and replica that stay
std::vector<CaseKind> UndoCases();     // the way back, disturbed
std::vector<CaseKind> ChainCases();    // versions that do not follow one another
std::vector<CaseKind> CompanyCases();  // others at work on the same store or replica
std::vector<CaseKind> ProcessCases();  // real processes that are killed

}  // namespace syncline::torture
