// Producers are sockets of the same library; real ones of Python are in tests/serve.
#include "transport/checkpoint_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <zmq.h>

#include <filesystem>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/result_matchers.h"
#include "payload/memory_sender.h"
#include "payload/pickle_builder.h"
#include "transport/free_port.h"

namespace syncline::transport {
namespace {

using base::Code;
using base::Status;
using payload::PickleBuilder;
using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr milliseconds kTimeout(60000);
constexpr milliseconds kSoon(200);

std::string NewEndpoint() {
  static int next = 0;
  return "ipc://@syncline-test-" + std::to_string(::getpid()) + "-" + std::to_string(next++);
}

// REQ as checkpoint-engine has it, bound to an endpoint.
class Producer {
 public:
  explicit Producer(const std::string& endpoint) : context_(zmq_ctx_new()) {
    socket_ = zmq_socket(context_, ZMQ_REQ);
    const int linger = 0;
    zmq_setsockopt(socket_, ZMQ_LINGER, &linger, sizeof(linger));
    EXPECT_EQ(zmq_bind(socket_, endpoint.c_str()), 0) << zmq_strerror(zmq_errno());
  }
  Producer(const Producer&) = delete;
  Producer& operator=(const Producer&) = delete;
  ~Producer() { Leave(); }

  void Say(const std::string& message, int flags = 0) {
    EXPECT_EQ(zmq_send(socket_, message.data(), message.size(), flags),
              static_cast<int>(message.size()));
  }
  std::string Hear() {
    zmq_msg_t message;
    zmq_msg_init(&message);
    EXPECT_GE(zmq_msg_recv(&message, socket_, 0), 0);
    std::string text(static_cast<const char*>(zmq_msg_data(&message)), zmq_msg_size(&message));
    zmq_msg_close(&message);
    return text;
  }
  std::string Ask(const PickleBuilder& pickle) {
    Say(pickle.Text());
    return Hear();
  }
  void Leave() {
    if (context_ == nullptr) return;
    zmq_close(socket_);
    zmq_ctx_term(context_);
    context_ = nullptr;
  }

 private:
  void* context_;
  void* socket_;
};

PickleBuilder None() { return PickleBuilder().Raw("N"); }
PickleBuilder Exception() {
  return PickleBuilder().Class("builtins", "RuntimeError").String("others failed").Raw("\x85R");
}
PickleBuilder OneTensor(const char* name, std::int64_t offset, std::int64_t size = 4) {
  return PickleBuilder().Raw("]").Entry(name, "uint8", {size}, offset).Raw("a");
}

class CheckpointSocketTest : public testing::Test {
 protected:
  // Starts to receive, on a thread of its own.
  void Begin(milliseconds timeout = kTimeout) {
    auto socket = CheckpointSocket::Connect(endpoint_, timeout, &cancel_);
    ASSERT_OK(socket);
    socket_ = *std::move(socket);
    received_ = std::async(std::launch::async, [this] {
      return socket_->Receive([this](const payload::Batch& batch) { return Load(batch); });
    });
  }
  Status Load(const payload::Batch& batch) {
    for (const payload::NamedTensor& tensor : batch.tensors()) {
      if (tensor.name == "refused") return base::Fail(Code::kNotFound, "no such tensor");
      loaded_.push_back(tensor.name + "=" + std::string(base::AsText(tensor.bytes)));
    }
    return {};
  }
  PickleBuilder Handle() const { return PickleBuilder().Handle(memory_.name(), 8); }
  // Receive has failed with that code; its text.
  std::string Failure(Code code) {
    const Status status = received_.get();
    if (status) return "no error";
    EXPECT_EQ(status.error().code, code) << status.error().message;
    return status.error().message;
  }
  bool IsMapped() const { return memory_.count() == 2; }

