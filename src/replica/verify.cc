#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>

#include "checkpoint/checkpoint.h"
#include "delta/patch.h"
#include "replica/hash_tensors.h"
#include "replica/replica.h"
#include "replica/state.h"
#include "store/manifest.h"
#include "store/version.h"

namespace syncline::replica {
namespace {

using base::Code;
using base::Fail;
using base::FileSystem;
using base::Result;
using base::Status;
using checkpoint::Checkpoint;
using store::DeltaTensor;
using store::Version;

class Verifier {
 public:
  Verifier(FileSystem& files, const std::string& path, const VerifyOptions& options)
      : files_(files),
        path_(path),
        options_(options),
        progress_(options.progress != nullptr ? *options.progress : no_progress_),
        pool_(options.threads) {}

  Result<VerifyReport> Run() {
    const auto begin = std::chrono::steady_clock::now();
    SYNCLINE_ASSIGN(const base::FileInfo info, files_.Stat(path_));
    std::vector<std::uint64_t> versions;
    bool replica = false;
    if (info.kind == base::FileInfo::Kind::kDirectory) {
      SYNCLINE_ASSIGN(versions, store::ListVersions(files_, path_));
      SYNCLINE_ASSIGN(replica, ReplicaState(files_, path_).IsReplica());
    }
    if (!versions.empty()) {
      SYNCLINE_TRY(VerifyStore(versions));
    } else if (replica) {
      SYNCLINE_TRY(VerifyReplica());
    } else {
      SYNCLINE_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(files_, path_));
      Count(checkpoint);
    }
    report_.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return std::move(report_);
  }

 private:
  void Count(const Checkpoint& checkpoint) {
    report_.tensors += checkpoint.tensors().size();
    for (const auto& file : checkpoint.files()) report_.bytes += file.bytes;
  }

  Status VerifyStore(std::vector<std::uint64_t> versions) {
    report_.kind = VerifyReport::Kind::kStore;
    const std::vector<std::uint64_t> all = versions;
    if (options_.version) {
      if (!std::ranges::binary_search(all, *options_.version)) {
        return Fail(Code::kNotFound,
                    fmt::format("version {} is not in {}", *options_.version, path_));
      }
      versions = {*options_.version};
    }
    for (const std::uint64_t number : versions) {
      SYNCLINE_ASSIGN(const Version version, store::ReadVersion(files_, path_, number));
      if (Status status = VerifyVersion(version); !status) {
        return Annotate(std::move(status).error(), fmt::format("version {}", number));
      }
      if (version.delta && version.delta->base_version != 0 &&
          !std::ranges::binary_search(all, version.delta->base_version)) {
        return Fail(Code::kOutOfOrder, fmt::format("version {} builds on version {}, which is not "
                                                   "in {}",
                                                   number, version.delta->base_version, path_));
      }
      report_.versions.push_back(number);
    }
    return {};
  }

  Status VerifyVersion(const Version& version) {
    SYNCLINE_ASSIGN(const auto manifest, store::ReadManifest(files_, version.directory));
    if (manifest) {
      SYNCLINE_TRY(store::CheckFiles(files_, version.directory, manifest->manifest,
                                     store::Part::kAll, true, pool_, options_.cancel));
    }
    if (!version.delta) {
      SYNCLINE_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(files_, version.directory));
      Count(checkpoint);
      return {};
    }
    std::uint64_t total = 0;
    for (const DeltaTensor& delta : version.tensors) total += delta.bytes;
    progress_.Begin("check", total);
    SYNCLINE_TRY(pool_.ParallelFor(
        version.tensors.size(),
        [&](std::size_t i) -> Status {
          const DeltaTensor& delta = version.tensors[i];
          const std::string path = base::JoinPath(version.directory, version.files[delta.file]);
          SYNCLINE_ASSIGN(const auto file, files_.Open(path, base::OpenMode::kRead));
          std::vector<std::byte> frame(delta.bytes);
          SYNCLINE_TRY(base::ReadExactly(*file, frame, delta.offset));
          auto checked = delta::CheckFrame(version.delta->encoding, frame);
          if (!checked) {
            return Annotate(std::move(checked).error(),
                            fmt::format("{}: tensor {}", path, delta.name));
          }
          progress_.Add(delta.bytes);
          return {};
        },
        options_.cancel));
    report_.tensors += version.tensors.size();
    report_.bytes += total;
    return {};
  }

  Status VerifyReplica() {
    report_.kind = VerifyReport::Kind::kReplica;
    const ReplicaState state(files_, path_);
    SYNCLINE_ASSIGN(const auto lock, state.Lock(base::LockMode::kShared, options_.cancel));
    SYNCLINE_ASSIGN(const std::optional<std::uint64_t> version, state.ReadMarker());
    if (!version) {
      return Fail(
          Code::kCorrupt,
          fmt::format("{} holds no whole version: the last pull did not end; pull again", path_));
    }
    if (options_.version && *options_.version != *version) {
      return Fail(Code::kOutOfOrder, fmt::format("{} is at version {}, expected {}", path_,
                                                 *version, *options_.version));
    }
    SYNCLINE_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(files_, path_));
    Count(checkpoint);
    report_.versions = {*version};
    SYNCLINE_ASSIGN(const std::optional<Head> head, state.ReadHead(*version));
    if (!head) return {};  // made by another program: there is nothing to compare with
    for (const auto& [name, hash] : head->hashes) {
      if (checkpoint.Find(name) == nullptr) {
        return Fail(Code::kCorrupt,
                    fmt::format("{}: tensor {} of version {} is missing", path_, name, *version));
      }
    }
    SYNCLINE_ASSIGN(const std::vector<std::string> wrong,
                    FindWrongTensors(files_, checkpoint, *head, pool_, progress_, options_.cancel));
    report_.tensors_hashed = checkpoint.tensors().size();
    if (wrong.empty()) return {};
    return Fail(Code::kChecksumMismatch,
                fmt::format("{}: checksum mismatch for {} tensors of version {}: {}", path_,
                            wrong.size(), *version, fmt::join(wrong, ", ")));
  }

  FileSystem& files_;
  const std::string& path_;
  const VerifyOptions& options_;
  base::Progress no_progress_;
  base::Progress& progress_;
  base::ThreadPool pool_;
  VerifyReport report_;
};

}  // namespace

Result<VerifyReport> Verify(FileSystem& files, const std::string& path,
                            const VerifyOptions& options) {
  Verifier verifier(files, path, options);
  return verifier.Run();
}

}  // namespace syncline::replica
