// What one case plays in: a trainer with its store, a host with its replica, and what every version
// should look like.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/faulty_file_system.h"
#include "base/file.h"
#include "base/power_loss_file_system.h"
#include "base/temp_dir.h"
#include "replica/replica.h"
#include "store/publisher.h"
#include "torture/dice.h"
#include "torture/model.h"

namespace syncline::torture {

struct Settings {
  std::string binary;  // of the command `syncline`
  // Also fails where a weakness is known and open; each such place is marked "open:".
  bool strict = false;
  bool verbose = false;
};

struct WorldOptions {
  bool large = false;
  bool power = false;         // the machine can lose power
  bool lasting_start = true;  // what stands at the start survives that
  std::uint64_t versions = 3;
  bool full_versions = true;  // besides the first
};

class World {
 public:
  World(const Settings& settings, Dice& dice, const WorldOptions& options);

  // Makes the store, and the replica at `held` unless nothing.
  base::Status Start(std::optional<std::uint64_t> held);

  const Settings& settings() const { return settings_; }
  Dice& dice() { return dice_; }
  const Model& model() const { return model_; }
  // The host's files. Another object after each CutPower.
  base::FileSystem& machine();
  std::uint64_t boots() const { return boots_; }
  bool has_power() const { return power_ != nullptr; }
  const std::string& root() const { return root_; }
  const std::string& store() const { return store_; }
  const std::string& replica() const { return replica_; }
  const std::string& seed() const { return seed_; }  // empty: version 0 is in the store
  std::string VersionPath(std::uint64_t version) const;

  std::uint64_t newest() const { return versions_.size() - 1; }
  const Weights& weights(std::uint64_t version) const { return versions_[version]; }
  bool has_manifests() const { return has_manifests_; }
  bool is_full(std::uint64_t version) const { return full_.contains(version); }
  // Has a pull from `from` to `to` to copy a whole checkpoint, or may it be the cheaper way?
  bool NeedsSeed(std::optional<std::uint64_t> from, std::uint64_t to) const;

  // Decides what the next version is; Publish makes it.
  void PlanNext();
  base::Result<store::Publisher> OpenPublisher(base::FileSystem& files, const std::string& store);
  // The newest planned version.
  base::Status Publish(store::Publisher& publisher, const base::CancelToken* cancel = nullptr);

  // Another run: from version `from` on the store holds versions of other weights.
  base::Status Diverge(std::uint64_t from);

  base::Result<replica::PullReport> Pull(base::FileSystem& files,
                                         std::optional<std::uint64_t> target,
                                         const base::CancelToken* cancel = nullptr,
                                         std::size_t threads = 1);
  base::Result<replica::PullReport> PullInto(base::FileSystem& files, const std::string& into,
                                             std::optional<std::uint64_t> target,
                                             const base::CancelToken* cancel = nullptr,
                                             std::size_t threads = 1);

  base::Result<replica::UndoReport> Undo(base::FileSystem& files, const std::string& into);
  base::Result<replica::VerifyReport> Verify(base::FileSystem& files, bool repair) const;

  // The power goes, and comes back: another boot.
  base::Status CutPower();

  base::Result<std::optional<std::uint64_t>> Marker() const;
  // The bytes of the directory are exactly that version.
  base::Status ExpectBytes(const std::string& directory, std::uint64_t version) const;
  base::Status ExpectBytes(const std::string& directory, const Weights& weights) const;
  // The replica is exactly at that version, by marker, bytes and verify.
  base::Status ExpectAt(std::uint64_t version) const;
  // If the replica claims to be at a version, it is.
  base::Status ExpectHonest() const;

  void Say(const std::string& text) const;  // a line of the story, if verbose
  void SayFiles(const std::string& folder) const;

 private:
  base::Status Prepare(base::FileSystem& files, std::optional<std::uint64_t> held);
  base::Status LoseForeignManifests();
  bool HasFullCopy(std::uint64_t version) const;
  std::string BootId() const;

  const Settings& settings_;
  Dice& dice_;
  WorldOptions options_;
  base::TempDir dir_{base::TempDir::MemoryFolder()};
  std::string root_ = dir_ / "root";
  std::string store_ = root_ + "/store";
  std::string replica_ = root_ + "/replica";
  std::string seed_;
  Model model_;
  std::vector<Weights> versions_;
  std::set<std::uint64_t> full_;
  bool has_manifests_ = true;
  std::unique_ptr<base::PowerLossFileSystem> power_;
  std::uint64_t boots_ = 0;
};

// A failed check.
[[nodiscard]] inline std::unexpected<base::Error> Wrong(std::string what) {
  return base::Fail(base::Code::kInternal, std::move(what));
}

// "ok", or code and message.
template <typename R>
std::string Told(const R& result) {
  if (result) return "ok";
  return std::string(base::Info(result.error().code).name) + ": " + result.error().message;
}

// Copies a folder with everything in it.
void CopyTree(const std::string& from, const std::string& to);

}  // namespace syncline::torture
