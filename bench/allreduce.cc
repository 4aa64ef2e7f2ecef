// Sums over two ranks, which are threads with connections over loopback, for bench/allreduce.py.
//
//   allreduce_bench [--rounds N]
//
// Prints a JSON list, one object a size: `floats` of a sum, and medians in microseconds: `ours` over
// the mesh, `gloo` over libtorch's Gloo, `trip` for as many bytes one way over a bare connection (half
// a ping-pong). Every sum of a round is checked.
#include <ATen/ops/empty.h>
#include <fmt/core.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/json.h"
#include "gloo_collectives.h"
#include "model/collectives.h"
#include "model/mesh_collectives.h"
#include "ranks/mesh.h"
#include "ranks/socket.h"

namespace syncline::bench {
namespace {

using base::Json;
using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kRanks = 2;

void Require(const base::Status& status) {
  if (status) return;
  fmt::print(stderr, "allreduce_bench: {}\n", status.error().message);
  std::exit(1);
}
template <typename T>
T Require(base::Result<T> result) {
  if (!result) Require(base::Status(std::unexpected(result.error())));
  return *std::move(result);
}

void RunRanks(const std::function<void(std::uint32_t)>& body) {
  std::thread other([&] { body(1); });
  body(0);
  other.join();
}

// Median of the rounds of rank 0, in microseconds, after as many to warm up.
double Median(int rounds, const std::function<void()>& round) {
  std::vector<double> took;
  for (int i = 0; i < 2 * rounds; ++i) {
    const Clock::time_point begin = Clock::now();
    round();
    took.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  }
  took.erase(took.begin(), took.begin() + rounds);
  std::ranges::nth_element(took, took.begin() + rounds / 2);
  return took[static_cast<std::size_t>(rounds) / 2];
}

double MeasureSum(model::Collectives& collectives, std::uint32_t rank, std::int64_t floats,
                  int rounds) {
  at::Tensor x = at::empty({floats}, at::kFloat);
  auto* values = x.mutable_data_ptr<float>();
  return Median(rounds, [&] {
    std::fill(values, values + floats, 1.0F + static_cast<float>(rank));
    collectives.Sum(x);
    if (values[0] != 3.0F || values[floats - 1] != 3.0F) std::abort();
  });
}

double MeasureMesh(std::int64_t floats, int rounds) {
  std::vector<std::unique_ptr<ranks::Mesh>> meshes;
  std::vector<ranks::Address> addresses;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    meshes.push_back(Require(ranks::Mesh::Listen(rank, kRanks, "127.0.0.1", "")));
    addresses.push_back(meshes.back()->address());
  }
  double median = 0;
  RunRanks([&](std::uint32_t rank) {
    Require(meshes[rank]->Connect(addresses, Clock::now() + std::chrono::minutes(1)));
    const auto collectives = model::MakeMeshCollectives(*meshes[rank], rank, kRanks);
    const double own = MeasureSum(*collectives, rank, floats, rounds);
    if (rank == 0) median = own;
  });
  return median;
}

double MeasureGloo(std::int64_t floats, int rounds) {
  const auto meeting = Require(GlooMeeting::Open());
  double median = 0;
  RunRanks([&](std::uint32_t rank) {
    const auto collectives = Require(JoinGloo({.rank = rank,
                                               .size = kRanks,
                                               .meeting_host = "127.0.0.1",
                                               .meeting_port = meeting->port(),
                                               .own_host = "127.0.0.1"}));
    const double own = MeasureSum(*collectives, rank, floats, rounds);
    if (rank == 0) median = own;
  });
  return median;
}

// Half a ping-pong of that many bytes over a connection that blocks.
double MeasureTrip(std::size_t bytes, int rounds) {
  const Clock::time_point soon = Clock::now() + std::chrono::minutes(1);
  const auto listener = Require(ranks::Listener::Open({"127.0.0.1", 0}, soon, nullptr));
  ranks::Descriptor near = Require(ranks::Connect({"127.0.0.1", listener.port()}, soon, nullptr));
  ranks::Descriptor far = Require(ranks::Accept(listener.sockets()[0])).socket;
  double median = 0;
  RunRanks([&](std::uint32_t rank) {
    const ranks::Descriptor& socket = rank == 0 ? near : far;
    const Clock::time_point deadline = Clock::now() + std::chrono::minutes(5);
    std::vector<std::byte> buffer(bytes);
    const auto send = [&] { Require(ranks::WriteAll(socket, buffer, deadline, nullptr)); };
    const auto receive = [&] { Require(ranks::ReadAll(socket, buffer, deadline, nullptr)); };
    const double own = Median(rounds, [&] {
      if (rank == 0) send();
      receive();
      if (rank == 1) send();
    });
    if (rank == 0) median = own / 2;
  });
  return median;
}

int Run(int argc, char** argv) {
  CLI::App app("Sums over two ranks");
  int rounds = 400;
  app.add_option("--rounds", rounds)->check(CLI::Range(1, 1'000'000));
  CLI11_PARSE(app, argc, argv);
  Json::Array lines;
  // A row of SmolLM2's residual stream, of a large model's, 32 rows, and a piece of a prompt.
  for (const std::int64_t floats : {576, 7168, 32 * 576, 512 * 576}) {
    const auto bytes = static_cast<std::size_t>(floats) * sizeof(float);
    const int some = floats > 100'000 ? std::max(1, rounds / 10) : rounds;
    lines.emplace_back(Json::Object{{"floats", static_cast<std::uint64_t>(floats)},
                                    {"ours", MeasureMesh(floats, some)},
                                    {"gloo", MeasureGloo(floats, some)},
                                    {"trip", MeasureTrip(bytes, some)}});
  }
  fmt::print("{}\n", ToText(Json(std::move(lines))));
  return 0;
}

}  // namespace
}  // namespace syncline::bench

int main(int argc, char** argv) { return syncline::bench::Run(argc, argv); }
