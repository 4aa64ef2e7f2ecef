// Updates by checkpoint-engine's producers. The engine has two ranks, CPU-0 and CPU-1.
#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "base/result_matchers.h"
#include "serve/device_uuids.h"
#include "serve/scene.h"

namespace syncline::serve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kPath[] = "/update_weights_from_ipc";

class IpcRouteTest : public Scene {
 protected:
  std::string Message(const std::string& body, int status) {
    const http::Response reply = Post(kPath, body);
    EXPECT_EQ(reply.status, status) << reply.body;
    return At(ParseReply(reply), "message");
  }
};

TEST_F(IpcRouteTest, EachRankGetsItsEndpoint) {
  EXPECT_EQ(
      Message(R"({"zmq_handles":{"GPU-x":"ipc://x","CPU-1":"ipc://b","CPU-0":"ipc://a"}})", 200),
      R"("IPC weight update completed successfully")");
  ASSERT_EQ(weights_.tensor_updates().size(), 1U);
  const update::TensorUpdate update = weights_.tensor_updates()[0];
  EXPECT_THAT(update.endpoints, ElementsAre("ipc://a", "ipc://b"));
  EXPECT_THAT(update.payloads, IsEmpty());
  EXPECT_TRUE(update.flush_cache);
  EXPECT_FALSE(update.selector.has_value());
  EXPECT_FALSE(update.weight_version.has_value());
}

TEST_F(IpcRouteTest, Fields) {
  EXPECT_EQ(Message(R"({"zmq_handles":{"CPU-1":"ipc://b","CPU-0":"ipc://a"},"flush_cache":false,)"
                    R"("weight_version":"7","torch_empty_cache":true})",
                    200),
            R"("IPC weight update completed successfully Weight version updated to 7.")");
  EXPECT_FALSE(weights_.tensor_updates()[0].flush_cache);
  EXPECT_EQ(weights_.tensor_updates()[0].weight_version, "7");
}

TEST_F(IpcRouteTest, ARankWithoutEndpoint) {
  EXPECT_EQ(Message(R"({"zmq_handles":{"CPU-0":"ipc://a","GPU-x":"ipc://x"}})", 400),
            R"("Device UUID CPU-1 not found in zmq_handles: ['CPU-0', 'GPU-x']")");
  EXPECT_EQ(Message(R"({"zmq_handles":{}})", 400),
            R"("Device UUID CPU-0 not found in zmq_handles: []")");
  EXPECT_THAT(weights_.calls(), IsEmpty());
}

TEST_F(IpcRouteTest, WhatIsNoMap) {
  EXPECT_THAT(Message("{}", 400), HasSubstr("zmq_handles: is required"));
  EXPECT_THAT(Message(R"({"zmq_handles":["ipc://a"]})", 400), HasSubstr("got a list"));
  EXPECT_THAT(Message(R"({"zmq_handles":{"CPU-0":"ipc://a","CPU-1":7}})", 400), HasSubstr("CPU-1"));
  EXPECT_THAT(weights_.calls(), IsEmpty());
}

TEST_F(IpcRouteTest, Failures) {
  weights_.updated = base::Fail(base::Code::kTimeout, "the producer is silent");
  EXPECT_EQ(Message(R"({"zmq_handles":{"CPU-1":"ipc://b","CPU-0":"ipc://a"}})", 400),
            R"("the producer is silent")");
}

TEST_F(IpcRouteTest, UuidsAreShown) {
  EXPECT_EQ(At(ParseReply(Get("/server_info")), "device_uuids"), R"(["CPU-0","CPU-1"])");
}

TEST(DeviceUuids, AreOneRanks) {
  const std::vector<std::string> uuids = DeviceUuids("boot", "127.0.0.1", 30000, 3);
  std::set<std::string> all(uuids.begin(), uuids.end());
  EXPECT_EQ(DeviceUuids("boot", "127.0.0.1", 30000, 3), uuids);
  for (const auto& others :
       {DeviceUuids("other boot", "127.0.0.1", 30000, 3), DeviceUuids("boot", "::1", 30000, 3),
        DeviceUuids("boot", "127.0.0.1", 30001, 3)}) {
    all.insert(others.begin(), others.end());
  }
  EXPECT_EQ(all.size(), 12U);
  EXPECT_THAT(uuids[0], testing::MatchesRegex(
                            "CPU-[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-a[0-9a-f]{3}-[0-9a-f]{12}"));
}

}  // namespace
}  // namespace syncline::serve
