// Bits that are wrong on the disk and stay so. A pull that succeeds must have told the truth; if it
// fails, the replica is as it was, and when the store is mended the pull succeeds.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "store/manifest.h"
#include "store/version.h"
#include "torture/cases.h"

namespace syncline::torture {
namespace {

using base::Code;
using base::FileSystem;
using base::Result;
using base::Status;

// All files below a folder, in order.
std::vector<std::string> Files(const std::string& folder) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) found.push_back(entry.path().string());
  }
  std::ranges::sort(found);
  return found;
}

// A bit (or, now and then, the end of the file) that is wrong from now on.
struct Damage {
  std::string path;
  std::string before;

  static Result<Damage> Do(World& world, const std::string& path) {
    SYNCLINE_ASSIGN(std::string text, base::ReadText(FileSystem::Posix(), path, 1 << 30));
    Damage damage{path, text};
    if (text.empty()) return damage;
    const std::uint64_t byte = world.dice().Below(text.size());
    if (world.dice().Percent(15)) {
      text.resize(byte);
      world.Say(fmt::format("{} cut to {} bytes", path, byte));
    } else {
      const std::uint64_t bit = world.dice().Below(8);
      text[byte] = static_cast<char>(text[byte] ^ (1 << bit));
      world.Say(fmt::format("bit {} of byte {} of {} flipped", bit, byte, path));
    }
    SYNCLINE_TRY(damage.Write(text));
    return damage;
  }
  Status Mend() const { return Write(before); }
  Status Write(const std::string& text) const {
    SYNCLINE_ASSIGN(const auto file, FileSystem::Posix().Open(path, base::OpenMode::kCreate));
    return file->WriteAt(base::AsBytes(text), 0);
  }
};

Status CheckCode(const base::Error& error) {
  static constexpr Code kDamaged[] = {
      Code::kCorrupt,  Code::kChecksumMismatch, Code::kIncompatible, Code::kOutOfOrder,
      Code::kNotFound, Code::kInvalidArgument,  Code::kLimitExceeded};
  if (std::ranges::find(kDamaged, error.code) != std::end(kDamaged)) return {};
  return Wrong(
      fmt::format("damage gives the error {}: {}", base::Info(error.code).name, error.message));
}

// Has that version hashes of all its files?
bool HasManifest(const World& world, std::uint64_t version) {
  const std::string path = base::JoinPath(world.VersionPath(version), store::kManifestName);
  return FileSystem::Posix().Stat(path).has_value();
}

Status PlayStore(const Settings& settings, Dice& dice) {
  World world(settings, dice, {.versions = dice.Between(1, 3)});
  std::optional<std::uint64_t> held;
  if (dice.Percent(70)) held = 0;
  SYNCLINE_TRY(world.Start(held));
  const std::uint64_t oldest = held || !world.seed().empty() ? 1 : 0;
  const std::uint64_t hurt = dice.Between(oldest, world.newest());
  // Without a manifest nothing says what the bytes of a full version should be.
  if (world.is_full(hurt) && !HasManifest(world, hurt)) return {};
  const std::vector<std::string> files = Files(world.VersionPath(hurt));
  const std::string path = dice.Pick(files);
  // open: without a manifest a bit in the word "delta_encoding" makes a full version of a delta.
  if (!settings.strict && path.ends_with(".index.json") && !HasManifest(world, hurt)) return {};
  SYNCLINE_ASSIGN(const Damage damage, Damage::Do(world, path));
  const auto report = world.Pull(world.machine(), std::nullopt);
  world.Say(Told(report));
  if (report) {
    if (report->version != world.newest()) return Wrong("reports another version");
    SYNCLINE_TRY(world.ExpectAt(world.newest()));
  } else {
    SYNCLINE_TRY(CheckCode(report.error()));
    SYNCLINE_ASSIGN(const auto marker, world.Marker());
    if (held && !marker) return Wrong("after the error no version is held");
    if (marker && (*marker < held.value_or(0) || *marker >= hurt)) {
      return Wrong(fmt::format("version {} is damaged, and the marker says {}", hurt, *marker));
    }
    if (marker) SYNCLINE_TRY(world.ExpectAt(*marker));
  }
  SYNCLINE_TRY(damage.Mend());
  const auto mended = world.Pull(world.machine(), std::nullopt);
  if (!mended) return Wrong("mended, but: " + Told(mended));
  // A pull that took the damaged manifest for that of another run changes over, and back.
  if (!report && mended->seeded && !world.NeedsSeed(held, world.newest())) {
    return Wrong("seeded again");
  }
  return world.ExpectAt(world.newest());
}

