// The routes behind a real HTTP server: what the doubles of a client cannot show.
#include <gmock/gmock.h>

#include "http/test_client.h"
#include "serve/scene.h"

namespace syncline::serve {
namespace {

using testing::HasSubstr;

class OverHttpTest : public Scene {
 protected:
  void SetUp() override {
    Scene::SetUp();
    server_ = http::MustStart([this](const RequestPtr& request, ExchangePtr exchange) {
      router_.Handle(request, std::move(exchange));
    });
  }
  void TearDown() override { server_->Stop({}); }

  std::unique_ptr<http::Server> server_;
};

TEST_F(OverHttpTest, ARequestAndItsReply) {
  http::TestClient client(server_->port());
  for (int i = 0; i < 2; ++i) {  // on one connection
    ASSERT_TRUE(client.Send(
        http::Post("/generate", R"({"input_ids":[1],"sampling_params":{"max_new_tokens":2}})")));
    const auto reply = client.ReadReply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, 200);
    EXPECT_EQ(At(MustParse(reply->body), "output_ids"), "[100,101]");
  }
}

TEST_F(OverHttpTest, EachEventArrivesWhenItIsSent) {
  engine_.hold = true;
  http::TestClient client(server_->port());
  ASSERT_TRUE(client.Send(http::Post("/generate", R"({"input_ids":[1],"rid":"a","stream":true})")));
  const auto head = client.ReadHead();
  ASSERT_TRUE(head);
  EXPECT_EQ(head->Header("content-type"), "text/event-stream");
  engine_.Emit("a", {.tokens = {5}, .text = "one"});
  EXPECT_THAT(client.ReadChunk().value_or(""), HasSubstr("one"));
  engine_.Emit("a", LastEvent({.kind = engine::Finish::Kind::kLength}, {6}, "two"));
  EXPECT_THAT(client.ReadChunk().value_or(""), HasSubstr("onetwo"));
}

TEST_F(OverHttpTest, AClientThatGoesAwayAbortsItsRequests) {
  engine_.hold = true;
  for (const char* stream : {"true", "false"}) {
    http::TestClient client(server_->port());
    ASSERT_TRUE(client.Send(http::Post(
        "/generate", std::string(R"({"input_ids":[1],"rid":"a","stream":)") + stream + "}")));
    ASSERT_TRUE(http::Eventually([&] { return engine_.running() == 1; }));
    client.Close();
    EXPECT_TRUE(http::Eventually([&] { return engine_.running() == 0; }));
  }
  EXPECT_TRUE(http::Eventually([&] { return front_.open_requests() == 0; }));
}

TEST_F(OverHttpTest, ABodyInAGetRequest) {
  weights_.tensors["w"] = {.name = "w", .dtype = tensor::Dtype::kF32, .shape = {1}};
  weights_.tensors["w"].bytes.resize(4);
  http::TestClient client(server_->port());
  ASSERT_TRUE(
      client.Send("GET /get_weights_by_name HTTP/1.1\r\nHost: x\r\nContent-Length: 12\r\n"
                  "\r\n{\"name\":\"w\"}"));
  const auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->body, "[0]");
}

}  // namespace
}  // namespace syncline::serve
