// 1. Withdraw the marker, durably.
// 2. Find what leads to the version that is held (plan.h), without the replica itself.
// 3. Files: write headers and other parts that no tensor covers, if the checkpoint at the plan's
//    start has the very same. Then look again: a file that could not be opened may have hidden
//    others that are damaged, and hides its tensors.
// 4. Tensors: take the start's bytes, let each delta change them, block by block, and write what
//    comes out. Where deltas have to be read together with those of other tensors, these are gone
//    through as well. The hash decides.
// 5. Sync, and publish the marker.
#include "replica/repair.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "replica/chain_tasks.h"
#include "replica/install.h"
#include "replica/plan.h"

namespace syncline::replica {
namespace {

using base::Code;
using base::Fail;
using base::FileSystem;
using base::Result;
using base::Status;
using checkpoint::Checkpoint;
using checkpoint::CheckpointTensor;
using store::Version;

// Files that cannot be opened, files that do not fit together, what no tensor covers.
constexpr int kMaxRounds = 3;

class Repairer {
 public:
  Repairer(const ReplicaState& state, const Head& head, store::Source& source)
      : state_(state), head_(head), source_(source) {}

  // Step 2.
  Status OpenStart(const std::string& seed) {
    const std::uint64_t version = head_.held.version;
    if (version != 0 || seed.empty()) {
      SYNCLINE_ASSIGN(const bool same, IsHeld(source_, head_.held, nullptr));
      if (!same) {
        return Fail(Code::kOutOfOrder, fmt::format("version {} of {} is another one than {} holds",
                                                   version, source_.url(), state_.directory()));
      }
    }
    // All of the way is read but few tensors of it, so folds, which may be bad, save little.
    auto planned = MakePlan(source_, version, nullptr, seed, {.use = false});
    const bool broken = !planned && planned.error().code == Code::kNotFound;
    if (broken) planned = MakePlan(source_, version, nullptr, seed);
    if (!planned) return std::unexpected(std::move(planned).error());
    const Plan& plan = *planned;
    start_files_ = &source_.files();
    std::string directory = plan.start.directory;
    if (plan.kind == Plan::Start::kSeed) {
      start_files_ = &state_.files();
      directory = plan.seed;
    } else if (plan.kind == Plan::Start::kFullCopy) {
      directory = base::JoinPath(directory, store::kFullCopyFolder);
    }
    SYNCLINE_ASSIGN(start_, Checkpoint::Open(*start_files_, directory));
    for (const store::Described& described : plan.deltas) {
      SYNCLINE_ASSIGN(Version delta, store::ReadVersionIn(source_.files(), source_.path(),
                                                          described.folder, described.number));
      deltas_.push_back(std::move(delta));
    }
    return {};
  }

  // Step 3.
  Status RepairFile(const std::string& name) {
    const auto wanted = head_.rests.find(name);
    const std::string from = base::JoinPath(start_->directory(), name);
    const std::string to = base::JoinPath(state_.directory(), name);
    const auto cannot = [&] {
      return Fail(Code::kCorrupt,
                  fmt::format("{} is damaged, and {} is not the file that it came from", to, from));
    };
    if (wanted == head_.rests.end()) return cannot();
    touched_.insert(name);
    ++report_.files;
    SYNCLINE_TRY(MakeFolder(name));
    const auto weights = std::ranges::find(start_->files(), name, &Checkpoint::WeightFile::name);
    if (weights == start_->files().end()) return RepairWhole(from, to, wanted->second, cannot);
    const auto number = static_cast<std::size_t>(weights - start_->files().begin());
    SYNCLINE_ASSIGN(const std::string rest, HashRest(*start_files_, *start_, number));
    if (rest != wanted->second) return cannot();
    SYNCLINE_ASSIGN(const auto in, start_files_->Open(from, base::OpenMode::kRead));
    SYNCLINE_ASSIGN(const bool there, base::Exists(state_.files(), to));
    SYNCLINE_ASSIGN(const auto out, state_.files().Open(to, there ? base::OpenMode::kReadWrite
                                                                  : base::OpenMode::kCreateNew));
    SYNCLINE_TRY(out->Allocate(weights->bytes));
    for (const auto& [begin, end] : UncoveredRanges(*start_, number)) {
      SYNCLINE_TRY(base::CopyRange(*in, begin, *out, begin, end - begin));
      report_.bytes_read += end - begin;
    }
    return {};
  }

