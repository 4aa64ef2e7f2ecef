#include "serve/exposure.h"

#include <gmock/gmock.h>

#include "base/result_matchers.h"

namespace syncline::serve {
namespace {

using base::Code;

Resolver Fixed(std::vector<std::string> addresses) {
  return [addresses](const std::string&) { return addresses; };
}

TEST(ExposureTest, LoopbackNeedsNoKey) {
  for (const char* host : {"127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"}) {
    Options options;
    options.host = host;
    ASSERT_OK_AND_ASSIGN(const std::string address, AddressToListenAt(options, ResolveBySystem));
    EXPECT_TRUE(IsLoopback(address)) << address;
  }
}

TEST(ExposureTest, Br46OtherMachinesNeedAKeyOrTheOperatorsWord) {
  for (const char* host : {"0.0.0.0", "::", "192.0.2.1", "::ffff:10.0.0.1", "fe80::1", "128.0.0.1",
                           "::ffff:0.0.0.0", "0"}) {
    Options options;
    options.host = host;
    EXPECT_ERROR(AddressToListenAt(options, ResolveBySystem), Code::kInvalidArgument,
                 "--allow-unauthenticated");
    options.keys.admin = "key";
    EXPECT_TRUE(AddressToListenAt(options, ResolveBySystem)) << host;
    options.keys = {.api = "key", .admin = ""};
    EXPECT_TRUE(AddressToListenAt(options, ResolveBySystem)) << host;
    options.keys = {};
    options.allow_unauthenticated = true;
    EXPECT_TRUE(AddressToListenAt(options, ResolveBySystem)) << host;
  }
}

TEST(ExposureTest, ANameCountsByAllOfItsAddresses) {
  Options options;
  options.host = "trainer-7";
  const Resolver here = Fixed({"127.0.1.1", "::1"});
  ASSERT_OK_AND_ASSIGN(const std::string address, AddressToListenAt(options, here));
  EXPECT_EQ(address, "127.0.1.1");
  for (const Resolver& there : {Fixed({"127.0.1.1", "10.1.2.3"}), Fixed({"2001:db8::1", "::1"})}) {
    EXPECT_ERROR(AddressToListenAt(options, there), Code::kInvalidArgument, "trainer-7");
  }
  EXPECT_ERROR(AddressToListenAt(options, Fixed({})), Code::kInvalidArgument, "trainer-7");
}

TEST(ExposureTest, WhatIsNoHostIsRefused) {
  Options options;
  options.allow_unauthenticated = true;
  options.host = "[::1]";
  EXPECT_ERROR(AddressToListenAt(options, ResolveBySystem), Code::kInvalidArgument, "[::1]");
}

}  // namespace
}  // namespace syncline::serve
