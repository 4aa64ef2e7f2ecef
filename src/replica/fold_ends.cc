#include "replica/fold_ends.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "checkpoint/checkpoint.h"
#include "replica/hash_tensors.h"
#include "replica/plan.h"
#include "replica/replica.h"
#include "replica/seed.h"

namespace syncline::replica {
namespace {

using base::Code;
using base::Fail;
using base::Result;
using base::Status;
using checkpoint::Checkpoint;
using store::Described;

}  // namespace

Result<std::string> FoldEnds::FindIdentity(std::uint64_t from, const Described& to,
                                           const std::string& base) {
  SYNCLINE_ASSIGN(const bool there, source_.Has(from));
  if (there) {
    SYNCLINE_ASSIGN(const Described version, source_.Describe(from));
    if (!version.manifest) {
      return Fail(Code::kIncompatible,
                  fmt::format("version {} of {} has no manifest: only what our publisher made can "
                              "be folded",
                              from, source_.url()));
    }
    return version.identity;
  }
  // Down the bases: the version after `from` says what it was made on.
  std::optional<Described> at = to;
  while (at->delta && at->delta->base_version > from) {
    SYNCLINE_ASSIGN(const bool next, source_.Has(at->delta->base_version));
    if (!next) break;
    SYNCLINE_ASSIGN(at, source_.Describe(at->delta->base_version));
  }
  if (at->delta && at->delta->base_version == from && at->manifest) {
    const std::string& parent = at->manifest->manifest.parent;
    if (!parent.empty() || from == 0) return parent;
  }
  if (!base.empty()) {
    SYNCLINE_ASSIGN(const auto head, ReplicaState(files_, base).ReadHead());
    const bool same = head && head->held.version == from && !head->held.identity.empty() &&
                      head->held.run == to.manifest->manifest.run;
    if (same) return head->held.identity;
  }
  if (from == 0) return std::string();
  return Fail(Code::kNotFound,
              fmt::format("version {} is not in {}, which does not know any more which one it was; "
                          "give a replica that holds it as base",
                          from, source_.url()));
}

// What the store says of the tensors of a version: by it, and by what it builds on.
Result<KnownHashes> FoldEnds::HashesOf(std::uint64_t version) {
  KnownHashes hashes;
  std::uint64_t at = version;
  while (true) {
    SYNCLINE_ASSIGN(const bool there, source_.Has(at));
    if (!there) return hashes;
    SYNCLINE_ASSIGN(const Described described, source_.Describe(at));
    if (!described.delta) {
      if (!described.manifest) return hashes;
      for (const store::ManifestTensor& tensor : described.manifest->manifest.tensors) {
        hashes.emplace(tensor.name, TensorHash{tensor::HashKind::kXxh3, tensor.hash});
      }
      return hashes;
    }
    SYNCLINE_ASSIGN(const store::Version delta,
                    store::ReadVersion(source_.files(), source_.path(), at));
    for (const store::DeltaTensor& tensor : delta.tensors) {
      hashes.emplace(tensor.name, TensorHash{delta.delta->checksum, tensor.hash});
    }
    at = described.delta->base_version;
  }
}

Status FoldEnds::CheckHashes(const std::string& path, const KnownHashes& known,
                             std::uint64_t version) {
  SYNCLINE_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(files_, path));
  const KindOf kind_of = [&](const std::string& name) -> std::optional<tensor::HashKind> {
    const auto found = known.find(name);
    return found == known.end() ? std::nullopt : std::optional(found->second.kind);
  };
  SYNCLINE_ASSIGN(const std::vector<TensorHash> hashes,
                  HashTensors(files_, checkpoint, kind_of, nullptr, pool_, progress_, cancel_));
  std::vector<std::string> wrong;
  for (const auto& [name, hash] : known) {
    if (checkpoint.Find(name) == nullptr) {
      return Fail(Code::kOutOfOrder, fmt::format("{} is not version {} of {}: it has no tensor {}",
                                                 path, version, source_.url(), name));
    }
  }
  std::string first;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    const std::string& name = checkpoint.tensors()[i].name;
    const auto found = known.find(name);
    if (found == known.end() || found->second.hex == hashes[i].hex) continue;
    if (wrong.empty()) {
      first = fmt::format("{} has the {} {}, expected {}", name, Name(hashes[i].kind),
                          hashes[i].hex, found->second.hex);
    }
    wrong.push_back(name);
  }
  if (wrong.empty()) return {};
  return Fail(Code::kChecksumMismatch,
              fmt::format("{} is not version {} of {}: {} tensors differ: {}; {}", path, version,
                          source_.url(), wrong.size(), fmt::join(wrong, ", "), first));
}

