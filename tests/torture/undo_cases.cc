// Undo at any moment: after a pull, after one that was killed, disturbed itself, and again. It ends
// at a version that was held before, or changes nothing and says why; a pull goes on from there.
#include <fmt/format.h>

#include "torture/cases.h"
#include "torture/faults.h"

namespace syncline::torture {
namespace {

using base::Code;
using base::FileSystem;
using base::Result;
using base::Status;

Result<Counts> CountUndo(World& world) {
  const std::string twin = world.root() + "-twin";
  CopyTree(world.replica(), twin);
  auto counts = CountOperations(FileSystem::Posix(), [&](FileSystem& files) -> Status {
    const auto report = world.Undo(files, twin);
    if (!report && report.error().code != Code::kNotFound) {
      return std::unexpected(report.error());
    }
    return {};
  });
  SYNCLINE_TRY(FileSystem::Posix().RemoveAll(twin));
  return counts;
}

// Is the way back short enough that it is kept for sure?
bool IsShortWay(const World& world, std::uint64_t from, std::uint64_t to) {
  std::uint64_t changed = 0;
  std::uint64_t total = 0;
  for (std::uint64_t version = from + 1; version <= to; ++version) {
    total = 0;
    for (std::size_t i = 0; i < world.model().size(); ++i) {
      const auto& before = world.weights(version - 1)[i];
      const auto& after = world.weights(version)[i];
      for (std::size_t at = 0; at < after.size(); ++at) changed += before[at] != after[at] ? 1 : 0;
      total += after.size();
    }
  }
  return changed < total / 16;
}

// A plain undo: the truth is told, and something whole is held.
Status PlainUndo(World& world, std::optional<std::uint64_t> expected) {
  const auto report = world.Undo(world.machine(), world.replica());
  world.Say("undo: " + Told(report));
  SYNCLINE_ASSIGN(const auto marker, world.Marker());
  if (!marker) return Wrong("after undo no version is held");
  if (report) {
    if (report->version != *marker) return Wrong("undo reports another version than the marker");
    // open: an undo of a full version keeps the newer one, and the next undo goes there.
    const bool forward = report->version >= report->from_version;
    if (forward && world.settings().strict) return Wrong("undo went forward");
    if (expected && report->version != *expected) {
      return Wrong(fmt::format("undo came to {}, expected {}", report->version, *expected));
    }
  } else if (report.error().code != Code::kNotFound || expected) {
    return Wrong("undo: " + Told(report));
  }
  return world.ExpectAt(*marker);
}

Status DisturbUndo(World& world, Fault fault) {
  SYNCLINE_ASSIGN(const Counts counts, CountUndo(world));
  Disturbed disturbed(world, fault, counts);
  const auto report = world.Undo(disturbed.files(), world.replica());
  world.Say(fmt::format("undo with {}: {}", Name(fault), Told(report)));
  if (!report && report.error().code != Code::kNotFound) {
    SYNCLINE_TRY(disturbed.CheckError(report.error()));
  }
  // After a power cut a marker means little until a run has ended well.
  if (world.boots() == 0) SYNCLINE_TRY(world.ExpectHonest());
  return disturbed.Finish();
}

// A pull, an undo that is disturbed or not, and whatever comes next.
Status PlayUndo(const Settings& settings, Dice& dice, std::optional<Fault> fault) {
  const bool power = fault == Fault::kPower || dice.Percent(20);
  World world(settings, dice,
              {.large = dice.Percent(2), .power = power, .versions = dice.Between(1, 4)});
  SYNCLINE_TRY(world.Start(0));
  const std::uint64_t middle = dice.Below(world.newest());
  SYNCLINE_TRY(world.Pull(world.machine(), middle));
  const std::uint64_t target = dice.Between(middle + 1, world.newest());
  SYNCLINE_TRY(world.Pull(world.machine(), target));
  SYNCLINE_TRY(world.ExpectAt(target));
  std::optional<std::uint64_t> expected;
  if (IsShortWay(world, middle, target)) expected = middle;
  if (world.has_power() && dice.Percent(30)) {
    SYNCLINE_TRY(world.CutPower());
    // open: journals of the pull before may come back, and undo goes over both pulls.
    if (!settings.strict) expected = std::nullopt;
  }
  if (fault) {
    SYNCLINE_TRY(DisturbUndo(world, *fault));
    while (dice.Percent(30)) {
      SYNCLINE_TRY(DisturbUndo(world, world.has_power() ? Fault::kPower : Fault::kKill));
    }
    expected = std::nullopt;  // it may have been done already
  }
  if (dice.Percent(70)) SYNCLINE_TRY(PlainUndo(world, expected));
  const auto report = world.Pull(world.machine(), std::nullopt);
  if (!report) return Wrong("the pull after undo: " + Told(report));
  if (report->seeded && !world.NeedsSeed(middle, world.newest())) return Wrong("seeded again");
  return world.ExpectAt(world.newest());
}

// Undo after a pull that was killed: what was begun is completed or not, and then taken back.
Status PlayAfterKill(const Settings& settings, Dice& dice) {
  World world(settings, dice, {.power = dice.Percent(30), .versions = dice.Between(2, 4)});
  SYNCLINE_TRY(world.Start(0));
  if (dice.Percent(50)) SYNCLINE_TRY(world.Pull(world.machine(), 1));
  {
    base::FaultyFileSystem files(world.machine());
    files.KillAt(dice.Below(200), dice.Below(5000));
    world.Say("killed pull: " + Told(world.Pull(files, std::nullopt)));
  }
  if (world.has_power() && dice.Percent(60)) SYNCLINE_TRY(world.CutPower());
  SYNCLINE_TRY(PlainUndo(world, std::nullopt));
  const auto report = world.Pull(world.machine(), std::nullopt);
  if (!report) return Wrong("the pull after undo: " + Told(report));
  if (report->seeded && !world.NeedsSeed(0, world.newest())) return Wrong("seeded again");
  return world.ExpectAt(world.newest());
}

}  // namespace

std::vector<CaseKind> UndoCases() {
  const auto undo = [](std::optional<Fault> fault) {
    return [=](const Settings& settings, Dice& dice) { return PlayUndo(settings, dice, fault); };
  };
  return {{"undo", 2, undo(std::nullopt)},
          {"undo-kill", 3, undo(Fault::kKill)},
          {"undo-power", 3, undo(Fault::kPower)},
          {"undo-error", 2, undo(Fault::kError)},
          {"undo-full-disk", 1, undo(Fault::kFullDisk)},
          {"undo-after-kill", 2, PlayAfterKill}};
}

}  // namespace syncline::torture
