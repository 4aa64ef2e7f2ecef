// Keys and levels: the rule itself, and a walk of the whole table of routes.
#include <gmock/gmock.h>

#include <map>
#include <set>

#include "serve/scene.h"

namespace syncline::serve {
namespace {

constexpr const char* kUsersKey = "key-of-users";
constexpr const char* kAdminsKey = "key-of-admins";

// Who is let in: everybody, the holder of one key (and of no other), or nobody.
enum class Who { kAll, kApi, kAdmin, kNobody };

struct Combination {
  const char* name;
  Keys keys;
  Who normal;
  Who optional;
  Who force;
};

// The contract's table (docs/http.md), written out.
const std::vector<Combination>& Combinations() {
  static const std::vector<Combination> all = {
      {"no keys", {}, Who::kAll, Who::kAll, Who::kNobody},
      {"only api", {kUsersKey, ""}, Who::kApi, Who::kApi, Who::kNobody},
      {"only admin", {"", kAdminsKey}, Who::kAll, Who::kAdmin, Who::kAdmin},
      {"both", {kUsersKey, kAdminsKey}, Who::kApi, Who::kAdmin, Who::kAdmin}};
  return all;
}

Who AllowedBy(const Combination& combination, Level level) {
  switch (level) {
    case Level::kOpen:
      return Who::kAll;
    case Level::kNormal:
      return combination.normal;
    case Level::kAdminOptional:
      return combination.optional;
    case Level::kAdminForce:
      return combination.force;
  }
  return Who::kNobody;
}

Access Expected(Who who, std::string_view key) {
  if (who == Who::kNobody) return Access::kForbidden;
  const bool let_in = who == Who::kAll || (who == Who::kApi && key == kUsersKey) ||
                      (who == Who::kAdmin && key == kAdminsKey);
  return let_in ? Access::kGranted : Access::kUnauthorized;
}

const std::vector<std::string>& SentKeys() {
  static const std::vector<std::string> keys = {
      "", "wrong", kUsersKey, kAdminsKey, std::string(kAdminsKey) + "x", "key-of-admin"};
  return keys;
}

TEST(AccessTest, EachLevelUnderEachCombinationOfKeys) {
  for (const Combination& combination : Combinations()) {
    for (const Level level :
         {Level::kAdminForce, Level::kAdminOptional, Level::kNormal, Level::kOpen}) {
      for (const std::string& key : SentKeys()) {
        http::Request request;
        request.method = "POST";
        if (!key.empty()) request.headers = {{"X-API-Key", key}};
        EXPECT_EQ(AccessTo(combination.keys, level, request),
                  Expected(AllowedBy(combination, level), key))
            << combination.name << ", level " << static_cast<int>(level) << ", \"" << key << '"';
        request.method = "OPTIONS";
        EXPECT_EQ(AccessTo(combination.keys, level, request), Access::kGranted);
      }
    }
  }
}

TEST(AccessTest, TheKeyMayBeABearerToken) {
  http::Request request;
  request.method = "GET";
  const Keys keys = {.api = "api"};
  for (const char* good : {"Bearer api", "bearer api", "BEARER  api"}) {
    request.headers = {{"authorization", good}};
    EXPECT_EQ(AccessTo(keys, Level::kNormal, request), Access::kGranted) << good;
  }
  for (const char* bad : {"api", "Basic api", "Bearer", "Bearer ", "Bearer None", "Bearer api "}) {
    request.headers = {{"authorization", bad}};
    EXPECT_EQ(AccessTo(keys, Level::kNormal, request), Access::kUnauthorized) << bad;
  }
  request.headers = {{"authorization", "Bearer None"}, {"x-api-key", "api"}};
  EXPECT_EQ(AccessTo(keys, Level::kNormal, request), Access::kGranted);
}

TEST(AccessTest, KeysAreComparedAsAWhole) {
  EXPECT_TRUE(SameKey("abc", "abc"));
  EXPECT_TRUE(SameKey(std::string_view("a\0b", 3), std::string_view("a\0b", 3)));
  for (const std::string_view other :
       {std::string_view(""), std::string_view("ab"), std::string_view("abcabc"),
        std::string_view("abd"), std::string_view("abc\0", 4)}) {
    EXPECT_FALSE(SameKey(other, "abc")) << other;
    EXPECT_FALSE(SameKey("abc", other)) << other;
  }
}

class AccessWalkTest : public Scene {
 protected:
  AccessWalkTest() = default;

  // The status of a request with that key ("": none).
  int Status(const Router& router, const std::string& method, const std::string& path,
             const std::string& key) {
    auto request = std::make_shared<http::Request>();
    request->method = method;
    request->path = path.ends_with("/*") ? path.substr(0, path.size() - 1) + "x" : path;
    if (!key.empty()) request->headers = {{"Authorization", "Bearer " + key}};
    auto exchange = std::make_shared<FakeExchange>();
    router.Handle(request, exchange);
    return exchange->Wait().status;
  }

