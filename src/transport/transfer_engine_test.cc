// The helper's place is taken by lines of shell; the real one is in
// tests/serve/test_p2p_updates.py.
#include "transport/transfer_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/result_matchers.h"

namespace syncline::transport {
namespace {

using base::Code;
using ::testing::HasSubstr;

TransferEngineOptions Shell(const std::string& script) {
  return {.command = {"/bin/sh", "-c", script}, .host = "10.0.0.1"};
}

base::Arena Memory() { return *base::Arena::Create("test", 4096); }

TEST(TransferEngineTest, SessionAndAddressAreThoseOfTheHelper) {
  const base::Arena memory = Memory();
  ASSERT_OK_AND_ASSIGN(const auto engine,
                       TransferEngine::Start(Shell("read question\n"
                                                   "echo '{\"session\":\"h:7\",\"address\":4096}'\n"
                                                   "read question\n"
                                                   "echo '{\"ok\":true}'\n"
                                                   "read question"),
                                             memory));
  EXPECT_EQ(engine->session(), "h:7");
  EXPECT_EQ(engine->address(), 4096U);
  EXPECT_OK(engine->Open());
  engine->Close();  // it has ended
  EXPECT_ERROR(engine->Open(), Code::kUnavailable, "transfer engine: ");
}

TEST(TransferEngineTest, TheHelperIsToldWhatToMap) {
  const base::Arena memory = Memory();
  // What it is asked comes back as the error.
  const auto engine = TransferEngine::Start(
      Shell("read -r question; printf '{\"error\":'; "
            "printf '%s' \"$question\" | sed 's/\"/\\\\\"/g; s/.*/\"&\"/'; echo '}'"),
      memory);
  ASSERT_FALSE(engine.has_value());
  EXPECT_THAT(engine.error().message, HasSubstr("\"bytes\":4096"));
  EXPECT_THAT(engine.error().message, HasSubstr("10.0.0.1"));
  EXPECT_THAT(engine.error().message, HasSubstr("/fd/" + std::to_string(memory.descriptor())));
}

TEST(TransferEngineTest, WhatTheHelperLacksIsTheError) {
  const base::Arena memory = Memory();
  const auto missing =
      TransferEngine::Start(Shell("read question; echo '{\"error\":\"no mooncake\"}'"), memory);
  EXPECT_ERROR(missing, Code::kUnavailable, "no mooncake");
  const auto ended = TransferEngine::Start(Shell("exit 3"), memory);
  EXPECT_ERROR(ended, Code::kUnavailable, "transfer engine: exit status 3");
  const auto nonsense = TransferEngine::Start(Shell("read question; echo '{}'; read it"), memory);
  EXPECT_ERROR(nonsense, Code::kInternal, "without session");
}

}  // namespace
}  // namespace syncline::transport