// After damage to the replica: a pull, and if it does not help, a new replica.
Status ExpectTruth(World& world, const Result<replica::PullReport>& report, bool bytes_matter) {
  world.Say(Told(report));
  if (!report) {
    SYNCLINE_TRY(CheckCode(report.error()));
  } else {
    if (report->version != world.newest()) return Wrong("reports another version");
    SYNCLINE_ASSIGN(const auto marker, world.Marker());
    if (marker != world.newest()) return Wrong("the marker is not what was reported");
    const Status bytes = world.ExpectBytes(world.replica(), world.newest());
    const auto verified = world.Verify(FileSystem::Posix(), false);
    world.Say("verify: " + Told(verified));
    if (!bytes && bytes_matter) return bytes;
    // What a pull does not touch it does not read; but verify knows.
    if (!bytes && verified) return Wrong("wrong bytes, and verify does not see them");
    if (bytes && verified) return {};
    const auto repaired = world.Verify(FileSystem::Posix(), true);
    if (!repaired) return Wrong("repair: " + Told(repaired));
    return world.ExpectAt(world.newest());
  }
  SYNCLINE_TRY(FileSystem::Posix().RemoveAll(world.replica()));
  const auto fresh = world.Pull(world.machine(), std::nullopt);
  if (!fresh) return Wrong("a fresh replica: " + Told(fresh));
  return world.ExpectAt(world.newest());
}

Status PlayReplica(const Settings& settings, Dice& dice, const std::string& part) {
  World world(settings, dice, {.versions = dice.Between(1, 3)});
  SYNCLINE_TRY(world.Start(dice.Between(0, 1)));
  std::vector<std::string> files = Files(world.replica());
  std::erase_if(files, [&](const std::string& path) {
    const bool own = path.find("/.weight_sync/") != std::string::npos;
    return part == "weights" ? own : !path.ends_with(part);
  });
  if (files.empty()) return Wrong("no file to damage");
  SYNCLINE_ASSIGN(const Damage damage, Damage::Do(world, dice.Pick(files)));
  return ExpectTruth(world, world.Pull(world.machine(), std::nullopt), part != "weights");
}

// A pull that was killed leaves files of its own; one of them goes bad before the next pull.
Status PlayLeftOver(const Settings& settings, Dice& dice) {
  World world(settings, dice, {.versions = dice.Between(1, 3)});
  SYNCLINE_TRY(world.Start(0));
  base::FaultyFileSystem files(world.machine());
  files.KillAt(dice.Between(20, 120), dice.Below(5000));
  world.Say("killed pull: " + Told(world.Pull(files, std::nullopt)));
  std::vector<std::string> left = Files(world.replica() + "/.weight_sync");
  std::erase_if(left, [](const std::string& path) { return path.ends_with("/lock"); });
  for (std::uint64_t i = dice.Between(1, 2); i > 0 && !left.empty(); --i) {
    SYNCLINE_TRY(Damage::Do(world, dice.Pick(left)));
  }
  return ExpectTruth(world, world.Pull(world.machine(), std::nullopt), true);
}

// Wrong bits in the weights, healed by `verify --repair` alone, which may be disturbed too.
Status PlayRepair(const Settings& settings, Dice& dice) {
  World world(settings, dice, {.versions = dice.Between(1, 3)});
  const std::uint64_t held = dice.Between(0, 1);
  SYNCLINE_TRY(world.Start(held));
  std::vector<std::string> files = Files(world.replica());
  std::erase_if(files, [](const std::string& path) {
    return path.find("/.weight_sync/") != std::string::npos;
  });
  for (std::uint64_t i = dice.Between(1, 3); i > 0; --i) {
    SYNCLINE_TRY(Damage::Do(world, dice.Pick(files)));
  }
  while (dice.Percent(40)) {
    base::FaultyFileSystem faulty(world.machine());
    faulty.KillAt(dice.Below(150), dice.Below(5000));
    world.Say("killed repair: " + Told(world.Verify(faulty, true)));
  }
  const auto repaired = world.Verify(world.machine(), true);
  if (!repaired) return Wrong("repair: " + Told(repaired));
  return world.ExpectAt(held);
}

}  // namespace

std::vector<CaseKind> DamageCases() {
  const auto in_replica = [](const std::string& part) {
    return [=](const Settings& settings, Dice& dice) { return PlayReplica(settings, dice, part); };
  };
  return {{"damage-store", 6, PlayStore},
          {"damage-weights", 3, in_replica("weights")},
          {"damage-left-over", 3, PlayLeftOver},
          {"damage-repair", 2, PlayRepair},
          {"damage-head", 2, in_replica("syncline.json")},
          {"damage-marker", 2, in_replica("state.json")}};
}

}  // namespace syncline::torture
