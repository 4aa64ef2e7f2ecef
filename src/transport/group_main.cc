// syncline-group: one member of a process group of torch.distributed, for an engine that asks it for
// transfers (process_group.cc). A program of its own, because the library ends its process on a peer's
// mistake.
//
//   question                                                        answer
//   {"do":"join","name","host","port","rank","size","timeout_ms"}   {"ok":true} when all have come
//   {"do":"broadcast","root","memory":path,"ranges":[offset,bytes,…]}  {"ok":true} when all is there
// Any of them: {"error":text}, after which nothing more is asked.
//
// Protocol of joining: 1. connect to the store, again and again until the deadline (rank 0: hold it);
// 2. count ourselves in, as torch's own clients do; 3. make the group, which waits for all and connects
// each to each. A connection to the store that says nothing is kept: the group's rank 0
// holds the store, so when that connection ends it is gone, and so are we, in whatever call we wait.
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <arpa/inet.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using syncline::base::FailErrno;
using syncline::base::Json;
using syncline::base::Result;
using syncline::base::Status;

// ---- answers ----

int g_answers = -1;  // our standard output; the libraries get standard error instead
std::mutex g_answering;

void Answer(const Json& answer) {
  const std::scoped_lock lock(g_answering);
  const std::string line = ToText(answer) + "\n";
  std::size_t done = 0;
  while (done < line.size()) {
    const ssize_t written = write(g_answers, line.data() + done, line.size() - done);
    if (written < 0 && errno != EINTR) _exit(1);
    if (written > 0) done += static_cast<std::size_t>(written);
  }
}

// The last answer. Nothing is waited for: threads of the library may hang.
[[noreturn]] void EndWith(const std::string& error) {
  Answer(Json::Object{{"error", error}});
  _exit(1);
}

// What the library throws where nobody can catch it.
[[noreturn]] void OnTerminate() {
  std::string text = "the library ended";
  try {
    if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const std::exception& error) {
    text = error.what();
  } catch (...) {
    text = "an unknown exception";
  }
  EndWith(text);
}

// ---- where the trainer is ----

// Connects to an address and keeps the connection. -1: nobody is there, `reason` says why.
int Connect(const addrinfo& address, std::string& reason) {
  const int socket_fd = socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket_fd < 0) return -1;
  if (connect(socket_fd, address.ai_addr, address.ai_addrlen) == 0) return socket_fd;
  reason = FailErrno(errno, "connecting").error().message;
  close(socket_fd);
  return -1;
}

int ConnectAny(const std::string& host, std::uint64_t port, std::string& reason) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int fault = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (fault != 0) {
    reason = gai_strerror(fault);
    return -1;
  }
  int socket_fd = -1;
  for (const addrinfo* one = found; one != nullptr && socket_fd < 0; one = one->ai_next) {
    socket_fd = Connect(*one, reason);
  }
  freeaddrinfo(found);
  return socket_fd;
}

// The address of ours from which a connection goes out: that under which others reach us.
std::string OwnAddress(int socket_fd) {
  sockaddr_storage own{};
  socklen_t length = sizeof(own);
  std::array<char, NI_MAXHOST> text{};
  if (getsockname(socket_fd, reinterpret_cast<sockaddr*>(&own), &length) != 0) return "localhost";
  if (getnameinfo(reinterpret_cast<sockaddr*>(&own), length, text.data(), text.size(), nullptr, 0,
                  NI_NUMERICHOST) != 0) {
    return "localhost";
  }
  return text.data();
}

void WatchStore(int socket_fd) {
  pollfd polled = {.fd = socket_fd, .events = POLLRDHUP, .revents = 0};
  while (poll(&polled, 1, -1) < 0 && errno == EINTR) {
  }
  EndWith("the trainer has closed the group's store");
}

// The engine is gone, perhaps in the middle of a question.
void WatchEngine() {
  pollfd polled = {.fd = STDIN_FILENO, .events = 0, .revents = 0};  // POLLHUP comes unasked
  while (poll(&polled, 1, -1) < 0 && errno == EINTR) {
  }
  _exit(0);
}

// ---- the group ----

// What is asked of a question. A member that is missing or of another type: the engine is not ours.
std::string TextOf(const Json& question, const char* name) {
  const Json* found = question.Find(name);
  if (found == nullptr || found->string() == nullptr) EndWith(fmt::format("no {}", name));
  return *found->string();
}
std::uint64_t NumberOf(const Json& question, const char* name) {
  const Json* found = question.Find(name);
  if (found == nullptr || found->unsigned_integer() == nullptr) EndWith(fmt::format("no {}", name));
  return *found->unsigned_integer();
}

class Group {
 public:
  void Join(const Json& question);
  void Transfer(const Json& question);

 private:
  std::byte* Map(const std::string& path, std::uint64_t bytes);

  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  milliseconds timeout_{};
  std::string path_;  // of what is mapped
  dev_t device_ = 0;
  ino_t inode_ = 0;
  std::byte* memory_ = nullptr;
  std::size_t mapped_ = 0;
};

