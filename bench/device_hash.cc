// How fast the weight checker hashes, for bench/checker.py. One thread.
//
//   device_hash_bench [--mib N] [--rounds N]
//
// Prints a JSON object: GB/s (the best of the rounds) of `ours`; of `scalar`, the definition in
// docs/format.md a word at a time; and of `read`, adding up the same bytes. The hashes must be the
// same.
#include "checker/device_hash.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "base/json.h"

namespace syncline::bench {
namespace {

using base::Json;
using Words = std::vector<std::uint32_t>;

constexpr std::uint32_t Finalise(std::uint32_t x) {
  x = (x ^ (x >> 16)) * 0x85ebca6b;
  x = (x ^ (x >> 13)) * 0xc2b2ae35;
  return x ^ (x >> 16);
}

constexpr std::uint32_t Turn(std::uint32_t x, int by) { return x << by | x >> (32 - by); }

// Of less than 2^32 words.
[[gnu::optimize("no-tree-vectorize")]] std::uint64_t ScalarHash(const Words& words) {
  const auto bytes = static_cast<std::uint32_t>(4 * words.size());
  std::uint64_t sum = 0;
  for (std::size_t tile = 0; tile < words.size(); tile += 8192) {
    std::uint32_t first = 0;
    std::uint32_t second = 0;
    for (std::size_t at = tile; at < std::min(words.size(), tile + 8192); ++at) {
      const auto i = static_cast<std::uint32_t>(at);
      first += Finalise(words[at] ^ ((i * 0x27d4eb2d + 0x243f6a88) ^ Turn(i, 15)));
      second += Finalise(words[at] ^ ((i * 0x165667b1 + 0x02c74ee7) ^ Turn(i, 13)));
    }
    sum += std::uint64_t{Finalise(first ^ bytes)} << 32 | Finalise(second ^ bytes);
  }
  sum = (sum ^ (sum >> 30)) * 0xbf58476d1ce4e5b9;
  sum = (sum ^ (sum >> 27)) * 0x94d049bb133111eb;
  return sum ^ (sum >> 31);
}

std::uint64_t OurHash(const Words& words) {
  const auto bytes = std::as_bytes(std::span(words));
  checker::DeviceHash hash(bytes.size());
  hash.Add(0, bytes);
  return hash.Value();
}

std::uint64_t Read(const Words& words) {
  std::uint32_t sum = 0;
  for (const std::uint32_t word : words) sum += word;
  return sum;
}

double BestRate(const Words& words, std::size_t rounds, std::uint64_t expected,
                const std::function<std::uint64_t(const Words&)>& work, bool& same) {
  double best = 0;
  for (std::size_t round = 0; round < rounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    same = work(words) == expected && same;
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    best = std::max(best, 4e-9 * static_cast<double>(words.size()) / took.count());
  }
  return best;
}

}  // namespace
}  // namespace syncline::bench

int main(int argc, char** argv) {
  using namespace syncline::bench;
  CLI::App app("Hashes words as the weight checker does.");
  std::size_t mib = 256;
  std::size_t rounds = 5;
  app.add_option("--mib", mib)->check(CLI::Range(1, 4096));
  app.add_option("--rounds", rounds)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  Words words(mib << 18);
  std::mt19937 random(1);  // NOLINT: the same every time
  for (std::uint32_t& word : words) word = static_cast<std::uint32_t>(random());
  bool same = true;
  const std::uint64_t hash = ScalarHash(words);
  const double ours = BestRate(words, rounds, hash, OurHash, same);
  const double scalar = BestRate(words, rounds, hash, ScalarHash, same);
  const double read = BestRate(words, rounds, Read(words), Read, same);
  if (!same) {
    fmt::print(stderr, "device_hash_bench: the hashes are not the same\n");
    return 1;
  }
  fmt::print("{}\n", syncline::base::ToText(
                         Json(Json::Object{{"ours", ours}, {"scalar", scalar}, {"read", read}})));
}
