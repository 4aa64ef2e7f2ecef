// How fast weights are updated in process, for bench/updates.py:
//
//   updates_bench DISK MEMORY [--rounds N]
//
// DISK and MEMORY are folders for checkpoints on a disk and on tmpfs. Two versions of a model come
// in turn, so that nothing is unchanged, to an engine that has nothing to do:
//   tensors   a session of messages of 128 MiB (safetensors), with and without a second arena
//   disk      a checkpoint with warm files from both folders, with and without a second arena; its
//             data aligned to 64 bytes, as we write it, and not, as most files of others are
//   session   a session of 18,000 tensors of 10 KiB in messages of 1,000: in 96 parameters, and in
//             a parameter each
// After each update, with the clock stopped, the live weights must be what was sent.
//
// All memory is warm: a round that is not counted comes first, and what is freed is not given back
// to the system. In each round the limit is measured too, on as many threads: memcpy of the
// messages into one block of memory as large as the weights, half a message a call; reading the same
// files into that block, 4 MiB a call; for sessions memcpy of one such block to another, 1 MiB a call.
//
// Prints a JSON list, one object a case: `line`, `of`, `undo`, `tensors`, `bytes`, and lists of the
// seconds of the rounds: `ours` and `limit`; of sessions also `begin`, `messages`, `end`.
#include <fmt/core.h>
#include <malloc.h>
#include <sys/mman.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>

#include "base/json.h"
#include "base/thread_pool.h"
#include "served.h"
#include "update/weights.h"
#include "update_cases.h"

namespace syncline::bench {
namespace {

using base::Json;
using base::Result;
using base::Status;

constexpr std::uint64_t kMessageBytes = 128 << 20;
constexpr std::size_t kMessageTensors = 1000;
constexpr std::size_t kReadBytes = 4 << 20;
constexpr std::size_t kCopyBytes = 1 << 20;
constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};

// Memory that asks for huge pages, and has them all.
base::Mapping MakeBlock(std::uint64_t bytes) {
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();  // NOLINT: a macro of the system
  (void)madvise(memory, bytes, MADV_HUGEPAGE);
  std::memset(memory, 1, bytes);
  return {static_cast<std::byte*>(memory), bytes};
}

struct Piece {
  std::byte* to;
  const std::byte* from;
  std::size_t bytes;
};

void Copy(const std::vector<Piece>& pieces, base::ThreadPool& pool) {
  (void)pool.ParallelFor(pieces.size(), [&](std::size_t i) -> Status {
    std::memcpy(pieces[i].to, pieces[i].from, pieces[i].bytes);
    return {};
  });
}

struct Seconds {
  double begin = 0;
  double messages = 0;
  double end = 0;
  double all() const { return begin + messages + end; }
};

// One session with all of the weights.
Result<Seconds> Send(Served& served, const Weights& weights) {
  std::vector<update::TensorUpdate> updates;
  updates.reserve(weights.messages.size());
  for (const std::vector<std::byte>& message : weights.messages) {
    updates.push_back({.payloads = {message}, .format = payload::Format::kSafetensors});
  }
  const auto start = Clock::now();
  SYNCLINE_TRY(WaitFor<Status>([&](auto done) { served.weights().Begin({}, done); }));
  const auto begun = Clock::now();
  for (update::TensorUpdate& update : updates) {
    SYNCLINE_TRY(WaitFor<Result<update::UpdateReport>>(
        [&](auto done) { served.weights().FromTensors(std::move(update), done); }));
  }
  const auto sent = Clock::now();
  SYNCLINE_ASSIGN(
      const update::UpdateReport report,
      WaitFor<Result<update::UpdateReport>>([&](auto done) { served.weights().End({}, done); }));
  const auto ended = Clock::now();
  SYNCLINE_TRY(served.CheckNew(report, weights));
  const auto seconds = [](Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
  };
  return Seconds{seconds(start, begun), seconds(begun, sent), seconds(sent, ended)};
}

// Seconds of a checkpoint with these weights.
Result<double> Load(Served& served, const std::string& path, const Weights& weights) {
  const auto start = Clock::now();
  SYNCLINE_ASSIGN(const update::UpdateReport report,
                  WaitFor<Result<update::UpdateReport>>([&](auto done) {
                    served.weights().FromDisk({.path = path, .weight_version = {}}, done);
                  }));
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  SYNCLINE_TRY(served.CheckNew(report, weights));
  return seconds;
}

Json ListOf(const std::vector<double>& seconds) {
  return Json(Json::Array(seconds.begin(), seconds.end()));
}

// What all cases share.
struct Bench {
  std::size_t rounds;
  std::string disk;
  std::string memory;
  base::ThreadPool pool;
  Json::Array cases = {};

