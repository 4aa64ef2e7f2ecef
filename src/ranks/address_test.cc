#include "ranks/address.h"

#include <gtest/gtest.h>
