// For tests: ASSERT_OK(result), EXPECT_OK(result) and EXPECT_ERROR(result, code, part of the
// message).
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace syncline::base {

template <typename R>
std::string ErrorText(const R& result) {
  if (result) return "ok";
  return std::string(Info(result.error().code).name) + ": " + result.error().message;
}

}  // namespace syncline::base

#define ASSERT_OK(expr)                                                   \
  do {                                                                    \
    const auto& tested = (expr);                                          \
    ASSERT_TRUE(tested.has_value()) << syncline::base::ErrorText(tested); \
  } while (false)
#define EXPECT_OK(expr)                                                   \
  do {                                                                    \
    const auto& tested = (expr);                                          \
    EXPECT_TRUE(tested.has_value()) << syncline::base::ErrorText(tested); \
  } while (false)
// `target` is declared or assigned from the value of a Result; the test stops if there is none.
#define ASSERT_OK_AND_ASSIGN(target, expr) \
  ASSERT_OK_AND_ASSIGN_IMPL(SYNCLINE_CONCAT(tested_, __LINE__), target, expr)
#define ASSERT_OK_AND_ASSIGN_IMPL(result, target, expr)                 \
  auto result = (expr);                                                 \
  ASSERT_TRUE(result.has_value()) << syncline::base::ErrorText(result); \
  target = *std::move(result)
#define EXPECT_ERROR(expr, expected_code, part)                    \
  do {                                                             \
    const auto& tested = (expr);                                   \
    ASSERT_FALSE(tested.has_value());                              \
    EXPECT_EQ(syncline::base::Info(tested.error().code).name,      \
              syncline::base::Info(expected_code).name)            \
        << tested.error().message;                                 \
    EXPECT_THAT(tested.error().message, testing::HasSubstr(part)); \
  } while (false)
