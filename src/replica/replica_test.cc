#include "replica/replica.h"

#include <gtest/gtest.h>

namespace {
TEST(Placeholder, Builds) {}
}  // namespace
