#include "transport/process_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "transport/helper_process.h"

namespace syncline::transport {
namespace {

using base::Code;
using base::Fail;
using base::Json;
using base::Result;
using base::Status;
using std::chrono::milliseconds;

// What the helper may take beyond its own time-outs.
constexpr milliseconds kGrace(10000);

class Member : public ProcessGroup {
 public:
  Member(std::unique_ptr<HelperProcess> helper, milliseconds timeout)
      : helper_(std::move(helper)), timeout_(timeout) {}

  Status Receive(const base::Arena& memory, std::span<const std::uint64_t> sizes,
                 const base::CancelToken* cancel) override {
    std::vector<Range> ranges;
    std::uint64_t end = 0;
    for (const std::uint64_t bytes : sizes) {
      ranges.push_back({end, bytes});
      end += bytes;
    }
    if (end > memory.bytes().size()) {
      return Fail(Code::kInternal,
                  fmt::format("{} bytes for a buffer of {}", end, memory.bytes().size()));
    }
    return Transfer(memory.descriptor(), ranges, cancel);
  }

  Status Send(int descriptor, std::span<const Range> ranges,
              const base::CancelToken* cancel) override {
    return Transfer(descriptor, ranges, cancel);
  }

  void Leave(const std::string& reason) override { helper_->Kill(reason); }

 private:
  Status Transfer(int descriptor, std::span<const Range> ranges, const base::CancelToken* cancel) {
    Json::Array places;
    places.reserve(ranges.size() * 2);
    for (const Range& range : ranges) {
      places.emplace_back(range.offset);
      places.emplace_back(range.bytes);
    }
    const Result<Json> done = helper_->Ask(
        Json::Object{
            {"do", "broadcast"}, {"memory", SharedName(descriptor)}, {"ranges", std::move(places)}},
        timeout_ + kGrace, cancel);
    if (done) return {};
    helper_->Kill(done.error().message);
    return std::unexpected(done.error());
  }

  std::unique_ptr<HelperProcess> helper_;
  const milliseconds timeout_;
};

Status Check(const GroupAddress& address) {
  const auto bad = [](std::string text) { return Fail(Code::kInvalidArgument, std::move(text)); };
  if (address.name.empty()) return bad("group_name is empty");
  if (address.host.empty()) return bad("master_address is empty");
  if (address.port == 0) return bad("master_port is 0");
  if (address.rank >= address.size) {
    return bad(fmt::format("rank {} is not below world_size {}", address.rank, address.size));
  }
  if (address.backend == "gloo") return {};
  return bad(
      fmt::format("backend {}: this engine computes on the CPU, and joins groups of backend gloo",
                  base::ToText(Json(std::string_view(address.backend).substr(0, 40)))));
}

std::string Unbracketed(const std::string& host) {
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  return bracketed ? host.substr(1, host.size() - 2) : host;
}

}  // namespace

Result<std::unique_ptr<ProcessGroup>> ProcessGroup::Join(const GroupAddress& address,
                                                         milliseconds timeout,
                                                         const base::CancelToken* cancel) {
  SYNCLINE_TRY(Check(address));
  SYNCLINE_ASSIGN(const std::string program, HelperPath("syncline-group"));
  SYNCLINE_ASSIGN(std::unique_ptr<HelperProcess> helper,
                  HelperProcess::Start({program}, fmt::format("group {}", address.name)));
  const Json join = Json::Object{{"do", "join"},
                                 {"name", address.name},
                                 {"host", Unbracketed(address.host)},
                                 {"port", std::uint64_t{address.port}},
                                 {"rank", std::uint64_t{address.rank}},
                                 {"size", std::uint64_t{address.size}},
                                 {"timeout_ms", static_cast<std::uint64_t>(timeout.count())}};
  const Result<Json> joined = helper->Ask(join, timeout + kGrace, cancel);
  if (!joined) return std::unexpected(joined.error());
  return std::make_unique<Member>(std::move(helper), timeout);
}

}  // namespace syncline::transport