Result<FoldEnd> FoldEnds::FromBase(const std::string& base, const HeldVersion& held) {
  FoldEnd end{.path = base, .hashes = {}, .lock = nullptr};
  const ReplicaState state(files_, base);
  SYNCLINE_ASSIGN(const bool replica, state.IsReplica());
  if (replica) {
    SYNCLINE_ASSIGN(end.lock, state.Lock(base::LockMode::kShared, cancel_));
    SYNCLINE_ASSIGN(const auto marker, state.ReadMarker());
    if (!marker || marker->version != held.version) {
      return Fail(Code::kOutOfOrder, fmt::format("{} holds {}, expected version {}", base,
                                                 marker ? fmt::format("version {}", marker->version)
                                                        : std::string("no whole version"),
                                                 held.version));
    }
    SYNCLINE_ASSIGN(const auto head, state.ReadHead());
    const bool ours = head && !marker->token.empty() && head->held.token == marker->token;
    if (ours && !head->held.identity.empty() && !held.identity.empty() &&
        head->held.identity != held.identity) {
      return Fail(
          Code::kOutOfOrder,
          fmt::format("{} holds another version {} than {} has: {:.12}…, expected {:.12}…", base,
                      held.version, source_.url(), head->held.identity, held.identity));
    }
    if (ours) end.hashes = head->hashes;
  }
  SYNCLINE_ASSIGN(KnownHashes known, HashesOf(held.version));
  for (auto& [name, hash] : known) end.hashes.insert_or_assign(name, std::move(hash));
  SYNCLINE_TRY(CheckHashes(base, end.hashes, held.version));
  return end;
}

// A version that lies in a directory as a checkpoint.
Result<std::optional<FoldEnd>> FoldEnds::InPlace(std::uint64_t number) {
  if (!source_.is_directory()) return std::nullopt;
  SYNCLINE_ASSIGN(const Described version, source_.Describe(number));
  if (version.delta || !version.manifest) return std::nullopt;
  SYNCLINE_TRY(store::CheckFiles(files_, version.directory, version.manifest->manifest,
                                 store::Part::kVersion, true, pool_, cancel_));
  FoldEnd end{.path = version.directory, .hashes = {}, .lock = nullptr};
  SYNCLINE_ASSIGN(end.hashes, HashesOf(number));
  return end;
}

Result<FoldEnd> FoldEnds::PullInto(const std::string& directory, std::uint64_t version) {
  const PullOptions pull = {.version = version,
                            .seed = {},
                            .threads = threads_,
                            .progress = &progress_,
                            .cancel = cancel_,
                            .source = options_,
                            .test_boot_id = {}};
  SYNCLINE_TRY(Pull(files_, source_.url(), directory, pull));
  SYNCLINE_ASSIGN(const auto head, ReplicaState(files_, directory).ReadHead());
  if (!head) return Fail(Code::kCorrupt, fmt::format("{} cannot be read back", directory));
  return FoldEnd{.path = directory, .hashes = head->hashes, .lock = nullptr};
}

Result<FoldEnd> FoldEnds::FromStore(std::uint64_t version) {
  const auto plan = MakePlan(source_, version, nullptr, "");
  if (!plan && plan.error().code == Code::kNotFound) {
    return Fail(Code::kNotFound,
                fmt::format("{}; give the checkpoint or replica that is version {} as base",
                            plan.error().message, version));
  }
  if (!plan) return std::unexpected(plan.error());
  if (plan->deltas.empty()) {
    SYNCLINE_ASSIGN(std::optional<FoldEnd> there, InPlace(version));
    if (there) return *std::move(there);
  }
  return PullInto(base::JoinPath(scratch_, "base"), version);
}

Result<FoldEnd> FoldEnds::Follow(std::uint64_t version, const FoldEnd& from,
                                 const HeldVersion& held) {
  SYNCLINE_ASSIGN(std::optional<FoldEnd> there, InPlace(version));
  if (there) return *std::move(there);
  // A replica that holds `from`, and then follows the store.
  const std::string directory = base::JoinPath(scratch_, "target");
  const ReplicaState state(files_, directory);
  SYNCLINE_TRY(files_.MakeDirectories(state.Path("")));
  {
    SYNCLINE_ASSIGN(const auto lock, state.Lock(base::LockMode::kExclusive, cancel_));
    Seeder seeder(state);
    SYNCLINE_TRY(seeder.Bring(from.path,
                              {.to = held, .source = source_.url(), .seed = {}, .stamp = {}},
                              nullptr, store::Part::kVersion, pool_, progress_, cancel_));
    SYNCLINE_TRY(seeder.Swap());
  }
  return PullInto(directory, version);
}

}  // namespace syncline::replica
