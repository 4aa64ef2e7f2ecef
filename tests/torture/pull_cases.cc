// Each case: a replica at some version (or none yet), a pull that is disturbed, perhaps recoveries
// that are disturbed too, then a plain pull. It must end at its target, bit for bit, and without a
// seed unless the way to the target needs one.
#include <fmt/format.h>

#include <array>

#include "torture/cases.h"
#include "torture/faults.h"

namespace syncline::torture {
namespace {

using base::FileSystem;
using base::Result;
using base::Status;

// What the replica held when nothing had gone wrong yet, and what may be expected of a pull now.
struct Story {
  World& world;
  std::optional<std::uint64_t> held;
  bool unproven = false;  // after a power cut a marker means little until the next pull
  bool doubt = false;  // what was read of the replica looked damaged: a seed is an answer to that
};

Result<Counts> CountPull(World& world, std::uint64_t target) {
  const std::string twin = world.root() + "-twin";
  if (FileSystem::Posix().Stat(world.replica())) CopyTree(world.replica(), twin);
  auto counts = CountOperations(FileSystem::Posix(), [&](FileSystem& files) -> Status {
    SYNCLINE_TRY(world.PullInto(files, twin, target));
    return world.ExpectBytes(twin, target);
  });
  SYNCLINE_TRY(FileSystem::Posix().RemoveAll(twin));
  return counts;
}

// `before`: the marker before the pull.
Status CheckReport(const Story& story, const std::optional<std::uint64_t>& before,
                   const replica::PullReport& report, std::uint64_t target) {
  story.world.Say(fmt::format("from {}, recovered {}, seeded {} from {}, applied {}, repaired {}",
                              report.from_version ? int(*report.from_version) : -1,
                              report.recovered, report.seeded,
                              report.seeded_from ? int(*report.seeded_from) : -1,
                              report.applied.size(), report.tensors_repaired));
  if (report.version != target) {
    return Wrong(fmt::format("a pull to {} reports version {}", target, report.version));
  }
  if (report.seeded && !story.doubt && !story.world.NeedsSeed(story.held, target)) {
    return Wrong(fmt::format("a pull to {} seeded again", target));
  }
  if (!before && story.held && !report.recovered && !report.seeded) {
    return Wrong("something had to be completed first, and the report does not say so");
  }
  return story.world.ExpectAt(target);
}

// The replica after a run that failed; `whole`: it must be at some version.
Status CheckFailed(const Story& story, std::uint64_t target, bool whole) {
  if (!story.unproven) SYNCLINE_TRY(story.world.ExpectHonest());
  SYNCLINE_ASSIGN(const auto marker, story.world.Marker());
  if (!marker) {
    const bool swapped = story.world.NeedsSeed(story.held, target);
    if (whole && story.held && !swapped) return Wrong("after an error no version is held");
    return {};
  }
  if (*marker < story.held.value_or(0) || *marker > target) {
    return Wrong(fmt::format("after an error the marker says {}", *marker));
  }
  return {};
}

Status PlayFault(Story& story, std::uint64_t target, Fault fault) {
  World& world = story.world;
  SYNCLINE_ASSIGN(const Counts counts, CountPull(world, target));
  SYNCLINE_ASSIGN(const auto before, world.Marker());
  story.doubt = fault == Fault::kFlip || fault == Fault::kShortRead;
  Disturbed disturbed(world, fault, counts);
  const auto report = world.Pull(disturbed.files(), target, disturbed.cancel());
  world.Say(fmt::format("{}: {}", Name(fault), Told(report)));
  if (!report) SYNCLINE_TRY(disturbed.CheckError(report.error()));
  const bool lasting = fault == Fault::kDeadDevice || fault == Fault::kFullDisk;
  if (report) {
    SYNCLINE_TRY(CheckReport(story, before, *report, target));
  } else if (!disturbed.died() && !lasting) {
    SYNCLINE_TRY(CheckFailed(story, target, before.has_value()));
  } else {
    SYNCLINE_TRY(CheckFailed(story, target, false));
  }
  story.doubt = false;
  story.unproven = fault == Fault::kPower || (story.unproven && !report);
  SYNCLINE_TRY(disturbed.Finish());
  return {};
}

Status PlayPull(const Settings& settings, Dice& dice, Fault fault, bool seeding) {
  const WorldOptions options = {.large = dice.Percent(2),
                                .power = fault == Fault::kPower || dice.Percent(20),
                                .lasting_start = dice.Percent(60),
                                .versions = dice.Between(1, 4),
                                .full_versions = fault != Fault::kFlip};
  World world(settings, dice, options);
  std::optional<std::uint64_t> held;
  if (!seeding) held = dice.Below(options.versions);
  SYNCLINE_TRY(world.Start(held));
  Story story{world, held};
  std::uint64_t target =
      dice.Percent(70) ? world.newest() : dice.Between(held.value_or(0), world.newest());
  world.Say(fmt::format("held {}, target {}", held ? std::to_string(*held) : "nothing", target));
  SYNCLINE_TRY(PlayFault(story, target, fault));
  static constexpr std::array kLater = {Fault::kKill, Fault::kKill, Fault::kError,
                                        Fault::kShortWrite, Fault::kFullDisk};
  while (dice.Percent(35)) {
    const bool cut = world.has_power() && dice.Percent(50);
    SYNCLINE_TRY(PlayFault(story, target, cut ? Fault::kPower : dice.Pick(kLater)));
  }
  if (dice.Percent(30)) target = world.newest();  // what comes next need not be the same command
  SYNCLINE_ASSIGN(const auto before, world.Marker());
  const auto report = world.Pull(world.machine(), target);
  if (!report) return Wrong("the pull after it fails: " + Told(report));
  SYNCLINE_TRY(CheckReport(story, before, *report, target));
  // Nothing of the past is left: the next one has nothing to do.
  const auto again = world.Pull(world.machine(), target);
  if (!again) return Wrong("the pull after that fails: " + Told(again));
  if (again->from_version != target || again->seeded || !again->applied.empty()) {
    return Wrong("a second pull found something to do");
  }
  return world.ExpectAt(target);
}

// One pull, killed at every operation in steps.
Status PlaySweep(const Settings& settings, Dice& dice) {
  World world(settings, dice, {.versions = 1, .full_versions = false});
  SYNCLINE_TRY(world.Start(0));
  const std::string before = world.root() + "-before";
  CopyTree(world.replica(), before);
  SYNCLINE_ASSIGN(const Counts counts, CountPull(world, 1));
  const std::uint64_t step = 1 + counts.operations / 12;
  for (std::uint64_t at = dice.Below(step); at < counts.operations; at += step) {
    CopyTree(before, world.replica());
    Story story{world, 0};
    {
      base::FaultyFileSystem files(world.machine());
      files.KillAt(at, dice.Below(5000));
      const auto killed = world.Pull(files, 1);
      world.Say(fmt::format("killed at {} of {}: {}", at, counts.operations, Told(killed)));
    }
    SYNCLINE_TRY(world.ExpectHonest());
    SYNCLINE_ASSIGN(const auto left, world.Marker());
    const auto report = world.Pull(world.machine(), 1);
    if (!report) return Wrong(fmt::format("killed at {}, then: {}", at, Told(report)));
    SYNCLINE_TRY(CheckReport(story, left, *report, 1));
  }
  return FileSystem::Posix().RemoveAll(before);
}

}  // namespace

std::vector<CaseKind> PullCases() {
  std::vector<CaseKind> kinds;
  const auto add = [&](Fault fault, std::uint64_t weight, bool seeding) {
    kinds.push_back({fmt::format("{}-{}", seeding ? "seed" : "pull", Name(fault)), weight,
                     [=](const Settings& settings, Dice& dice) {
                       return PlayPull(settings, dice, fault, seeding);
                     }});
  };
  add(Fault::kKill, 12, false);
  add(Fault::kPower, 12, false);
  add(Fault::kError, 6, false);
  add(Fault::kFullDisk, 3, false);
  add(Fault::kDeadDevice, 3, false);
  add(Fault::kShortRead, 3, false);
  add(Fault::kShortWrite, 3, false);
  add(Fault::kFlip, 4, false);
  add(Fault::kCancel, 2, false);
  add(Fault::kKill, 3, true);
  add(Fault::kPower, 3, true);
  add(Fault::kError, 2, true);
  add(Fault::kShortWrite, 1, true);
  add(Fault::kFullDisk, 1, true);
  add(Fault::kCancel, 1, true);
  kinds.push_back({"pull-sweep", 2, PlaySweep});
  return kinds;
}

}  // namespace syncline::torture
