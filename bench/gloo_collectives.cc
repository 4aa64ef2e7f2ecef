// The one file that sees Gloo: its headers are not in the torch wheel, and those of the system are
// older than the library inside it.
#include "gloo_collectives.h"

#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>
#include <fmt/core.h>

#include <exception>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "model/collectives.h"

namespace syncline::bench {
namespace {

using base::Code;

class Meeting : public GlooMeeting {
 public:
  Meeting() {
    c10d::TCPStoreOptions options;
    options.port = 0;
    options.isServer = true;
    options.waitWorkers = false;
    store_ = c10::make_intrusive<c10d::TCPStore>("localhost", options);
  }
  std::uint16_t port() const override { return store_->getPort(); }

 private:
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

class GlooCollectives : public model::Collectives {
 public:
  explicit GlooCollectives(const GlooOptions& options) : options_(options) {
    c10d::TCPStoreOptions client;
    client.port = options.meeting_port;
    client.isServer = false;
    client.waitWorkers = false;
    client.timeout = options.timeout;
    auto store = c10::make_intrusive<c10d::TCPStore>(options.meeting_host, client);
    auto gloo = c10d::ProcessGroupGloo::Options::create(options.timeout);
    gloo->devices = {c10d::ProcessGroupGloo::createDeviceForHostname(options.own_host)};
    gloo->threads = 1;
    group_ = c10::make_intrusive<c10d::ProcessGroupGloo>(
        c10::make_intrusive<c10d::PrefixStore>("syncline", store), static_cast<int>(options.rank),
        static_cast<int>(options.size), gloo);
  }

  void Sum(at::Tensor& x) override {
    if (x.numel() == 0) return;
    std::vector<at::Tensor> tensors = {x};
    group_->allreduce(tensors)->wait();
  }

  std::vector<at::Tensor> Gather(const at::Tensor& x) override {
    std::vector<std::vector<at::Tensor>> outputs;
    std::vector<at::Tensor> all;
    if (options_.rank == 0) {
      for (std::uint32_t i = 0; i < options_.size; ++i) all.push_back(at::empty_like(x));
      outputs = {all};
    }
    if (x.numel() == 0) return all;
    std::vector<at::Tensor> inputs = {x};
    group_->gather(outputs, inputs, {})->wait();
    return all;
  }

 private:
  GlooOptions options_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
};

// What a failed call says, without the library's stack trace.
base::Error Explain(const std::string& context) {
  try {
    throw;
  } catch (const c10::Error& error) {
    return {Code::kUnavailable, fmt::format("{}: {}", context, error.what_without_backtrace())};
  } catch (const std::exception& error) {
    return {Code::kUnavailable, fmt::format("{}: {}", context, error.what())};
  }
}

}  // namespace

base::Result<std::unique_ptr<GlooMeeting>> GlooMeeting::Open() {
  try {
    return std::make_unique<Meeting>();
  } catch (...) {
    return std::unexpected(Explain("meeting place of Gloo"));
  }
}

base::Result<std::unique_ptr<model::Collectives>> JoinGloo(const GlooOptions& options) {
  try {
    return std::make_unique<GlooCollectives>(options);
  } catch (...) {
    return std::unexpected(
        Explain(fmt::format("rank {} cannot join Gloo at {}:{} as {}", options.rank,
                            options.meeting_host, options.meeting_port, options.own_host)));
  }
}

}  // namespace syncline::bench
