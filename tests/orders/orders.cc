// Plays many short lives of an engine, in which requests come in any order, and checks each reply
// and what is served in the end.
//
//   orders [--cases N] [--seed S]     N cases, each of a kind and a model chosen by chance
//          [--kind PART] [--model M]  only those
//   orders --case SEED [--verbose]    one case again
//
// The last line is "N passed, N failed"; the exit status is 0 if nothing failed. What a case leaves
// behind (threads, descriptors, memory) is a failure too.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <map>
#include <thread>

#include "orders/story.h"

namespace syncline::orders {
namespace {

struct Options {
  std::uint64_t cases = 500;
  std::uint64_t seed = 1;
  std::uint64_t one = 0;  // the seed of a single case
  std::string kind;
  std::string model;
  bool verbose = false;
};

constexpr unsigned kCaseSeconds = 180;
volatile std::uint64_t playing = 0;

// A crash or a hang says which case it was; only calls that a signal handler may make.
void OnSignal(int number) {
  std::array<char, 80> text;
  constexpr std::string_view kStart = "ended by a signal: orders --case ";
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

struct CaseKind {
  std::string name;
  std::uint64_t percent;
  base::Status (*play)(const World& world, Dice& dice, bool verbose);
};

const CaseKind kKinds[] = {{"story", 80, PlayStory}, {"crowd", 20, PlayCrowd}};

std::size_t CountIn(const char* directory) {
  std::error_code error;
  const std::filesystem::directory_iterator entries(directory, error);
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

std::size_t Threads() { return CountIn("/proc/self/task"); }

// What the process holds between two cases.
struct Held {
  std::size_t descriptors = 0;
  std::size_t mebibytes = 0;
  static Held Now() {
    const std::string text = base::ReadKernelText("/proc/self/statm");
    const auto pages = std::stoull(text.substr(text.find(' ') + 1));
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    return {CountIn("/proc/self/fd"), (pages * page) >> 20};
  }
};

class Run {
 public:
  Run(const Options& options, std::string program)
      : options_(options), program_(std::move(program)) {}

  int Play() {
    Dice seeds(options_.seed);
    const std::uint64_t count = options_.one != 0 ? 1 : options_.cases;
    // By then everything that is made once has been made.
    const std::uint64_t warm = std::min<std::uint64_t>(100, count / 2);
    Held before;
    for (std::uint64_t i = 0; i < count; ++i) {
      if (i == warm) before = Held::Now();
      PlayOne(options_.one != 0 ? options_.one : std::max<std::uint64_t>(1, seeds.Seed() >> 16),
              i > warm);
    }
    if (count > 1) CompareHeld(before, Held::Now());
    for (const auto& [name, tally] : tallies_) {
      fmt::print("{:20} {:6} cases, {} failed, {:.1f} ms each, at most {:.0f} ms\n", name,
                 tally.cases, tally.failed, 1000 * tally.seconds / double(tally.cases),
                 1000 * tally.slowest);
    }
    fmt::print("{} passed, {} failed\n", count - std::min(failed_, count), failed_);
    return failed_ == 0 ? 0 : 1;
  }

 private:
  struct Tally {
    std::uint64_t cases = 0;
    std::uint64_t failed = 0;
    double seconds = 0;
    double slowest = 0;
  };

  base::Result<World*> WorldOf(std::string_view model) {
    std::unique_ptr<World>& world = worlds_[std::string(model)];
    if (world == nullptr) {
      SYNCLINE_ASSIGN(world, World::Make(model));
    }
    return world.get();
  }

  base::Status PlayKind(const CaseKind& kind, std::string_view model, Dice& dice, bool warm) {
    SYNCLINE_ASSIGN(const World* world, WorldOf(model));
    const std::size_t threads = Threads();
    SYNCLINE_TRY(kind.play(*world, dice, options_.verbose));
    if (!warm) return {};
    // The system forgets a thread a little later than who joins it.
    for (int i = 0; i < 100 && Threads() > threads; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    if (Threads() <= threads) return {};
    return Wrong(fmt::format("{} threads were left", Threads() - threads));
  }

  void PlayOne(std::uint64_t seed, bool warm) {
    playing = seed;
    alarm(kCaseSeconds);
    Dice dice(seed);
    const CaseKind* kind = dice.Percent(kKinds[0].percent) ? &kKinds[0] : &kKinds[1];
    for (const CaseKind& wanted : kKinds) {
      if (wanted.name == options_.kind) kind = &wanted;
    }
    std::string_view model = dice.Pick(kModels);
    if (!options_.model.empty()) model = options_.model;
    const auto begin = std::chrono::steady_clock::now();
    const base::Status status = PlayKind(*kind, model, dice, warm);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    Tally& tally = tallies_[fmt::format("{} of {}", kind->name, model)];
    ++tally.cases;
    tally.seconds += seconds.count();
    tally.slowest = std::max(tally.slowest, seconds.count());
    if (status) return;
    ++failed_;
    ++tally.failed;
    fmt::print("FAILED {} of {}: {}\n  again: {} --kind {} --model {} --case {} --verbose\n",
               kind->name, model, status.error().message, program_, kind->name, model, seed);
    std::fflush(stdout);
  }

  void CompareHeld(const Held& before, const Held& now) {
    fmt::print("descriptors {}, before {}; MiB {}, before {}\n", now.descriptors,
               before.descriptors, now.mebibytes, before.mebibytes);
    constexpr std::size_t kSlack = 64;  // MiB
    if (now.descriptors <= before.descriptors &&
        now.mebibytes <= before.mebibytes + before.mebibytes / 5 + kSlack) {
      return;
    }
    fmt::print("FAILED: cases leave descriptors or memory behind\n");
    ++failed_;
  }

  const Options& options_;
  std::string program_;
  std::map<std::string, std::unique_ptr<World>> worlds_;
  std::map<std::string, Tally> tallies_;
  std::uint64_t failed_ = 0;
};

}  // namespace
}  // namespace syncline::orders

int main(int count, char** arguments) {
  syncline::orders::Options options;
  CLI::App app("Plays many short lives of an engine, in which requests come in any order");
  app.add_option("--cases", options.cases, "How many");
  app.add_option("--seed", options.seed, "Where the seeds of the cases come from");
  app.add_option("--case", options.one, "Plays the one case of this seed");
  app.add_option("--kind", options.kind, "Only cases of this kind: story or crowd");
  app.add_option("--model", options.model, "Only this model");
  app.add_flag("--verbose", options.verbose, "Tells each story");
  CLI11_PARSE(app, count, arguments);
  setenv("SYNCLINE_LOG", options.verbose ? "warning" : "off", 0);
  setenv("OMP_NUM_THREADS", "1", 0);
  for (const int number : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGALRM}) {
    signal(number, syncline::orders::OnSignal);
  }
  return syncline::orders::Run(options, arguments[0]).Play();
}
