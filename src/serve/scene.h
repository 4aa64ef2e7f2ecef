// For tests: a front with doubles behind it and a router with all routes before it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/temp_dir.h"
#include "serve/fakes.h"
#include "serve/front.h"
#include "serve/router.h"

namespace syncline::serve {

// Token 100 + k has the text "<k>" (k < 10), and byte b the token b.
text::Vocabulary TestVocabulary();

class Scene : public testing::Test {
 protected:
  explicit Scene(Keys keys = {}) : router_(front_, std::move(keys)) {
    AddAllRoutes(router_, front_);
  }
  ~Scene() override { front_.Drain(); }  // what it still does needs the doubles
  void SetUp() override { GetReady(); }
  void GetReady(bool tokenizer = true);

  // Sends a request and does not wait.
  std::shared_ptr<FakeExchange> Start(std::string method, std::string_view target,
                                      std::string body = "",
                                      std::vector<std::pair<std::string, std::string>> headers = {
                                          {"Content-Type", "application/json"}});
  http::Response Post(std::string_view target, std::string body = "") {
    return Start("POST", target, std::move(body))->Wait();
  }
  http::Response Get(std::string_view target) { return Start("GET", target)->Wait(); }
  // An update from disk to version "5", from the same file each time; `already_loaded` of its reply.
  std::string UpdateToFive();
  // Waits until what was posted before has been done.
  void Settle() { front_.Drain(); }

  base::TempDir version_five_;
  base::MetricsRegistry registry_;
  text::Vocabulary vocabulary_ = TestVocabulary();
  Front front_{registry_};
  FakeEngine engine_;
  FakeWeights weights_{engine_};
  FakeTokenizer tokenizer_;
  Router router_;
};

// The JSON of a reply; the test fails where it is none.
base::Json ParseReply(const http::Response& response);
base::Json MustParse(std::string_view text);

// The value at a path of names and positions ("choices.0.text") as JSON text; "-" where there is
// none.
std::string At(const base::Json& json, std::string_view path);

}  // namespace syncline::serve