  const std::string endpoint_ = NewEndpoint();
  const payload::MemorySender memory_{2, "weights!"};
  base::CancelToken cancel_;
  std::vector<std::string> loaded_;
  std::unique_ptr<CheckpointSocket> socket_;
  std::future<Status> received_;
};

TEST_F(CheckpointSocketTest, BothHalvesInTurns) {
  Producer producer(endpoint_);
  Begin();
  EXPECT_EQ(producer.Ask(Handle()), "");
  for (const char* round : {"1", "2", "3"}) {
    memory_.Write(0, std::string("aaa") + round);
    EXPECT_EQ(producer.Ask(OneTensor("a", 0)), "");
    memory_.Write(0, "XXXX");
    memory_.Write(4, std::string("bbb") + round);
    EXPECT_EQ(producer.Ask(OneTensor("b", 4)), "");
  }
  EXPECT_EQ(producer.Ask(PickleBuilder().Raw("]")), "");
  EXPECT_TRUE(IsMapped());
  EXPECT_EQ(producer.Ask(None()), "");
  EXPECT_FALSE(IsMapped());
  producer.Say(None().Text());
  EXPECT_OK(received_.get());
  EXPECT_THAT(loaded_, ElementsAre("a=aaa1", "b=bbb1", "a=aaa2", "b=bbb2", "a=aaa3", "b=bbb3"));
  socket_->Finish({});
  EXPECT_EQ(producer.Hear(), "");
}

TEST_F(CheckpointSocketTest, TheEndCanFail) {
  Producer producer(endpoint_);
  Begin();
  producer.Ask(Handle());
  producer.Ask(None());
  producer.Say(None().Text());
  EXPECT_OK(received_.get());
  socket_->Finish(base::Fail(Code::kOutOfOrder, "half of a pair"));
  socket_.reset();  // the answer leaves all the same
  EXPECT_EQ(producer.Hear(), "half of a pair");
}

TEST_F(CheckpointSocketTest, OverLoopback) {
  const std::string endpoint = "tcp://127.0.0.1:" + std::to_string(FreePort());
  Producer producer(endpoint);
  auto socket = CheckpointSocket::Connect(endpoint, kTimeout, nullptr);
  ASSERT_OK(socket);
  auto received = std::async(std::launch::async, [&] {
    return (*socket)->Receive([](const payload::Batch&) { return Status(); });
  });
  EXPECT_EQ(producer.Ask(Handle()), "");
  producer.Say(Exception().Text());
  EXPECT_FALSE(received.get().has_value());
}

TEST_F(CheckpointSocketTest, ALoadThatFailsIsToldUntilTheProducerGivesUp) {
  Producer producer(endpoint_);
  Begin();
  producer.Ask(Handle());
  EXPECT_EQ(producer.Ask(OneTensor("refused", 0)), "no such tensor");
  EXPECT_FALSE(IsMapped());
  EXPECT_EQ(producer.Ask(OneTensor("a", 0)), "no such tensor") << "one that goes on";
  producer.Say(Exception().Text());
  EXPECT_EQ(Failure(Code::kNotFound), "no such tensor");
  EXPECT_TRUE(loaded_.empty());
}

TEST_F(CheckpointSocketTest, AProducerThatDoesNotListenComesToItsEnd) {
  Producer producer(endpoint_);
  Begin();
  producer.Ask(Handle());
  producer.Ask(OneTensor("refused", 0));
  EXPECT_EQ(producer.Ask(None()), "no such tensor");
  EXPECT_EQ(producer.Ask(None()), "no such tensor");
  EXPECT_EQ(Failure(Code::kNotFound), "no such tensor");
}

TEST_F(CheckpointSocketTest, TheProducerGivesUp) {
  Producer producer(endpoint_);
  Begin();
  producer.Ask(Handle());
  producer.Ask(OneTensor("a", 0));
  producer.Say(Exception().Text());
  EXPECT_THAT(Failure(Code::kUnavailable), HasSubstr("gave up: RuntimeError: others failed"));
  EXPECT_FALSE(IsMapped());
}

TEST_F(CheckpointSocketTest, WhatComesOutOfTurn) {
  const payload::MemorySender memory(100, "weights!");
  const PickleBuilder handle = PickleBuilder().Handle(memory.name(), 8);
  struct Case {
    std::vector<PickleBuilder> before;
    PickleBuilder wrong;
    const char* text;
  };
  for (const Case& one :
       std::vector<Case>{{{}, None(), "None before the buffer"},
                         {{}, OneTensor("a", 0, 0), "tensors without a buffer"},
                         {{handle}, handle, "a second handle"},
                         {{handle, None()}, OneTensor("a", 0, 0), "tensors without a buffer"},
                         {{handle, None()}, handle, "a second handle"},
                         {{handle}, PickleBuilder().Int(7), "found an integer"},
                         {{handle}, OneTensor("a", 5), "not inside of the buffer of 8 bytes"}}) {
    Producer producer(endpoint_);
    Begin();
    for (const PickleBuilder& pickle : one.before) EXPECT_EQ(producer.Ask(pickle), "");
    EXPECT_THAT(producer.Ask(one.wrong), HasSubstr(one.text));
    producer.Leave();
    EXPECT_THAT(Failure(Code::kInvalidArgument), HasSubstr(one.text));
  }
}

TEST_F(CheckpointSocketTest, WhatIsNoMessage) {
  PickleBuilder deep;
  for (int i = 0; i < 100000; ++i) deep.Raw("(");
  const std::string handle = Handle().Text();
  for (const std::string& message :
       {std::string(), std::string("\x80\x05"), handle.substr(0, handle.size() / 2),
        PickleBuilder().Raw("B\xff\xff\xff\xff").Text(),
        PickleBuilder().Raw("\x8e\xff\xff\xff\xff\xff\xff\xff\x7f").Text(),
        PickleBuilder().Class("os", "system").String("true").Raw("\x85R").Text(),
        PickleBuilder().Class("torch.storage", "_load_from_bytes").Text(), deep.Text()}) {
    Producer producer(endpoint_);
    Begin();
    producer.Say(message);
    const std::string told = producer.Hear();
    EXPECT_NE(told, "");
    producer.Leave();
    const Status status = received_.get();
    ASSERT_FALSE(status.has_value());
    EXPECT_EQ(status.error().message, told);
  }
}

TEST_F(CheckpointSocketTest, SeveralParts) {
  Producer producer(endpoint_);
  Begin();
  producer.Say(Handle().Text(), ZMQ_SNDMORE);
  producer.Say(Handle().Text());
  EXPECT_THAT(producer.Hear(), HasSubstr("several parts"));
  producer.Leave();
  EXPECT_THAT(Failure(Code::kInvalidArgument), HasSubstr("several parts"));
  EXPECT_TRUE(IsMapped()) << "not opened, so not counted down";
}

TEST_F(CheckpointSocketTest, ALargeMessageEndsIt) {
  Producer producer(endpoint_);
  Begin();
  producer.Ask(Handle());
  producer.Say(std::string((std::size_t{64} << 20) + 1, 'x'));
  EXPECT_THAT(Failure(Code::kUnavailable), HasSubstr("more than 67108864 bytes"));
}

TEST_F(CheckpointSocketTest, TheProducerDies) {
  {
    Producer producer(endpoint_);
    Begin();
    producer.Ask(Handle());
  }
  EXPECT_THAT(Failure(Code::kUnavailable), HasSubstr(endpoint_ + " went away"));
  EXPECT_FALSE(IsMapped());
}

TEST_F(CheckpointSocketTest, NobodyComes) {
  Begin(kSoon);
  EXPECT_THAT(Failure(Code::kTimeout), HasSubstr("sent nothing for 200 ms"));
}

TEST_F(CheckpointSocketTest, Silence) {
  Producer producer(endpoint_);
  Begin(kSoon);
  producer.Ask(Handle());
  EXPECT_THAT(Failure(Code::kTimeout), HasSubstr("sent nothing for 200 ms"));
}

TEST_F(CheckpointSocketTest, SilenceAfterAnError) {
  Producer producer(endpoint_);
  Begin(kSoon);
  producer.Ask(Handle());
  EXPECT_EQ(producer.Ask(OneTensor("refused", 0)), "no such tensor");
  EXPECT_EQ(Failure(Code::kNotFound), "no such tensor");
}

TEST_F(CheckpointSocketTest, WaitingCanBeCancelled) {
  Producer producer(endpoint_);
  Begin();
  producer.Ask(Handle());
  cancel_.Cancel();
  EXPECT_EQ(Failure(Code::kCancelled), "cancelled");
}

TEST_F(CheckpointSocketTest, MemoryThatBecomesSmaller) {
  const payload::MemorySender large(2, std::string(1 << 20, 'w'));
  Producer producer(endpoint_);
  Begin();
  producer.Ask(PickleBuilder().Handle(large.name(), 1 << 20));
  EXPECT_EQ(::truncate(("/dev/shm" + large.name()).c_str(), 4096), 0);
  EXPECT_THAT(producer.Ask(OneTensor("a", 0, 1 << 20)), HasSubstr("became smaller"));
  producer.Say(Exception().Text());
  EXPECT_THAT(Failure(Code::kCorrupt), HasSubstr("became smaller"));
}

// BR-41.
TEST_F(CheckpointSocketTest, Br41NothingIsLeftOpen) {
  const auto open = [] {
    const std::filesystem::directory_iterator entries("/proc/self/fd");
    return std::distance(begin(entries), end(entries));
  };
  std::vector<std::ptrdiff_t> counts;
  for (int i = 0; i < 20; ++i) {
    const payload::MemorySender memory(2, "weights!");
    {
      Producer producer(endpoint_);
      Begin();
      producer.Ask(PickleBuilder().Handle(memory.name(), 8));
      producer.Ask(OneTensor("a", 0));
      producer.Ask(None());
      producer.Say(None().Text());
      EXPECT_OK(received_.get());
      socket_->Finish({});
      producer.Hear();
      socket_.reset();
    }
    EXPECT_EQ(memory.count(), 1);
    counts.push_back(open());
  }
  EXPECT_EQ(counts.back(), counts.front());
}

TEST(CheckpointSocketEndpoints, OnlyThisHost) {
  for (const char* endpoint :
       {"", "ipc://", "tcp://10.0.0.1:80", "tcp://127.0.0.1:", "tcp://127.0.0.1:80;10.0.0.1:80",
        "tcp://127.0.0.1.example.com:80", "tcp://127.0.0.1:123456", "inproc://a",
        "udp://127.0.0.1:1", "/tmp/socket", "tcp://*:80"}) {
    const auto socket = CheckpointSocket::Connect(endpoint, kSoon, nullptr);
    ASSERT_FALSE(socket.has_value()) << endpoint;
    EXPECT_EQ(socket.error().code, Code::kInvalidArgument);
    EXPECT_THAT(socket.error().message, HasSubstr("expected ipc://NAME"));
  }
  for (const char* endpoint : {"ipc:///tmp/syncline-no-socket", "tcp://localhost:1",
                               "tcp://[::1]:1", "tcp://127.0.0.1:1"}) {
    EXPECT_OK(CheckpointSocket::Connect(endpoint, kSoon, nullptr));
  }
  EXPECT_FALSE(CheckpointSocket::Connect("ipc://" + std::string(500, 'a'), kSoon, nullptr));
  EXPECT_FALSE(CheckpointSocket::Connect("tcp://127.0.0.1:70000", kSoon, nullptr));
}

}  // namespace
}  // namespace syncline::transport