  // Step 4. Heals the tensors of `names`.
  Status RepairTensors(const Checkpoint& replica, const std::vector<std::string>& names,
                       base::Progress& progress, const base::CancelToken* cancel) {
    std::vector<std::unique_ptr<store::DeltaReader>> readers;
    for (const Version& version : deltas_) {
      SYNCLINE_ASSIGN(auto reader, store::DeltaReader::Open(source_.files(), version, {}));
      readers.push_back(std::move(reader));
    }
    const ChainTasks tasks(readers);
    const std::set<std::string, std::less<>> wanted(names.begin(), names.end());
    std::set<std::string, std::less<>> left = wanted;
    for (const std::vector<std::size_t>& task : tasks.tasks) {
      const auto is_wanted = [&](std::size_t i) { return wanted.contains(tasks.tensors[i].name); };
      if (std::ranges::none_of(task, is_wanted)) continue;
      ChainPatches patches(readers);
      for (const std::size_t i : task) {
        if (cancel != nullptr) SYNCLINE_TRY(cancel->Check());
        SYNCLINE_TRY(BeginPatches(patches, tasks, i));
        SYNCLINE_TRY(
            RepairTensor(replica, tasks.tensors[i].name, &patches, is_wanted(i), progress));
        left.erase(tasks.tensors[i].name);
      }
    }
    for (const std::string& name : left) {
      if (cancel != nullptr) SYNCLINE_TRY(cancel->Check());
      SYNCLINE_TRY(RepairTensor(replica, name, nullptr, true, progress));
    }
    return {};
  }

  Status Sync(base::ThreadPool& pool) const {
    SYNCLINE_TRY(SyncFiles(state_.files(), state_.directory(), touched_, pool));
    for (const std::string& folder : folders_) {
      SYNCLINE_TRY(state_.files().SyncDirectory(folder));
    }
    return {};
  }

  const RepairReport& report() const { return report_; }

 private:
  // The folder of a file that is healed may be gone with it.
  Status MakeFolder(const std::string& name) {
    folders_.insert(state_.directory());
    for (std::size_t slash = name.find('/'); slash != std::string::npos;
         slash = name.find('/', slash + 1)) {
      const std::string folder = base::JoinPath(state_.directory(), name.substr(0, slash));
      SYNCLINE_TRY(state_.files().MakeDirectories(folder));
      folders_.insert(folder);
    }
    return {};
  }

  template <typename Cannot>
  Status RepairWhole(const std::string& from, const std::string& to, const std::string& hash,
                     const Cannot& cannot) {
    const auto text = base::ReadText(*start_files_, from, std::uint64_t{1} << 30);
    if (!text && text.error().code != Code::kNotFound) return std::unexpected(text.error());
    if (!text || tensor::HashHex(tensor::HashKind::kXxh3, base::AsBytes(*text)) != hash) {
      return cannot();
    }
    report_.bytes_read += text->size();
    return base::WriteTextAtomically(state_.files(), to, *text, true);
  }

  Status BeginPatches(ChainPatches& patches, const ChainTasks& tasks, std::size_t tensor) const {
    std::string missing;
    SYNCLINE_TRY(patches.Begin(tasks, tensor, [&](std::size_t i) {
      const CheckpointTensor* from = start_->Find(tasks.tensors[i].name);
      if (from == nullptr) missing = tasks.tensors[i].name;
      return from == nullptr ? store::DeltaReader::Target()
                             : store::DeltaReader::Target{from->bytes, from->dtype};
    }));
    if (missing.empty()) return {};
    return Fail(Code::kCorrupt,
                fmt::format("tensor {} is not in {}", missing, start_->directory()));
  }