  static Access AccessOf(int status) {
    if (status == 401) return Access::kUnauthorized;
    return status == 403 ? Access::kForbidden : Access::kGranted;
  }
};

// Whoever adds a route decides here who may call it.
const std::map<std::string, Level>& ExpectedLevels() {
  static const std::map<std::string, Level> levels = {
      {"/health", Level::kOpen},
      {"/health_generate", Level::kOpen},
      {"/metrics", Level::kOpen},
      {"/", Level::kNormal},
      {"/generate", Level::kNormal},
      {"/v1/models", Level::kNormal},
      {"/ping", Level::kNormal},
      {"/v1/models/*", Level::kNormal},
      {"/v1/completions", Level::kNormal},
      {"/v1/chat/completions", Level::kNormal},
      {"/v1/loads", Level::kNormal},
      {"/model_info", Level::kNormal},
      {"/get_model_info", Level::kNormal},
      {"/server_info", Level::kNormal},
      {"/get_server_info", Level::kNormal},
      {"/weight_version", Level::kNormal},
      {"/get_weight_version", Level::kNormal},
      {"/pause_generation", Level::kAdminOptional},
      {"/continue_generation", Level::kAdminOptional},
      {"/abort_request", Level::kAdminOptional},
      {"/flush_cache", Level::kAdminOptional},
      {"/update_weight_version", Level::kAdminOptional},
      {"/update_weights_from_disk", Level::kAdminOptional},
      {"/pull_weights", Level::kAdminOptional},
      {"/begin_weight_update", Level::kAdminOptional},
      {"/end_weight_update", Level::kAdminOptional},
      {"/post_process_weights", Level::kAdminOptional},
      {"/update_weights_from_tensor", Level::kAdminOptional},
      {"/init_weights_update_group", Level::kAdminOptional},
      {"/destroy_weights_update_group", Level::kAdminOptional},
      {"/update_weights_from_distributed", Level::kAdminOptional},
      {"/update_weights_from_ipc", Level::kAdminOptional},
      {"/remote_instance_transfer_engine_info", Level::kAdminOptional},
      {"/get_remote_instance_transfer_engine_info", Level::kAdminOptional},
      {"/parallelism_config", Level::kAdminOptional},
      {"/init_weights_send_group_for_remote_instance", Level::kAdminOptional},
      {"/send_weights_to_remote_instance", Level::kAdminOptional},
      {"/seed_info", Level::kAdminOptional},
      {"/release_memory_occupation", Level::kAdminOptional},
      {"/resume_memory_occupation", Level::kAdminOptional},
      {"/update_weights_from_tensor_raw", Level::kAdminOptional},
      {"/weights_checker", Level::kAdminOptional},
      {"/weights_digest", Level::kAdminOptional},
      {"/export_weights", Level::kAdminOptional},
      {"/get_weights_by_name", Level::kAdminOptional},
      {"/get_parameter_by_name", Level::kAdminOptional},
  };
  return levels;
}

TEST_F(AccessWalkTest, EveryRouteUnderEveryCombinationOfKeys) {
  for (const Combination& combination : Combinations()) {
    Router router(front_, combination.keys);
    AddAllRoutes(router, front_);
    std::set<std::string> seen;
    for (const Route& route : router.routes()) {
      const auto level = ExpectedLevels().find(route.path);
      ASSERT_NE(level, ExpectedLevels().end())
          << route.path << " is new: decide who may call it, and say so in docs/http.md";
      seen.insert(route.path);
      const Who who = AllowedBy(combination, level->second);
      std::vector<std::string> methods = route.methods;
      methods.emplace_back("BREW");  // what the route does not take
      for (const std::string& method : methods) {
        for (const std::string& key : SentKeys()) {
          EXPECT_EQ(AccessOf(Status(router, method, route.path, key)), Expected(who, key))
              << combination.name << ": " << method << ' ' << route.path << " \"" << key << '"';
        }
      }
      EXPECT_EQ(Status(router, "OPTIONS", route.path, ""), 405) << route.path;
    }
    EXPECT_EQ(seen.size(), ExpectedLevels().size());
  }
}

TEST_F(AccessWalkTest, ARouteThatDeclaresNoLevelNeedsTheAdminsKey) {
  for (const Combination& combination : Combinations()) {
    Router router(front_, combination.keys);
    router.Add({.methods = {"GET"},
                .path = "/undecided",
                .handler = [](const auto&, const auto& exchange) { exchange->Send({}); }});
    for (const std::string& key : SentKeys()) {
      EXPECT_EQ(AccessOf(Status(router, "GET", "/undecided", key)),
                Expected(combination.force, key))
          << combination.name << " \"" << key << '"';
    }
  }
}

TEST_F(AccessWalkTest, WhatIsNotInTheTable) {
  for (const Combination& combination : Combinations()) {
    const Router router(front_, combination.keys);
    for (const std::string& key : SentKeys()) {
      const int expected = Expected(combination.optional, key) == Access::kGranted ? 404 : 401;
      EXPECT_EQ(Status(router, "GET", "/nowhere", key), expected) << combination.name << key;
      EXPECT_EQ(Status(router, "GET", "/generate/x", key), expected) << combination.name << key;
      for (const char* probe : {"/ready", "/readyz", "/healthz", "/metrics/x"}) {
        EXPECT_EQ(Status(router, "GET", probe, key), 404) << probe;
      }
    }
  }
}

TEST_F(AccessWalkTest, WhatADeniedClientIsTold) {
  Router router(front_, {.api = kUsersKey, .admin = ""});
  AddAllRoutes(router, front_);
  router.Add({.methods = {"GET"}, .path = "/undecided", .handler = {}});
  const auto body = [&](const char* path) {
    auto request = std::make_shared<http::Request>();
    request->method = "GET";
    request->path = path;
    request->headers = {{"Authorization", "Bearer something-else"}};
    auto exchange = std::make_shared<FakeExchange>();
    router.Handle(request, exchange);
    return exchange->Wait().body;
  };
  EXPECT_EQ(body("/model_info"), R"({"error":"Unauthorized"})");
  EXPECT_EQ(body("/undecided"), R"({"error":"Forbidden"})");
}

}  // namespace
}  // namespace syncline::serve
