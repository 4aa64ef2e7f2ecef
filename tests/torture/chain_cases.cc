// Versions that are missing, under each other's numbers, or of another run. A pull refuses them
// before or when it comes to them, the replica stays at a version of ours, and when the store is
// put right the pull succeeds.
#include <fmt/format.h>

#include <filesystem>

#include "store/version.h"
#include "torture/cases.h"

namespace syncline::torture {
namespace {

using base::Code;
using base::FileSystem;
using base::Status;

enum class Disorder { kMissing, kSwapped, kDuplicate, kForeign };

void Rename(const std::string& from, const std::string& to) {
  std::error_code ignored;
  std::filesystem::rename(from, to, ignored);
}

// A delta of the same model and number, but on other weights.
Status PutForeign(World& world, std::uint64_t version) {
  base::Progress progress;
  const std::string other = world.root() + "/other";
  Weights weights = world.model().Start(world.dice());
  {
    SYNCLINE_ASSIGN(auto publisher,
                    store::Publisher::Open(FileSystem::Posix(), other, store::MakeMemoryBaseline(),
                                           false, {.durable = false, .threads = 1}));
    for (std::uint64_t i = 0; i <= version; ++i) {
      SYNCLINE_TRY(publisher.Publish(i, world.model().Views(weights), i == 0, progress));
      // All tensors change, so that something is there to be told apart by.
      for (auto& bytes : weights) {
        if (!bytes.empty()) bytes[world.dice().Below(bytes.size())] ^= std::byte{1};
      }
    }
  }
  CopyTree(base::JoinPath(other, store::VersionName(version)), world.VersionPath(version));
  return {};
}

Status PutInDisorder(World& world, Disorder disorder, std::uint64_t at) {
  const std::string path = world.VersionPath(at);
  switch (disorder) {
    case Disorder::kMissing:
      return FileSystem::Posix().RemoveAll(path);
    case Disorder::kSwapped:
      Rename(path, path + "-aside");
      Rename(world.VersionPath(at + 1), path);
      Rename(path + "-aside", world.VersionPath(at + 1));
      return {};
    case Disorder::kDuplicate:
      CopyTree(world.VersionPath(at + 1), path);
      return {};
    case Disorder::kForeign:
      return PutForeign(world, at);
  }
  return {};
}

Status Play(const Settings& settings, Dice& dice, Disorder disorder) {
  World world(settings, dice, {.versions = dice.Between(3, 5), .full_versions = false});
  const std::uint64_t held = dice.Between(0, world.newest() > 0 ? 0 : 1);
  SYNCLINE_TRY(world.Start(held));
  const std::uint64_t at = dice.Between(held + 1, world.newest() - 1);
  const std::string kept = world.root() + "-kept";
  CopyTree(world.store(), kept);
  SYNCLINE_TRY(PutInDisorder(world, disorder, at));
  const auto report = world.Pull(world.machine(), std::nullopt);
  world.Say(fmt::format("version {}: {}", at, Told(report)));
  if (report) {
    // Only if nothing was really different: a step that changed nothing has no content to tell.
    SYNCLINE_TRY(world.ExpectAt(world.newest()));
  } else {
    const Code code = report.error().code;
    const bool fits = disorder == Disorder::kMissing
                          ? code == Code::kNotFound
                          : code == Code::kCorrupt || code == Code::kOutOfOrder ||
                                code == Code::kChecksumMismatch;
    if (!fits) return Wrong("another error than expected: " + Told(report));
    SYNCLINE_ASSIGN(const auto marker, world.Marker());
    if (!marker || *marker < held || *marker >= at) {
      return Wrong(fmt::format("version {} is wrong, and the marker says {}", at,
                               marker ? fmt::format("{}", *marker) : "nothing"));
    }
    SYNCLINE_TRY(world.ExpectAt(*marker));
  }
  CopyTree(kept, world.store());
  SYNCLINE_TRY(FileSystem::Posix().RemoveAll(kept));
  const auto mended = world.Pull(world.machine(), std::nullopt);
  if (!mended) return Wrong("put right, but: " + Told(mended));
  if (mended->seeded && !world.NeedsSeed(held, world.newest())) return Wrong("seeded again");
  return world.ExpectAt(world.newest());
}

// From some version on the store holds another run. A replica that is beyond that point keeps what
// it has and says so, or changes over; it never takes the one for the other.
Status PlayDiverged(const Settings& settings, Dice& dice) {
  World world(settings, dice, {.versions = dice.Between(2, 4)});
  SYNCLINE_TRY(world.Start(0));
  const std::uint64_t held = dice.Between(0, world.newest());
  SYNCLINE_TRY(world.Pull(world.machine(), held));
  const Weights before = world.weights(held);
  const std::uint64_t from = dice.Between(1, world.newest());
  SYNCLINE_TRY(world.Diverge(from));
  const auto report = world.Pull(world.machine(), std::nullopt);
  world.Say(fmt::format("held {}, another run from {} on: {}", held, from, Told(report)));
  if (held < from) {
    if (!report) return Wrong("refused: " + Told(report));
    return world.ExpectAt(world.newest());
  }
  if (!report) {
    const Code code = report.error().code;
    // kCorrupt: a delta that is read over the old values may not fit those of another run.
    if (code != Code::kChecksumMismatch && code != Code::kOutOfOrder && code != Code::kCorrupt) {
      return Wrong("another error than expected: " + Told(report));
    }
    SYNCLINE_ASSIGN(const auto marker, world.Marker());
    if (marker != held) return Wrong("refused, but the marker is another");
    return world.ExpectBytes(world.replica(), before);
  }
  if (!world.has_manifests()) return {};  // nothing tells the runs apart
  return world.ExpectAt(world.newest());
}

}  // namespace

std::vector<CaseKind> ChainCases() {
  const auto play = [](Disorder disorder) {
    return [=](const Settings& settings, Dice& dice) { return Play(settings, dice, disorder); };
  };
  return {{"chain-missing", 1, play(Disorder::kMissing)},
          {"chain-swapped", 1, play(Disorder::kSwapped)},
          {"chain-duplicate", 1, play(Disorder::kDuplicate)},
          {"chain-foreign", 2, play(Disorder::kForeign)},
          {"chain-diverged", 2, PlayDiverged}};
}

}  // namespace syncline::torture