  // `patches` (may be null) take the start's tensor to what it is to become; without `write` that is
  // all that happens.
  Status RepairTensor(const Checkpoint& replica, const std::string& name, ChainPatches* patches,
                      bool write, base::Progress& progress) {
    const CheckpointTensor* from = start_->Find(name);
    const CheckpointTensor* to = replica.Find(name);
    const auto hash = head_.hashes.find(name);
    if (from == nullptr || to == nullptr || hash == head_.hashes.end() ||
        to->bytes != from->bytes || to->dtype != from->dtype) {
      return Fail(Code::kCorrupt, fmt::format("{}: tensor {} is not in {} as it is needed",
                                              state_.directory(), name, start_->directory()));
    }
    SYNCLINE_ASSIGN(const auto in,
                    start_files_->Open(start_->FilePath(from->file), base::OpenMode::kRead));
    SYNCLINE_ASSIGN(const auto out,
                    state_.files().Open(replica.FilePath(to->file), base::OpenMode::kReadWrite));
    std::vector<std::byte> image(delta::kBlockBytes);
    for (std::uint64_t at = 0; at < to->bytes; at += delta::kBlockBytes) {
      const auto part =
          std::span(image).first(std::min<std::uint64_t>(delta::kBlockBytes, to->bytes - at));
      SYNCLINE_TRY(base::ReadExactly(*in, part, from->offset + at));
      report_.bytes_read += part.size();
      if (patches != nullptr) {
        SYNCLINE_ASSIGN(const delta::BlockPatch* block, patches->Next(part));
        block->Put(part);
      }
      if (write) SYNCLINE_TRY(out->WriteAt(part, to->offset + at));
    }
    if (patches != nullptr) SYNCLINE_TRY(patches->Finish());
    if (!write) return {};
    touched_.insert(replica.files()[to->file].name);
    progress.Add(to->bytes);
    SYNCLINE_ASSIGN(const std::string now,
                    HashRange(*out, to->offset, to->bytes, hash->second.kind));
    ++report_.tensors;
    if (now == hash->second.hex) return {};
    return Fail(Code::kChecksumMismatch,
                fmt::format("{}: tensor {} could not be healed: what {} leads to has the hash {}, "
                            "expected {}",
                            state_.directory(), name, source_.url(), now, hash->second.hex));
  }

  const ReplicaState& state_;
  const Head& head_;
  store::Source& source_;
  FileSystem* start_files_ = nullptr;
  std::optional<Checkpoint> start_;
  std::vector<Version> deltas_;
  std::set<std::string> touched_;  // files
  std::set<std::string> folders_;  // of files that were written anew
  RepairReport report_;
};

}  // namespace

Result<RepairReport> Repair(const ReplicaState& state, const Head& head, Damage damage,
                            store::Source& source, const std::string& seed, base::ThreadPool& pool,
                            base::Progress& progress, const base::CancelToken* cancel) {
  SYNCLINE_TRY(state.WithdrawMarker());
  Repairer repairer(state, head, source);
  SYNCLINE_TRY(repairer.OpenStart(seed));
  for (int round = 1; true; ++round) {
    for (const std::string& name : damage.files) SYNCLINE_TRY(repairer.RepairFile(name));
    for (const std::string& name : damage.companions) SYNCLINE_TRY(repairer.RepairFile(name));
    if (damage.files.empty()) break;
    if (round > kMaxRounds) {
      return Fail(Code::kCorrupt, fmt::format("{}: {} could not be healed", state.directory(),
                                              fmt::join(damage.files, ", ")));
    }
    SYNCLINE_ASSIGN(damage, FindDamage(state, head, nullptr, pool, progress, cancel));
  }
  SYNCLINE_ASSIGN(const Checkpoint replica, Checkpoint::Open(state.files(), state.directory()));
  const auto bytes_of = [&](const std::string& name) {
    const CheckpointTensor* tensor = replica.Find(name);
    return tensor == nullptr ? 0 : tensor->bytes;
  };
  std::uint64_t total = 0;
  for (const std::string& name : damage.tensors) total += bytes_of(name);
  progress.Begin("repair", total);
  SYNCLINE_TRY(repairer.RepairTensors(replica, damage.tensors, progress, cancel));
  SYNCLINE_TRY(repairer.Sync(pool));
  SYNCLINE_TRY(state.WriteHead(head));
  SYNCLINE_TRY(state.PublishMarker(head.held));
  return repairer.report();
}

}  // namespace syncline::replica