// All members must use addresses of one family, and torch's own take what their host's name stands for. So
// where the trainer is reached over IPv6 this one does as they do. GLOO_SOCKET_IFNAME counts as in torch.
auto MakeDevice(const std::string& own) {
  using c10d::ProcessGroupGloo;
  if (const char* interface = std::getenv("GLOO_SOCKET_IFNAME")) {
    const std::string names = interface;
    return ProcessGroupGloo::createDeviceForInterface(names.substr(0, names.find(',')));
  }
  return own.find(':') == std::string::npos ? ProcessGroupGloo::createDeviceForHostname(own)
                                            : ProcessGroupGloo::createDefaultDevice();
}

void Group::Join(const Json& question) {
  const std::string name = TextOf(question, "name");
  const std::string host = TextOf(question, "host");
  const std::uint64_t port = NumberOf(question, "port");
  const auto size = static_cast<std::int64_t>(NumberOf(question, "size"));
  const auto rank = static_cast<int>(NumberOf(question, "rank"));
  timeout_ = milliseconds(NumberOf(question, "timeout_ms"));
  const auto deadline = steady_clock::now() + timeout_;
  std::string own = host;
  if (rank != 0) {
    std::string reason;
    int watched = -1;
    while ((watched = ConnectAny(host, port, reason)) < 0) {
      if (steady_clock::now() > deadline) {
        EndWith(
            fmt::format("{} port {}: {} (tried for {} ms)", host, port, reason, timeout_.count()));
      }
      std::this_thread::sleep_for(milliseconds(20));
    }
    own = OwnAddress(watched);
    std::thread([watched] { WatchStore(watched); }).detach();
  }
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.isServer = rank == 0;
  options.numWorkers = static_cast<std::size_t>(size);
  options.waitWorkers = true;  // counts us in; whoever holds the store waits for all
  options.timeout = timeout_;
  auto store = c10::make_intrusive<c10d::TCPStore>(host, options);
  auto prefixed = c10::make_intrusive<c10d::PrefixStore>(
      "cpu/", c10::make_intrusive<c10d::PrefixStore>(
                  name + "/", c10::make_intrusive<c10d::PrefixStore>(name, store)));
  auto gloo = c10d::ProcessGroupGloo::Options::create(timeout_);
  gloo->devices = {MakeDevice(own)};
  group_ =
      c10::make_intrusive<c10d::ProcessGroupGloo>(prefixed, rank, static_cast<int>(size), gloo);
}

// The same file stays mapped from one transfer to the next.
std::byte* Group::Map(const std::string& path, std::uint64_t bytes) {
  const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) EndWith(FailErrno(errno, path).error().message);
  struct stat status{};
  if (fstat(descriptor, &status) != 0) EndWith(FailErrno(errno, path).error().message);
  const auto size = static_cast<std::size_t>(status.st_size);
  if (bytes > size) EndWith(fmt::format("{}: {} bytes, expected {}", path, size, bytes));
  if (memory_ == nullptr || device_ != status.st_dev || inode_ != status.st_ino ||
      mapped_ != size) {
    if (memory_ != nullptr) munmap(memory_, mapped_);
    void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (data == MAP_FAILED) EndWith(FailErrno(errno, path).error().message);
    memory_ = static_cast<std::byte*>(data);
    mapped_ = size;
    device_ = status.st_dev;
    inode_ = status.st_ino;
  }
  close(descriptor);
  return memory_;
}

void Group::Transfer(const Json& question) {
  const Json* list = question.Find("ranges");
  if (!group_ || list == nullptr || list->array() == nullptr) EndWith("no ranges");
  const Json::Array& ranges = *list->array();
  const auto number = [&](std::size_t i) {
    const std::uint64_t* value = i < ranges.size() ? ranges[i].unsigned_integer() : nullptr;
    if (value == nullptr) EndWith("ranges are pairs of numbers");
    return *value;
  };
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < ranges.size(); i += 2) {
    end = std::max(end, number(i) + number(i + 1));
  }
  std::byte* memory = Map(TextOf(question, "memory"), end);
  c10d::BroadcastOptions options;
  options.rootRank = static_cast<int>(NumberOf(question, "root"));
  std::vector<c10::intrusive_ptr<c10d::Work>> running;
  for (std::size_t i = 0; i < ranges.size(); i += 2) {
    std::vector<at::Tensor> tensors = {
        at::from_blob(memory + number(i), {static_cast<std::int64_t>(number(i + 1))}, at::kByte)};
    running.push_back(group_->broadcast(tensors, options));
  }
  for (const auto& work : running) work->wait();
}

void Serve() {
  Group group;
  std::string line;
  while (std::getline(std::cin, line)) {
    const Result<Json> question = syncline::base::ParseJson(line);
    if (!question) EndWith(question.error().message);
    if (TextOf(*question, "do") == "join") {
      group.Join(*question);
    } else {
      group.Transfer(*question);
    }
    Answer(Json::Object{{"ok", true}});
  }
}

}  // namespace

int main() {
  std::set_terminate(OnTerminate);
  signal(SIGPIPE, SIG_IGN);
  g_answers = dup(STDOUT_FILENO);
  dup2(STDERR_FILENO, STDOUT_FILENO);
  std::thread(WatchEngine).detach();
  try {
    Serve();
  } catch (const c10::Error& error) {
    EndWith(error.what_without_backtrace());
  } catch (const std::exception& error) {
    EndWith(error.what());
  }
  _exit(0);  // the engine has closed our input: nothing is waited for
}