  void Add(const std::string& line, const std::string& of, bool undo, const Weights& weights,
           const std::vector<std::pair<std::string, std::vector<double>>>& lists) {
    Json::Object found{{"line", line},
                       {"of", of},
                       {"undo", undo},
                       {"tensors", std::uint64_t{weights.tensors.size()}},
                       {"bytes", weights.bytes}};
    for (const auto& [name, seconds] : lists) found.emplace_back(name, ListOf(seconds));
    cases.emplace_back(std::move(found));
  }
};

// By round; the first is to warm up.
template <typename Round>
Status RunRounds(std::size_t rounds, const Round& round) {
  for (std::size_t i = 0; i <= rounds; ++i) SYNCLINE_TRY(round(i, i > 0));
  return {};
}

Status MeasureTensors(Bench& bench, const std::vector<Weights>& versions, base::Mapping& block,
                      bool undo) {
  SYNCLINE_ASSIGN(layout::Plan plan, LlamaPlan());
  SYNCLINE_ASSIGN(const auto served, Served::Start(std::move(plan), undo ? kUnlimited : 0));
  std::vector<double> ours;
  std::vector<double> limit;
  SYNCLINE_TRY(RunRounds(bench.rounds, [&](std::size_t i, bool counts) -> Status {
    const Weights& weights = versions[i % 2];
    SYNCLINE_ASSIGN(const Seconds seconds, Send(*served, weights));
    std::vector<Piece> pieces;
    std::byte* to = block.mutable_bytes().data();
    for (const std::vector<std::byte>& message : weights.messages) {
      const std::size_t half = message.size() / 2;
      pieces.push_back({to, message.data(), half});
      pieces.push_back({to + half, message.data() + half, message.size() - half});
      to += message.size();
    }
    const double copied = SecondsOf([&] { Copy(pieces, bench.pool); });
    if (!counts) return {};
    ours.push_back(seconds.all());
    limit.push_back(copied);
    return {};
  }));
  bench.Add("tensors", "messages", undo, versions[0], {{"ours", ours}, {"limit", limit}});
  return {};
}

// Reads all files of a checkpoint into the block.
Status ReadFiles(const std::string& directory, base::Mapping& block, base::ThreadPool& pool) {
  base::FileSystem& files = base::FileSystem::Posix();
  SYNCLINE_ASSIGN(const std::vector<std::string> names, files.List(directory));
  std::byte* to = block.mutable_bytes().data();
  for (const std::string& name : names) {
    SYNCLINE_ASSIGN(const auto file,
                    files.Open(base::JoinPath(directory, name), base::OpenMode::kRead));
    SYNCLINE_ASSIGN(const base::FileInfo info, file->Stat());
    const std::size_t pieces = (info.size + kReadBytes - 1) / kReadBytes;
    SYNCLINE_TRY(pool.ParallelFor(pieces, [&](std::size_t i) {
      const std::uint64_t at = i * kReadBytes;
      const std::size_t bytes = std::min<std::uint64_t>(kReadBytes, info.size - at);
      return base::ReadExactly(*file, {to + at, bytes}, at);
    }));
    to += info.size;
  }
  return {};
}

// Where a checkpoint is, and which version of the weights it is; no two in a row are the same.
struct Source {
  std::string of;
  std::string path;
  std::size_t version;
  bool aligned;
};

std::vector<Source> SourcesOf(const Bench& bench) {
  return {{"disk", base::JoinPath(bench.disk, "aligned"), 0, true},
          {"tmpfs", base::JoinPath(bench.memory, "aligned"), 1, true},
          {"disk, as others write", base::JoinPath(bench.disk, "others"), 0, false},
          {"tmpfs, as others write", base::JoinPath(bench.memory, "others"), 1, false}};
}

Status MeasureDisk(Bench& bench, const std::vector<Weights>& versions, base::Mapping& block,
                   bool undo) {
  SYNCLINE_ASSIGN(layout::Plan plan, LlamaPlan());
  SYNCLINE_ASSIGN(const auto served, Served::Start(std::move(plan), undo ? kUnlimited : 0));
  const std::vector<Source> sources = SourcesOf(bench);
  std::vector<std::vector<double>> ours(sources.size());
  std::vector<std::vector<double>> limit(sources.size());
  SYNCLINE_TRY(RunRounds(bench.rounds, [&](std::size_t, bool counts) -> Status {
    for (std::size_t i = 0; i < sources.size(); ++i) {
      SYNCLINE_ASSIGN(const double loaded,
                      Load(*served, sources[i].path, versions[sources[i].version]));
      Status status;
      const double read =
          SecondsOf([&] { status = ReadFiles(sources[i].path, block, bench.pool); });
      SYNCLINE_TRY(status);
      if (!counts) continue;
      ours[i].push_back(loaded);
      limit[i].push_back(read);
    }
    return {};
  }));
  for (std::size_t i = 0; i < sources.size(); ++i) {
    bench.Add("disk", sources[i].of, undo, versions[0], {{"ours", ours[i]}, {"limit", limit[i]}});
  }
  return {};
}

Status MeasureSession(Bench& bench, bool apart, bool undo) {
  SYNCLINE_ASSIGN(layout::Plan plan, ExpertsPlan(apart));
  std::vector<Weights> versions;
  for (const std::uint64_t seed : {1, 2}) {
    SYNCLINE_ASSIGN(versions.emplace_back(),
                    MakeWeights(plan, seed, kMessageBytes, kMessageTensors));
  }
  const std::uint64_t bytes = versions[0].bytes;
  SYNCLINE_ASSIGN(const auto served, Served::Start(std::move(plan), undo ? kUnlimited : 0));
  base::Mapping from = MakeBlock(bytes);
  base::Mapping to = MakeBlock(bytes);
  std::vector<Piece> pieces;
  for (std::size_t at = 0; at < bytes; at += kCopyBytes) {
    pieces.push_back({to.mutable_bytes().data() + at, from.bytes().data() + at,
                      std::min<std::size_t>(kCopyBytes, bytes - at)});
  }
  std::vector<double> begin;
  std::vector<double> messages;
  std::vector<double> end;
  std::vector<double> ours;
  std::vector<double> limit;
  SYNCLINE_TRY(RunRounds(bench.rounds, [&](std::size_t i, bool counts) -> Status {
    SYNCLINE_ASSIGN(const Seconds seconds, Send(*served, versions[i % 2]));
    const double copied = SecondsOf([&] { Copy(pieces, bench.pool); });
    if (!counts) return {};
    begin.push_back(seconds.begin);
    messages.push_back(seconds.messages);
    end.push_back(seconds.end);
    ours.push_back(seconds.all());
    limit.push_back(copied);
    return {};
  }));
  bench.Add(
      "session", apart ? "apart" : "fused", undo, versions[0],
      {{"ours", ours}, {"limit", limit}, {"begin", begin}, {"messages", messages}, {"end", end}});
  return {};
}

Status MeasureAll(Bench& bench, const std::string& only) {
  const auto wants = [&](std::string_view line) { return only.empty() || only == line; };
  if (wants("tensors") || wants("disk")) {
    SYNCLINE_ASSIGN(const layout::Plan plan, LlamaPlan());
    std::vector<Weights> versions;
    for (const std::uint64_t seed : {1, 2}) {
      SYNCLINE_ASSIGN(versions.emplace_back(),
                      MakeWeights(plan, seed, kMessageBytes, kMessageTensors));
    }
    // With the headers of the messages and files.
    base::Mapping block = MakeBlock(versions[0].bytes + (versions[0].messages.size() << 20));
    for (const bool undo : {true, false}) {
      if (wants("tensors")) SYNCLINE_TRY(MeasureTensors(bench, versions, block, undo));
    }
    if (wants("disk")) {
      for (const Source& source : SourcesOf(bench)) {
        SYNCLINE_TRY(WriteCheckpoint(plan, versions[source.version], source.path, source.aligned));
      }
      for (const bool undo : {true, false}) {
        SYNCLINE_TRY(MeasureDisk(bench, versions, block, undo));
      }
    }
  }
  if (!wants("session")) return {};
  for (const bool apart : {false, true}) {
    for (const bool undo : {true, false}) SYNCLINE_TRY(MeasureSession(bench, apart, undo));
  }
  return {};
}

}  // namespace
}  // namespace syncline::bench

int main(int argc, char** argv) {
  using namespace syncline;
  // What is freed stays warm.
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
  CLI::App app("Updates the weights of an idle engine in process.");
  bench::Bench bench{.rounds = 7, .disk = "", .memory = "", .pool = base::ThreadPool()};
  std::string only;
  app.add_option("disk", bench.disk)->required();
  app.add_option("memory", bench.memory)->required();
  app.add_option("--rounds", bench.rounds)->check(CLI::PositiveNumber);
  app.add_option("--only", only)->check(CLI::IsMember({"tensors", "disk", "session"}));
  CLI11_PARSE(app, argc, argv);
  if (const base::Status status = bench::MeasureAll(bench, only); !status) {
    fmt::print(stderr, "updates_bench: {}\n", status.error().message);
    return Info(status.error().code).exit_code;
  }
  fmt::print("{}\n", base::ToText(base::Json(std::move(bench.cases))));
}
