#include "torture/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/writer.h"
#include "store/manifest.h"

namespace syncline::torture {

using base::FileSystem;
using base::Result;
using base::Status;

World::World(const Settings& settings, Dice& dice, const WorldOptions& options)
    : settings_(settings), dice_(dice), options_(options), model_(dice, options.large) {}

FileSystem& World::machine() {
  if (power_ != nullptr) return *power_;
  return FileSystem::Posix();
}

std::string World::VersionPath(std::uint64_t version) const {
  return base::JoinPath(store_, store::VersionName(version));
}

bool World::HasFullCopy(std::uint64_t version) const {
  const auto names = FileSystem::Posix().List(VersionPath(version));
  if (!names) return false;
  return std::ranges::any_of(*names, [&](const std::string& name) {
    const auto info = FileSystem::Posix().Stat(base::JoinPath(VersionPath(version), name));
    return info && info->kind == base::FileInfo::Kind::kDirectory;
  });
}

bool World::NeedsSeed(std::optional<std::uint64_t> from, std::uint64_t to) const {
  if (!from || to < *from) return true;
  for (std::uint64_t version = *from + 1; version <= to; ++version) {
    if (is_full(version) || HasFullCopy(version)) return true;
  }
  return false;
}

Status World::Start(std::optional<std::uint64_t> held) {
  SYNCLINE_TRY(FileSystem::Posix().MakeDirectories(root_));
  if (options_.power && !options_.lasting_start) {
    power_ = std::make_unique<base::PowerLossFileSystem>(FileSystem::Posix(), root_);
  }
  SYNCLINE_TRY(Prepare(machine(), held));
  if (options_.power && options_.lasting_start) {
    power_ = std::make_unique<base::PowerLossFileSystem>(FileSystem::Posix(), root_);
  }
  return {};
}

Status World::Prepare(FileSystem& files, std::optional<std::uint64_t> held) {
  if (dice_.Percent(25)) {  // version 0 is a checkpoint that both sides have
    seed_ = root_ + "/seed";
    versions_.push_back(model_.Start(dice_));
    base::ThreadPool pool(1);
    base::Progress progress;
    SYNCLINE_TRY(FileSystem::Posix().MakeDirectories(seed_));
    SYNCLINE_TRY(checkpoint::WriteCheckpoint(FileSystem::Posix(), seed_, model_.Views(versions_[0]),
                                             {.durable = false}, pool, progress, nullptr));
  }
  while (versions_.size() <= options_.versions) {
    PlanNext();
    SYNCLINE_ASSIGN(store::Publisher publisher, OpenPublisher(files, store_));
    SYNCLINE_TRY(Publish(publisher));
  }
  has_manifests_ = !dice_.Percent(25);
  SYNCLINE_TRY(LoseForeignManifests());
  SYNCLINE_TRY(files.SyncDirectory(root_));
  SYNCLINE_TRY(files.SyncDirectory(store_));
  if (!held) return {};
  SYNCLINE_ASSIGN(const replica::PullReport report, Pull(files, held));
  if (report.version != *held) return Wrong("the first pull went elsewhere");
  SYNCLINE_TRY(files.SyncDirectory(root_));
  return ExpectAt(*held);
}

// Versions of other programs have no manifest.
Status World::LoseForeignManifests() {
  if (has_manifests_) return {};
  for (std::uint64_t version = seed_.empty() ? 0 : 1; version <= newest(); ++version) {
    SYNCLINE_TRY(machine().RemoveAll(base::JoinPath(VersionPath(version), store::kManifestName)));
    SYNCLINE_TRY(machine().SyncDirectory(VersionPath(version)));
  }
  return machine().RemoveAll(base::JoinPath(store_, "syncline.latest.json"));
}

void World::PlanNext() {
  if (versions_.empty()) {
    versions_.push_back(model_.Start(dice_));
    full_.insert(0);
    return;
  }
  versions_.push_back(model_.Step(versions_.back(), dice_));
  if (options_.full_versions && dice_.Percent(12)) full_.insert(newest());
}

Result<store::Publisher> World::OpenPublisher(FileSystem& files, const std::string& store) {
  using delta::CompactForm;
  using delta::Encoding;
  const delta::EncodingChoice encoding =
      dice_.Percent(30)   ? delta::EncodingChoice(Encoding::kXor)
      : dice_.Percent(30) ? delta::EncodingChoice(Encoding::kOverwrite)
      : dice_.Percent(60) ? delta::EncodingChoice(Encoding::kCompact)
                          : delta::EncodingChoice(Encoding::kCompact, CompactForm::kGaps);
  std::vector<tensor::TensorView> held;
  if (newest() > 0) held = model_.Views(versions_[newest() - 1]);
  return store::Publisher::Open(
      files, store, store::MakeBorrowedBaseline(std::move(held)), !seed_.empty(),
      {.encoding = encoding, .full_copy_ratio = dice_.Percent(20) ? 0.2 : 0, .threads = 1});
}

Status World::Publish(store::Publisher& publisher, const base::CancelToken* cancel) {
  base::Progress progress;
  SYNCLINE_ASSIGN(const store::PublishReport report,
                  publisher.Publish(newest(), model_.Views(versions_.back()), is_full(newest()),
                                    progress, cancel));
  if (report.version != newest()) return Wrong("published under another number");
  return {};
}

Status World::Diverge(std::uint64_t from) {
  const std::uint64_t last = newest();
  while (newest() >= from) {
    SYNCLINE_TRY(machine().RemoveAll(VersionPath(newest())));
    full_.erase(newest());
    versions_.pop_back();
  }
  while (newest() < last) {
    PlanNext();
    versions_.back().front().front() ^= std::byte{1};  // surely different
    SYNCLINE_ASSIGN(store::Publisher publisher, OpenPublisher(machine(), store_));
    SYNCLINE_TRY(Publish(publisher));
  }
  return LoseForeignManifests();
}

Result<replica::PullReport> World::Pull(FileSystem& files, std::optional<std::uint64_t> target,
                                        const base::CancelToken* cancel, std::size_t threads) {
  return PullInto(files, replica_, target, cancel, threads);
}

Result<replica::PullReport> World::PullInto(FileSystem& files, const std::string& into,
                                            std::optional<std::uint64_t> target,
                                            const base::CancelToken* cancel, std::size_t threads) {
  return replica::Pull(files, store_, into,
                       {.version = target,
                        .seed = seed_,
                        .threads = threads,
                        .cancel = cancel,
                        .test_boot_id = BootId()});
}

Result<replica::UndoReport> World::Undo(FileSystem& files, const std::string& into) {
  return replica::Undo(files, into, {.threads = 1, .test_boot_id = BootId()});
}

Result<replica::VerifyReport> World::Verify(FileSystem& files, bool repair) const {
  return replica::Verify(
      files, replica_,
      {.repair = repair, .store = store_, .seed = seed_, .threads = 1, .test_boot_id = BootId()});
}

std::string World::BootId() const { return fmt::format("boot-{}", boots_); }

Status World::CutPower() {
  const std::uint64_t seed = dice_.Seed();
  SYNCLINE_TRY(power_->CutPower(seed));
  power_ = std::make_unique<base::PowerLossFileSystem>(FileSystem::Posix(), root_);
  ++boots_;
  Say(fmt::format("the power was cut (seed {})", seed));
  SayFiles(replica_ + "/.weight_sync");
  return {};
}

// Read as another program would.
Result<std::optional<std::uint64_t>> World::Marker() const {
  const auto text =
      base::ReadText(FileSystem::Posix(), replica_ + "/.weight_sync/state.json", 1 << 16);
  if (!text && text.error().code == base::Code::kNotFound) return std::nullopt;
  SYNCLINE_TRY(text);
  const auto json = base::ParseJson(*text);
  const base::Json* version = json ? json->Find("version") : nullptr;
  if (version == nullptr || version->string() == nullptr) return std::nullopt;
  return std::strtoull(version->string()->c_str(), nullptr, 10);
}

Status World::ExpectBytes(const std::string& directory, std::uint64_t version) const {
  Status status = ExpectBytes(directory, versions_[version]);
  if (status) return status;
  return Annotate(std::move(status).error(), fmt::format("should be version {}", version));
}

Status World::ExpectBytes(const std::string& directory, const Weights& weights) const {
  auto mapped = checkpoint::MappedCheckpoint::Open(FileSystem::Posix(), directory);
  if (!mapped) return Wrong(Told(mapped));
  const std::vector<tensor::TensorView> expected = model_.Views(weights);
  if (mapped->checkpoint().tensors().size() != expected.size()) {
    return Wrong(fmt::format("{} has {} tensors, expected {}", directory,
                             mapped->checkpoint().tensors().size(), expected.size()));
  }
  for (const tensor::TensorView& view : expected) {
    const checkpoint::CheckpointTensor* found = mapped->checkpoint().Find(view.name);
    if (found == nullptr || found->dtype != view.dtype || found->shape != view.shape ||
        !std::ranges::equal(mapped->Bytes(*found), view.bytes)) {
      return Wrong(fmt::format("{}: tensor {} has other bytes", directory, view.name));
    }
  }
  return {};
}

Status World::ExpectAt(std::uint64_t version) const {
  SYNCLINE_ASSIGN(const auto marker, Marker());
  if (marker != version) {
    return Wrong(fmt::format("the marker says {}, expected {}",
                             marker ? fmt::format("{}", *marker) : "nothing", version));
  }
  SYNCLINE_TRY(ExpectBytes(replica_, version));
  const auto verified = Verify(FileSystem::Posix(), false);
  if (!verified) return Wrong("verify says: " + Told(verified));
  if (verified->versions != std::vector<std::uint64_t>{version}) {
    return Wrong("verify saw another version");
  }
  return {};
}

Status World::ExpectHonest() const {
  SYNCLINE_ASSIGN(const auto marker, Marker());
  if (!marker) return {};
  if (*marker > newest()) return Wrong(fmt::format("the marker says {}", *marker));
  return ExpectBytes(replica_, *marker);
}

void World::SayFiles(const std::string& folder) const {
  if (!settings_.verbose) return;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder, ignored)) {
    const auto size = entry.is_regular_file() ? entry.file_size() : 0;
    Say(fmt::format("  {} {}", entry.path().string().substr(folder.size()), size));
  }
}

void World::Say(const std::string& text) const {
  if (settings_.verbose) fmt::print("  {}\n", text);
}

void CopyTree(const std::string& from, const std::string& to) {
  std::error_code ignored;
  std::filesystem::remove_all(to, ignored);
  std::filesystem::copy(from, to, std::filesystem::copy_options::recursive, ignored);
}

}  // namespace syncline::torture
