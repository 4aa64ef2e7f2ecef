// What a replica knows of itself: the marker that it shares with SGLang, and our own head file with
// the hashes behind it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/cancel.h"
#include "base/file.h"
#include "tensor/hash.h"

namespace syncline::replica {

// The content hash of a tensor, by the kind that the version which last changed it used.
struct TensorHash {
  tensor::HashKind kind = tensor::HashKind::kXxh3;
  std::string hex;
};

struct Head {
  std::uint64_t version = 0;
  // Of the boot in which it was written. Data is not synced, so what a machine held before it went
  // down has to be hashed again.
  std::string boot_id;
  std::map<std::string, TensorHash, std::less<>> hashes;  // of every tensor
};

// The folder `.weight_sync` of a replica directory:
//   state.json      the marker, {"version": "000007"}: the replica is whole and at that version.
//                   Shared with SGLang.
//   lock            flock: exclusive while the replica changes, shared while it is read. Shared
//                   with SGLang.
//   syncline.json   our head file. Belongs to the marker only if it names the same version.
//   incoming/, changes.tmp   left-overs of a pull that did not end; removed by the next one.
class ReplicaState {
 public:
  ReplicaState(base::FileSystem& files, std::string directory);

  const std::string& directory() const { return directory_; }
  std::string Path(std::string_view name) const;  // inside .weight_sync

  // Is there a .weight_sync folder?
  base::Result<bool> IsReplica() const;
  // Waits for it until `cancel` is set.
  base::Result<std::unique_ptr<base::FileLock>> Lock(base::LockMode mode,
                                                     const base::CancelToken* cancel) const;

  // Nothing: no whole version is here. A marker that cannot be read counts as none.
  base::Result<std::optional<std::uint64_t>> ReadMarker() const;
  base::Status WithdrawMarker() const;
  base::Status PublishMarker(std::uint64_t version) const;

  // Nothing: no head file, or one that cannot be read, or one of another version than `version`.
  base::Result<std::optional<Head>> ReadHead(std::uint64_t version) const;
  base::Status WriteHead(const Head& head) const;

  // Identity of the running kernel's boot; empty where the system has none.
  std::string BootId() const;

 private:
  base::FileSystem& files_;
  std::string directory_;
};

}  // namespace syncline::replica
