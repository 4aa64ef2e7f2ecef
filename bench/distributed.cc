// How fast tensors that a trainer broadcasts become live, for bench/distributed.py:
//
//   distributed_bench [--rounds N]
//
// Two versions of a model come in turn, in sessions of buckets, over a group of two members on one
// host: a trainer's, and the engine's. Beside each, "bare": the same broadcasts over a group of the same
// kind, received into one block of memory by nobody who wants them. Plain buckets have a broadcast for
// each tensor, flattened ones one for all. After each update, with the clock stopped, the live weights
// must be what was sent. All memory is warm: a round that is not counted comes first.
//
// Prints a JSON list, one object a case: `of`, `undo`, `flattened`, `tensors`, `bytes`, and lists of the
// seconds of the rounds: `ours` and `bare`.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstring>
#include <future>
#include <memory>
#include <vector>

#include "base/arena.h"
#include "base/json.h"
#include "served.h"
#include "transport/free_port.h"
#include "transport/process_group.h"
#include "update/weights.h"
#include "update_cases.h"

namespace syncline::bench {
namespace {

using base::Json;
using base::Result;
using base::Status;
using transport::GroupAddress;
using transport::ProcessGroup;

constexpr std::chrono::milliseconds kTimeout(60000);

GroupAddress AddressOf(std::uint32_t rank, std::uint16_t port) {
  return {.name = "bench", .host = "127.0.0.1", .port = port, .rank = rank, .size = 2};
}

struct Bucket {
  std::vector<payload::NamedTensor> announced;
  std::vector<ProcessGroup::Range> ranges;  // of the trainer's memory, as they are broadcast
  std::vector<std::uint64_t> sizes;
};

// A version of the weights in memory that a helper can send from.
struct Sent {
  base::Arena memory;
  const Weights& weights;
};

Result<Sent> MakeSent(const Weights& weights) {
  SYNCLINE_ASSIGN(base::Arena memory, base::Arena::Create("bench-trainer", weights.bytes));
  std::byte* to = memory.bytes().data();
  for (const base::ByteSpan bytes : weights.tensors) {
    std::memcpy(to, bytes.data(), bytes.size());
    to += bytes.size();
  }
  return Sent{std::move(memory), weights};
}

std::vector<Bucket> MakeBuckets(const layout::Plan& plan, const Weights& weights,
                                std::uint64_t bucket_bytes, std::size_t bucket_tensors,
                                bool flattened) {
  std::vector<Bucket> buckets(1);
  std::uint64_t in_bucket = 0;
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < weights.tensors.size(); ++i) {
    const std::uint64_t bytes = weights.tensors[i].size();
    if (in_bucket >= bucket_bytes || buckets.back().announced.size() >= bucket_tensors) {
      buckets.emplace_back();
      in_bucket = 0;
    }
    Bucket& bucket = buckets.back();
    const layout::TensorSpec& spec = plan.tensors()[i];
    bucket.announced.push_back(
        {.name = spec.name, .dtype = spec.dtype, .shape = spec.shape, .bytes = {}});
    if (flattened && !bucket.ranges.empty()) {
      bucket.ranges[0].bytes += bytes;
      bucket.sizes[0] += bytes;
    } else {
      bucket.ranges.push_back({at, bytes});
      bucket.sizes.push_back(bytes);
    }
    in_bucket += bytes;
    at += bytes;
  }
  return buckets;
}

// A trainer's member and another one that joins by itself.
Result<std::unique_ptr<ProcessGroup>> JoinWith(std::uint16_t port,
                                               const std::function<Status()>& other) {
  std::future<Status> joining = std::async(std::launch::async, other);
  Result<std::unique_ptr<ProcessGroup>> trainer =
      ProcessGroup::Join(AddressOf(0, port), kTimeout, nullptr);
  SYNCLINE_TRY(joining.get());
  return trainer;
}

class Pairs {
 public:
  // With the engine in one group, and a member of nobody's in the other.
  static Result<std::unique_ptr<Pairs>> Make(Served& served, std::uint64_t most_bytes) {
    auto pairs = std::unique_ptr<Pairs>(new Pairs());
    const std::uint16_t port = transport::FreePort();
    SYNCLINE_ASSIGN(pairs->trainer_, JoinWith(port, [&] {
                      return WaitFor<Status>([&](auto done) {
                        served.weights().JoinGroup({.address = AddressOf(0, port)}, done);
                      });
                    }));
    const std::uint16_t bare = transport::FreePort();
    SYNCLINE_ASSIGN(pairs->bare_trainer_, JoinWith(bare, [&]() -> Status {
                      SYNCLINE_ASSIGN(pairs->bare_,
                                      ProcessGroup::Join(AddressOf(1, bare), kTimeout, nullptr));
                      return {};
                    }));
    SYNCLINE_ASSIGN(base::Arena memory, base::Arena::Create("bench-bare", most_bytes));
    pairs->memory_ = std::make_unique<base::Arena>(std::move(memory));
    return pairs;
  }

