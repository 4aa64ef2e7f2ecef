// What a replica knows of itself: the marker that it shares with SGLang, and our own head file with
// the hashes behind it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "base/file.h"
#include "base/json.h"
#include "tensor/digest.h"
#include "tensor/hash.h"

namespace syncline::replica {

// The content hash of a tensor, by the kind that the version which last changed it used.
struct TensorHash {
  tensor::HashKind kind = tensor::HashKind::kXxh3;
  std::string hex;
  bool operator==(const TensorHash&) const = default;
};

// A version as a replica holds it.
struct HeldVersion {
  std::uint64_t version = 0;
  // 32 random hex digits, drawn when it came; the marker repeats them, so that a marker of another
  // program, or of another apply, is told from ours.
  std::string token;
  std::string run;       // of the store's manifest; empty where it is not known
  std::string identity;  // of the version (store/source.h); empty: a seed outside of any store
  bool operator==(const HeldVersion&) const = default;
};

struct Head {
  HeldVersion held;
  // Of the boot in which it was written. Data is synced later than it is changed, so what a machine
  // held before it went down has to be looked at again.
  std::string boot_id;
  std::string source;  // URL of the store that it came from, and the seed's path; for repairs
  std::string seed;
  std::string stamp;  // of the full version that is held (store/source.h); empty: it is none
  std::map<std::string, TensorHash, std::less<>> hashes;  // of every tensor
  // Of the tensors whose digest is known, because the delta that last changed them carried it.
  std::map<std::string, tensor::Digest, std::less<>> digests;
  // xxh3-128 of what no tensor covers, of every file: a weight file's header, all of another file.
  std::map<std::string, std::string, std::less<>> rests;

  // Tensor `name` has changed to what these stand for.
  void SetTensor(const std::string& name, TensorHash hash, std::optional<tensor::Digest> digest);
};

struct Marker {
  std::uint64_t version = 0;
  std::string token;  // empty: written by another program
  bool operator==(const Marker&) const = default;
};

// The folder `.weight_sync` of a replica directory:
//   state.json      the marker, {"version": "000007", "syncline": "<token>"}: the replica is whole
//                   and at that version. Shared with SGLang, which writes and reads "version" only.
//   lock            flock: exclusive while the replica changes, shared while it is read. Shared
//                   with SGLang.
//   syncline.json   our head file. Belongs to the marker only if it has its version and token.
//   journal/000007  the journal of the apply that led to version 7 (journal.h)
//   changes.jsonl   the change record (changes.h)
//   incoming/       a checkpoint on its way in
//   previous/       the files that the last pull replaced, for undo
//   fetch/          what was fetched of versions in other places
// A name with ".tmp" in it is a left-over; the next pull removes it.
class ReplicaState {
 public:
  // boot_id: what to take for the running kernel's; empty: its own.
  ReplicaState(base::FileSystem& files, std::string directory, std::string boot_id = "");

  base::FileSystem& files() const { return files_; }
  const std::string& directory() const { return directory_; }
  std::string Path(std::string_view name) const;  // inside .weight_sync

  // Is there a .weight_sync folder?
  base::Result<bool> IsReplica() const;
  // Waits for it until `cancel` is set.
  base::Result<std::unique_ptr<base::FileLock>> Lock(base::LockMode mode,
                                                     const base::CancelToken* cancel) const;

  // Nothing: no whole version is here. A marker that cannot be read counts as none.
  base::Result<std::optional<Marker>> ReadMarker() const;
  // Is durable when it returns.
  base::Status WithdrawMarker() const;
  base::Status PublishMarker(const HeldVersion& held, bool durable = false) const;

  // Nothing: there is none, or it is damaged.
  base::Result<std::optional<Head>> ReadHead() const;
  // Readers see the old or the new one, also after a power cut.
  base::Status WriteHead(const Head& head) const;
  // The same for a head that is kept elsewhere.
  base::Result<std::optional<Head>> ReadHeadFile(const std::string& path) const;
  base::Status WriteHeadFile(const std::string& path, const Head& head) const;

  // Identity of the running kernel's boot; empty where the system has none.
  const std::string& boot_id() const { return boot_id_; }

 private:
  base::FileSystem& files_;
  std::string directory_;
  std::string boot_id_;
};

// 32 random hex digits.
std::string DrawToken();

// {"version": 7, "token": …, "run": …, "identity": …}, and back; nothing where that is no such
// object.
base::Json::Object HeldJson(const HeldVersion& held);
std::optional<HeldVersion> ParseHeld(const base::Json* json);
// "xxh3-128:0123…"
std::string HashText(const TensorHash& hash);
std::optional<TensorHash> ParseHash(const base::Json& json);

}  // namespace syncline::replica
