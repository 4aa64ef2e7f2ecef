// Others at work on the same store or replica: a second publisher, pullers at the same time, and
// another program that seeds the replica as SGLang does, wholly or until it dies.
#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "checkpoint/writer.h"
#include "replica/state.h"
#include "store/version.h"
#include "torture/cases.h"
#include "torture/faults.h"

namespace syncline::torture {
namespace {

using base::Code;
using base::FileSystem;
using base::Result;
using base::Status;

Status PlayPublishers(const Settings& settings, Dice& dice) {
  World world(settings, dice, {.versions = 1});
  SYNCLINE_TRY(world.Start(std::nullopt));
  world.PlanNext();
  {
    SYNCLINE_ASSIGN(auto first, world.OpenPublisher(FileSystem::Posix(), world.store()));
    const auto second = world.OpenPublisher(FileSystem::Posix(), world.store());
    if (second || second.error().code != Code::kLocked) {
      return Wrong("a second publisher: " + Told(second));
    }
    if (dice.Percent(50)) SYNCLINE_TRY(world.Publish(first));
  }
  // Several at once: each opens and publishes the next version, or hears that it came too late.
  const bool stood = FileSystem::Posix().Stat(world.VersionPath(world.newest())).has_value();
  std::vector<Status> ends(3);
  std::vector<std::thread> threads;

  for (std::size_t i = 0; i < ends.size(); ++i) {
    threads.emplace_back([&, i] {
      const auto held = world.model().Views(world.weights(world.newest() - 1));
      auto publisher = store::Publisher::Open(FileSystem::Posix(), world.store(),
                                              store::MakeBorrowedBaseline(held),
                                              !world.seed().empty(), {.threads = 1});
      if (publisher && publisher->last_version() == world.newest()) {
        ends[i] = base::Fail(Code::kAlreadyExists, "it stands");
      } else if (publisher) {
        ends[i] = world.Publish(*publisher);
      } else {
        ends[i] = std::unexpected(publisher.error());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::size_t made = stood ? 1 : 0;
  for (const Status& end : ends) {
    world.Say(Told(end));
    if (end) {
      ++made;
    } else if (end.error().code != Code::kLocked && end.error().code != Code::kAlreadyExists) {
      return Wrong("one of several publishers: " + Told(end));
    }
  }
  if (made != 1) return Wrong(fmt::format("the version was made {} times", made));
  SYNCLINE_TRY(world.Pull(world.machine(), std::nullopt));
  return world.ExpectAt(world.newest());
}

Status PlayPullers(const Settings& settings, Dice& dice) {
  const std::uint64_t versions = dice.Between(2, 4);
  World world(settings, dice, {.large = dice.Percent(2), .versions = versions});
  std::optional<std::uint64_t> held;
  if (dice.Percent(70)) held = dice.Below(versions);
  SYNCLINE_TRY(world.Start(held));
  std::vector<std::uint64_t> targets = {world.newest()};
  while (targets.size() < 3)
    targets.push_back(dice.Between(std::max<std::uint64_t>(1, held.value_or(1)), world.newest()));
  using Report = Result<replica::PullReport>;
  std::vector<Report> reports(targets.size(), base::Fail(Code::kInternal, "not run"));
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    threads.emplace_back([&, i] { reports[i] = world.Pull(FileSystem::Posix(), targets[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < targets.size(); ++i) {
    world.Say(fmt::format("to {}: {}", targets[i], Told(reports[i])));
    if (reports[i] ? reports[i]->version == targets[i]
                   : reports[i].error().code == Code::kOutOfOrder) {
      continue;
    }
    return Wrong(fmt::format("one of several pulls, to {}: {}", targets[i], Told(reports[i])));
  }
  // An older target may have been reached last, by taking back what others had pulled.
  SYNCLINE_ASSIGN(const auto marker, world.Marker());
  if (!marker || std::ranges::find(targets, *marker) == targets.end()) {
    return Wrong("the replica is at none of the targets");
  }
  SYNCLINE_TRY(world.ExpectAt(*marker));
  SYNCLINE_TRY(world.Pull(FileSystem::Posix(), std::nullopt));
  return world.ExpectAt(world.newest());
}

// ---- Another program that knows only marker and lock. ----

struct Foreign {
  World& world;
  std::uint64_t version;
  std::uint64_t steps;  // how many steps it lives

  bool Alive() { return steps > 0 && steps-- > 0; }
  // Seeds the replica in place, as SGLang does. Whether it came to the end.
  Result<bool> Run() {
    FileSystem& files = FileSystem::Posix();
    const replica::ReplicaState state(files, world.replica());
    SYNCLINE_ASSIGN(const auto lock, state.Lock(base::LockMode::kExclusive, nullptr));
    if (!Alive()) return false;
    SYNCLINE_TRY(state.WithdrawMarker());
    if (!Alive()) return false;
    SYNCLINE_TRY(WriteWeights());
    if (steps == 0) return false;
    const std::string marker = fmt::format("{{\"version\": \"{:06}\"}}", version);
    SYNCLINE_TRY(base::WriteTextAtomically(files, state.Path("state.json"), marker, false));
    return true;
  }

  // The file as we would write it, or in the layout of somebody else; over the old one, in parts.
  Status WriteWeights() {
    FileSystem& files = FileSystem::Posix();
    const std::string aside = world.root() + "-aside";
    SYNCLINE_TRY(files.MakeDirectories(aside));
    base::ThreadPool pool(1);
    base::Progress progress;
    const std::uint64_t limit = world.dice().Percent(50) ? 1 << 30 : 10'000;
    SYNCLINE_TRY(checkpoint::WriteCheckpoint(
        files, aside, world.model().Views(world.weights(version)),
        {.max_file_bytes = limit, .durable = false}, pool, progress, nullptr));
    SYNCLINE_ASSIGN(const auto names, files.List(aside));
    SYNCLINE_ASSIGN(const auto old, files.List(world.replica()));
    for (const std::string& name : old) {
      if (!name.starts_with("model") || std::ranges::find(names, name) != names.end()) continue;
      if (!Alive()) break;
      SYNCLINE_TRY(files.Remove(base::JoinPath(world.replica(), name)));
    }
    for (const std::string& name : names) {
      SYNCLINE_ASSIGN(const std::string text,
                      base::ReadText(files, base::JoinPath(aside, name), 1 << 30));
      if (!Alive()) break;
      SYNCLINE_ASSIGN(const auto file,
                      files.Open(base::JoinPath(world.replica(), name), base::OpenMode::kCreate));
      const bool whole = Alive();
      const std::size_t size = whole ? text.size() : text.size() / 2;
      SYNCLINE_TRY(file->WriteAt(base::AsBytes(text).first(size), 0));
    }
    return files.RemoveAll(aside);
  }
};

// A plain pull after another program came to its end with `seeded`, or died.
Status PullAfterForeign(World& world, std::optional<std::uint64_t> seeded, bool killed) {
  const auto report = world.Pull(world.machine(), std::nullopt);
  if (!report) return Wrong("the pull after it: " + Told(report));
  if (report->version != world.newest()) return Wrong("reports another version");
  // open: a checkpoint of ours that was about to be swapped in is preferred to the other program's.
  if (seeded && (!killed || world.settings().strict)) {
    if (report->from_version != seeded) {
      return Wrong("does not see the version of the other program");
    }
    if (report->seeded && !world.NeedsSeed(seeded, world.newest())) {
      return Wrong("seeded over what the other program had seeded");
    }
  }
  return world.ExpectAt(world.newest());
}

// A replica of ours (after a pull that was killed, with `killed`), then another program at it,
// which comes to its end or not, then a plain pull of ours.
Status PlayForeign(const Settings& settings, Dice& dice, bool killed, bool dies) {
  World world(settings, dice, {.versions = dice.Between(1, 4)});
  SYNCLINE_TRY(world.Start(0));
  SYNCLINE_TRY(world.Pull(world.machine(), dice.Below(world.newest() + 1)));
  if (killed) {
    base::FaultyFileSystem files(world.machine());
    files.KillAt(dice.Below(120), dice.Below(5000));
    world.Say("killed pull: " + Told(world.Pull(files, world.newest())));
  }
  Foreign foreign{world, dice.Below(world.newest() + 1), dies ? dice.Below(9) : 1000};
  const std::uint64_t version = foreign.version;
  SYNCLINE_ASSIGN(const bool ended, foreign.Run());
  world.Say(fmt::format("another program {} version {}", ended ? "seeded" : "died at", version));
  Status end =
      PullAfterForeign(world, ended ? std::optional<std::uint64_t>(version) : std::nullopt, killed);
  if (end || !killed || !dies || settings.strict) return end;
  // open: only what the journal touches is checked, not what the other program left elsewhere.
  SYNCLINE_TRY(FileSystem::Posix().RemoveAll(world.replica()));
  return PullAfterForeign(world, std::nullopt, false);
}

}  // namespace

std::vector<CaseKind> CompanyCases() {
  const auto foreign = [](bool killed, bool dies) {
    return [=](const Settings& settings, Dice& dice) {
      return PlayForeign(settings, dice, killed, dies);
    };
  };
  return {{"two-publishers", 1, PlayPublishers},
          {"two-pullers", 2, PlayPullers},
          {"foreign-seed", 2, foreign(false, false)},
          {"foreign-dies", 2, foreign(false, true)},
          {"foreign-after-kill", 2, foreign(true, false)},
          {"foreign-dies-after-kill", 1, foreign(true, true)}};
}

}  // namespace syncline::torture
