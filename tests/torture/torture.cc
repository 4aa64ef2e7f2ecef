// Plays many small stories in which everything goes wrong that can, and checks that each ends well.
//
//   torture [--cases N] [--seed S]     N cases, each of a kind chosen by chance
//           [--kind PART]              only kinds whose name contains PART
//           [--strict]                 weaknesses that are known and open are failures, too
//   torture --case SEED [--verbose]    one case again
//
// The last line is "N passed, N failed"; the exit status is 0 if nothing failed.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "torture/cases.h"

namespace syncline::torture {
namespace {

struct Options {
  std::uint64_t cases = 2000;
  std::uint64_t seed = 1;
  std::uint64_t one = 0;  // the seed of a single case
  std::string kind;
  bool list = false;
  Settings settings;
};

constexpr unsigned kCaseSeconds = 120;
volatile std::uint64_t playing = 0;

// A crash or a hang says which case it was; only calls that a signal handler may make.
void OnSignal(int number) {
  std::array<char, 80> text;
  constexpr std::string_view kStart = "ended by a signal: torture --case ";
  char* end = std::copy(kStart.begin(), kStart.end(), text.data());
  std::array<char, 20> digits;
  std::size_t count = 0;
  std::uint64_t seed = playing;
  do {
    digits[count++] = static_cast<char>('0' + seed % 10);
    seed /= 10;
  } while (seed > 0);
  while (count > 0) *end++ = digits[--count];
  *end++ = '\n';
  (void)!write(STDOUT_FILENO, text.data(), static_cast<std::size_t>(end - text.data()));
  signal(number, SIG_DFL);
  raise(number);
}

std::vector<CaseKind> AllKinds() {
  std::vector<CaseKind> all;
  for (auto* list :
       {PullCases, PublishCases, UndoCases, DamageCases, ChainCases, CompanyCases, ProcessCases}) {
    for (CaseKind& kind : list()) all.push_back(std::move(kind));
  }
  return all;
}

const CaseKind& Choose(const std::vector<CaseKind>& kinds, Dice& dice) {
  std::uint64_t total = 0;
  for (const CaseKind& kind : kinds) total += kind.weight;
  std::uint64_t at = dice.Below(total);
  for (const CaseKind& kind : kinds) {
    if (at < kind.weight) return kind;
    at -= kind.weight;
  }
  return kinds.back();
}

class Run {
 public:
  Run(const Options& options, std::string program)
      : options_(options), program_(std::move(program)) {
    for (CaseKind& kind : AllKinds()) {
      if (kind.name.find(options.kind) != std::string::npos) kinds_.push_back(std::move(kind));
    }
  }

  int Play() {
    if (kinds_.empty()) {
      fmt::print(stderr, "no kind of case has \"{}\" in its name\n", options_.kind);
      return 2;
    }
    if (options_.list) {
      for (const CaseKind& kind : kinds_) fmt::print("{}\n", kind.name);
      return 0;
    }
    Dice seeds(options_.seed);
    const std::uint64_t count = options_.one != 0 ? 1 : options_.cases;
    for (std::uint64_t i = 0; i < count; ++i) {
      PlayOne(options_.one != 0 ? options_.one : std::max<std::uint64_t>(1, seeds.Seed() >> 16));
    }
    for (const auto& [name, tally] : tallies_) {
      fmt::print("{:20} {:6} cases, {} failed, {:.1f} ms each, at most {:.0f} ms\n", name,
                 tally.cases, tally.failed, 1000 * tally.seconds / double(tally.cases),
                 1000 * tally.slowest);
    }
    fmt::print("{} passed, {} failed\n", count - failed_, failed_);
    return failed_ == 0 ? 0 : 1;
  }

 private:
  struct Tally {
    std::uint64_t cases = 0;
    std::uint64_t failed = 0;
    double seconds = 0;
    double slowest = 0;
  };

  void PlayOne(std::uint64_t seed) {
    playing = seed;
    alarm(kCaseSeconds);
    Dice dice(seed);
    const CaseKind& kind = Choose(kinds_, dice);
    if (options_.settings.verbose) fmt::print("{}\n", kind.name);
    const auto begin = std::chrono::steady_clock::now();
    const base::Status status = kind.play(options_.settings, dice);
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    Tally& tally = tallies_[kind.name];
    ++tally.cases;
    tally.seconds += seconds;
    tally.slowest = std::max(tally.slowest, seconds);
    if (status) return;
    ++failed_;
    ++tally.failed;
    std::string filter = options_.kind.empty() ? "" : " --kind " + options_.kind;
    if (options_.settings.strict) filter += " --strict";
    fmt::print("FAILED {}: {}\n  again: {} --case {}{} --verbose\n", kind.name,
               status.error().message, program_, seed, filter);
    std::fflush(stdout);
  }

  const Options& options_;
  std::string program_;
  std::vector<CaseKind> kinds_;
  std::map<std::string, Tally> tallies_;
  std::uint64_t failed_ = 0;
};

}  // namespace
}  // namespace syncline::torture

int main(int count, char** arguments) {
  using syncline::torture::Options;
  Options options;
  const std::string program = arguments[0];
  options.settings.binary =
      program.substr(0, program.rfind('/') == std::string::npos ? 0 : program.rfind('/') + 1) +
      "syncline";
  CLI::App app("Plays many small stories in which everything goes wrong that can");
  app.add_option("--cases", options.cases, "How many");
  app.add_option("--seed", options.seed, "Where the seeds of the cases come from");
  app.add_option("--case", options.one, "Plays the one case of this seed");
  app.add_option("--kind", options.kind, "Only kinds of cases with this in their name");
  app.add_option("--syncline", options.settings.binary, "The command under test");
  app.add_flag("--strict", options.settings.strict, "Fails for weaknesses that are known, too");
  app.add_flag("--list", options.list, "Lists the kinds of cases");
  app.add_flag("--verbose", options.settings.verbose, "Tells each story");
  CLI11_PARSE(app, count, arguments);
  setenv("SYNCLINE_LOG", options.settings.verbose ? "warning" : "off", 0);
  for (const int number : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGALRM}) {
    signal(number, syncline::torture::OnSignal);
  }
  return syncline::torture::Run(options, program).Play();
}