  Result<double> Bare(const Sent& sent, const std::vector<Bucket>& buckets) {
    const auto start = Clock::now();
    for (const Bucket& bucket : buckets) {
      std::future<Status> sending = Send(*bare_trainer_, sent, bucket);
      SYNCLINE_TRY(bare_->Receive(*memory_, bucket.sizes, nullptr));
      SYNCLINE_TRY(sending.get());
    }
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  Result<double> Update(Served& served, const Sent& sent, const std::vector<Bucket>& buckets,
                        bool flattened) {
    const auto start = Clock::now();
    SYNCLINE_TRY(WaitFor<Status>([&](auto done) { served.weights().Begin({}, done); }));
    for (const Bucket& bucket : buckets) {
      std::future<Status> sending = Send(*trainer_, sent, bucket);
      SYNCLINE_TRY(WaitFor<Result<update::UpdateReport>>([&](auto done) {
        served.weights().FromGroup({.tensors = {"bench", bucket.announced, flattened}}, done);
      }));
      SYNCLINE_TRY(sending.get());
    }
    SYNCLINE_ASSIGN(
        const update::UpdateReport report,
        WaitFor<Result<update::UpdateReport>>([&](auto done) { served.weights().End({}, done); }));
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    SYNCLINE_TRY(served.CheckNew(report, sent.weights));
    return seconds;
  }

 private:
  Pairs() = default;
  static std::future<Status> Send(ProcessGroup& trainer, const Sent& sent, const Bucket& bucket) {
    return std::async(std::launch::async, [&] {
      return trainer.Send(sent.memory.descriptor(), bucket.ranges, nullptr);
    });
  }

  std::unique_ptr<ProcessGroup> trainer_;
  std::unique_ptr<ProcessGroup> bare_trainer_;
  std::unique_ptr<ProcessGroup> bare_;
  std::unique_ptr<base::Arena> memory_;
};

struct Case {
  const char* of;
  bool experts;
  bool undo;
  bool flattened;
};

Result<Json> Measure(const Case& wanted, std::size_t rounds) {
  constexpr std::uint64_t kBucketBytes = 128 << 20;
  const std::size_t most_tensors = wanted.experts ? 1000 : SIZE_MAX;
  SYNCLINE_ASSIGN(layout::Plan plan, wanted.experts ? ExpertsPlan(/*apart=*/false) : LlamaPlan());
  std::vector<Weights> versions;
  for (const std::uint64_t seed : {1, 2}) {
    SYNCLINE_ASSIGN(versions.emplace_back(), MakeWeights(plan, seed, kBucketBytes, most_tensors));
  }
  const std::vector<Bucket> buckets =
      MakeBuckets(plan, versions[0], kBucketBytes, most_tensors, wanted.flattened);
  std::vector<Sent> sent;
  for (const Weights& weights : versions) {
    SYNCLINE_ASSIGN(Sent one, MakeSent(weights));
    sent.push_back(std::move(one));
  }
  SYNCLINE_ASSIGN(const auto served,
                  Served::Start(std::move(plan), wanted.undo ? ~std::uint64_t{0} : 0));
  SYNCLINE_ASSIGN(const auto pairs, Pairs::Make(*served, versions[0].bytes));
  Json::Array ours;
  Json::Array bare;
  for (std::size_t i = 0; i <= rounds; ++i) {
    SYNCLINE_ASSIGN(const double updated,
                    pairs->Update(*served, sent[i % 2], buckets, wanted.flattened));
    SYNCLINE_ASSIGN(const double alone, pairs->Bare(sent[i % 2], buckets));
    if (i == 0) continue;  // to warm up
    ours.emplace_back(updated);
    bare.emplace_back(alone);
  }
  return Json(Json::Object{{"of", wanted.of},
                           {"undo", wanted.undo},
                           {"flattened", wanted.flattened},
                           {"tensors", std::uint64_t{versions[0].tensors.size()}},
                           {"bytes", versions[0].bytes},
                           {"ours", std::move(ours)},
                           {"bare", std::move(bare)}});
}

int Main(int argc, char** argv) {
  CLI::App app("updates over process groups");
  std::size_t rounds = 5;
  app.add_option("--rounds", rounds)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  Json::Array cases;
  for (const bool undo : {false, true}) {
    for (const Case& wanted :
         {Case{"a Llama", false, undo, false}, Case{"a Llama", false, undo, true},
          Case{"18,000 tensors", true, undo, false}, Case{"18,000 tensors", true, undo, true}}) {
      Result<Json> measured = Measure(wanted, rounds);
      if (!measured) {
        fmt::print(stderr, "distributed_bench: {}\n", measured.error().message);
        return Info(measured.error().code).exit_code;
      }
      cases.push_back(*std::move(measured));
    }
  }
  fmt::print("{}\n", ToText(Json(std::move(cases))));
  return 0;
}

}  // namespace
}  // namespace syncline::bench

int main(int argc, char** argv) { return syncline::bench::Main(argc, argv); }
