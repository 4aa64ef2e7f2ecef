// Each case: a publisher is disturbed at a version, perhaps several times, then another one (or the
// same) does it again. The store must then hold that version whole, and a replica must come to it.
#include <fmt/format.h>

#include <array>

#include "replica/resume.h"
#include "store/version.h"
#include "torture/cases.h"
#include "torture/faults.h"

namespace syncline::torture {
namespace {

using base::FileSystem;
using base::Result;
using base::Status;

// Is the newest planned version in the store, and nothing beyond it?
Result<bool> IsPublished(World& world) {
  SYNCLINE_ASSIGN(const auto versions, store::ListVersions(FileSystem::Posix(), world.store()));
  if (versions.empty()) return false;
  if (versions.back() > world.newest()) return Wrong("a version came from nowhere");
  return versions.back() == world.newest();
}

Result<Counts> CountPublish(World& world) {
  const std::string twin = world.root() + "-twin";
  CopyTree(world.store(), twin);
  auto counts = CountOperations(FileSystem::Posix(), [&](FileSystem& files) -> Status {
    SYNCLINE_ASSIGN(store::Publisher publisher, world.OpenPublisher(files, twin));
    return world.Publish(publisher);
  });
  SYNCLINE_TRY(FileSystem::Posix().RemoveAll(twin));
  return counts;
}

Status PlayFault(World& world, Fault fault) {
  SYNCLINE_ASSIGN(const Counts counts, CountPublish(world));
  std::optional<Disturbed> disturbed;
  disturbed.emplace(world, fault, counts);
  auto publisher = world.OpenPublisher(disturbed->files(), world.store());
  Status status;
  if (publisher) {
    status = world.Publish(*publisher, disturbed->cancel());
  } else {
    status = std::unexpected(publisher.error());
  }
  world.Say(fmt::format("{}: {}", Name(fault), Told(status)));
  if (!status) SYNCLINE_TRY(disturbed->CheckError(status.error()));
  if (!disturbed->died() && !status && publisher && world.dice().Percent(50)) {
    // A trainer that lives on tries again.
    SYNCLINE_ASSIGN(const bool stands, IsPublished(world));
    const bool last = publisher->last_version() == world.newest();
    if (stands != last) return Wrong("the publisher does not know whether its version stands");
    if (!stands) {
      Status again = world.Publish(*publisher);
      if (!again) SYNCLINE_TRY(disturbed->CheckError(again.error()));
      if (again) status = again;
    }
  }
  publisher = base::Fail(base::Code::kIo, "gone");  // its lock goes with it
  SYNCLINE_TRY(disturbed->Finish());
  disturbed.reset();
  SYNCLINE_ASSIGN(const bool stands, IsPublished(world));
  if (status && !stands) return Wrong("a version that was announced is gone");
  return {};
}

// The plain next command of the trainer.
Status PublishPlainly(World& world) {
  SYNCLINE_ASSIGN(const bool stands, IsPublished(world));
  if (world.dice().Percent(50)) {
    auto publisher = replica::ResumePublisher(world.machine(), world.store(),
                                              {.base = world.seed(), .publisher = {.threads = 1}});
    if (!publisher) return Wrong("resume: " + Told(publisher));
    const auto last = publisher->last_version();
    const std::uint64_t expected = stands ? world.newest() : world.newest() - 1;
    if (last != expected) return Wrong("resumed at another version than the store's last");
    if (!stands) SYNCLINE_TRY(world.Publish(*publisher));
  } else {  // it makes durable what it finds
    SYNCLINE_ASSIGN(store::Publisher publisher,
                    world.OpenPublisher(world.machine(), world.store()));
    if (!stands) SYNCLINE_TRY(world.Publish(publisher));
  }
  SYNCLINE_ASSIGN(const auto left, FileSystem::Posix().List(store::OwnDirectory(world.store())));
  for (const std::string& name : left) {
    if (!stands && name == "staging" &&
        !FileSystem::Posix().List(store::OwnDirectory(world.store()) + "/staging")->empty()) {
      return Wrong("staging is left over");
    }
  }
  return {};
}

Status VerifyStore(World& world) {
  const auto verified = replica::Verify(FileSystem::Posix(), world.store(), {.threads = 1});
  if (!verified) return Wrong("verify of the store: " + Told(verified));
  return {};
}

Status PlayPublish(const Settings& settings, Dice& dice, Fault fault) {
  World world(settings, dice,
              {.large = dice.Percent(1),
               .power = fault == Fault::kPower || dice.Percent(20),
               .versions = dice.Between(1, 3)});
  const std::uint64_t held = dice.Below(2);
  SYNCLINE_TRY(world.Start(held));
  const std::uint64_t rounds = dice.Between(1, 2);
  for (std::uint64_t i = 0; i < rounds; ++i) {
    world.PlanNext();
    SYNCLINE_TRY(PlayFault(world, fault));
    static constexpr std::array kLater = {Fault::kKill, Fault::kError, Fault::kFullDisk};
    while (dice.Percent(35)) {
      SYNCLINE_ASSIGN(const bool stands, IsPublished(world));
      if (stands) break;
      const bool cut = world.has_power() && dice.Percent(50);
      SYNCLINE_TRY(PlayFault(world, cut ? Fault::kPower : dice.Pick(kLater)));
    }
    SYNCLINE_TRY(PublishPlainly(world));
    if (i > 0 && world.has_power()) SYNCLINE_TRY(world.CutPower());
  }
  const auto report = world.Pull(world.machine(), std::nullopt);
  if (!report) return Wrong("the pull fails: " + Told(report));
  if (report->seeded && !world.NeedsSeed(held, world.newest())) return Wrong("seeded again");
  SYNCLINE_TRY(world.ExpectAt(world.newest()));
  return VerifyStore(world);
}

// The very first version of a store that was not there, announced and then the power goes.
Status PlayFirstVersion(const Settings& settings, Dice& dice) {
  World world(settings, dice, {.power = true, .versions = 1});
  SYNCLINE_TRY(world.Start(std::nullopt));
  const std::string fresh = world.root() + "/a/store";
  base::Progress progress;
  {
    SYNCLINE_ASSIGN(auto publisher,
                    store::Publisher::Open(world.machine(), fresh, store::MakeMemoryBaseline(),
                                           false, {.threads = 1}));
    SYNCLINE_TRY(publisher.Publish(0, world.model().Views(world.weights(0)), false, progress));
  }
  SYNCLINE_TRY(world.CutPower());
  return world.ExpectBytes(base::JoinPath(fresh, store::VersionName(0)), 0);
}

}  // namespace

std::vector<CaseKind> PublishCases() {
  std::vector<CaseKind> kinds;
  const auto add = [&](Fault fault, std::uint64_t weight) {
    kinds.push_back(
        {fmt::format("publish-{}", Name(fault)), weight,
         [=](const Settings& settings, Dice& dice) { return PlayPublish(settings, dice, fault); }});
  };
  add(Fault::kKill, 6);
  add(Fault::kPower, 6);
  add(Fault::kError, 3);
  add(Fault::kFullDisk, 2);
  add(Fault::kDeadDevice, 2);
  add(Fault::kShortRead, 1);
  add(Fault::kShortWrite, 2);
  add(Fault::kFlip, 1);
  add(Fault::kCancel, 1);
  kinds.push_back({"publish-first", 1, PlayFirstVersion});
  return kinds;
}

}  // namespace syncline::torture
