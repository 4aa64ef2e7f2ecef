// Changes the weights of a running engine, all or nothing on all of its ranks, and reads them back.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "checker/checker.h"
#include "engine/engine.h"
#include "payload/payload.h"
#include "tensor/digest.h"
#include "tensor/dtype.h"
#include "update/group_tensors.h"
#include "update/groups.h"
#include "update/rank_weights.h"
#include "update/runner.h"
#include "update/selector.h"

namespace syncline::model {
class Model;
}
namespace syncline::ranks {
class Leader;
}

namespace syncline::update {

struct DiskUpdate {
  std::string path;  // checkpoint directory, the same on all hosts
  std::optional<std::string> weight_version;
  bool flush_cache = true;
};

struct UpdateReport {
  std::uint64_t tensors = 0;
  std::uint64_t skipped = 0;  // that a rule leaves out
  std::uint64_t bytes = 0;    // that all ranks hold together
  bool unchanged = false;     // they are what was live already, on every rank
  // False: more than the undo memory holds was written in place, so a failure from here on leaves
  // the engine without a whole version.
  bool undoable = true;
  // Outside a session: tensors that wait for the rest of their pair (a weight for its scale).
  std::vector<std::string> pending;
  double stage_seconds = 0;  // reading and checking, while the engine may go on
  double apply_seconds = 0;  // in which no forward can run
};

// Is a session needed for updates from tensors?
enum class SessionRule : std::uint8_t {
  kRequired,  // an update without one is refused
  kOptional,  // is a transaction of its own
  kIgnored,   // begin and end do nothing, every update is a transaction of its own
};

struct BeginRequest {
  Selector selector = Selector::kAll;
  bool sync_base = true;  // false: only adapters will come, base tensors are refused
};

struct EndRequest {
  bool abort = false;  // undo all of it
};

// Memory that can be given back to the system.
struct MemoryParts {
  bool kv_cache = false;
  bool weights = false;
};

struct SessionState {
  bool open = false;
  Selector selector = Selector::kAll;
  bool loaded = false;                        // something came in a message
  bool open_for_writes = false;               // trainers write straight into the parameters
  std::optional<std::string> weight_version;  // that the end will set
  std::optional<std::string> failure;         // the end will undo the session, for this reason
  // Outside a session: what waits for the rest of its pair. Nothing is generated meanwhile.
  std::vector<std::string> pending;
  // The engine holds no whole version (an update in place failed, or the weights were released and
  // have not all come since): it refuses to generate.
  std::optional<std::string> incomplete;
  MemoryParts released;
  // The engine was started to wait for weights, and none have come: it refuses to generate.
  bool awaiting = false;
};

struct TensorUpdate {
  // By rank; one for all ranks only in the formats that bring bytes (safetensors).
  std::vector<std::vector<std::byte>> payloads;
  // Not 0: there are no payloads, the tensors came another way (groups.h) and lie on every rank.
  std::uint64_t ticket = 0;
  // Not empty: no payloads; producers of checkpoint-engine send the tensors over these, by rank.
  std::vector<std::string> endpoints;
  std::string route = "update_weights_from_tensor";  // for messages
  payload::Format format = payload::Format::kPlain;
  bool direct = false;  // names are those of the engine's parameters, in their load layout
  std::optional<std::string> weight_version;
  bool flush_cache = true;
  std::optional<Selector> selector;  // nothing: that of the session, else all
};

struct GroupUpdate {
  GroupTensors tensors;
  std::optional<std::string> weight_version;
  bool flush_cache = true;
  std::optional<Selector> selector;
  // Not empty: it must not be done, for this reason, but its tensors come all the same.
  std::string refusal;
};

struct CheckRequest {
  enum class Action : std::uint8_t { kSnapshot, kReset, kCompare, kChecksum };
  Action action = Action::kChecksum;
  Selector selector = Selector::kAll;
  checker::CheckOptions options;
};

struct RoleChecksums {
  std::string role;                   // "target", "draft", …
  checker::ChecksumReport checksums;  // names prefixed "<role>." but for the target's
};

struct CheckReport {
  // Of a compare: what failed, as SGLang words it: "check tensor equality failed:", then a line for
  // each tensor, with "rank R: " before it where there are several ranks. Empty: all is well.
  std::string message;
  std::uint64_t compared = 0;                     // entries over all ranks and runners
  std::vector<std::string> skipped;               // names that were left out; not of a snapshot
  std::vector<std::string> put_back;              // of a failed compare after a reset
  std::vector<std::vector<RoleChecksums>> ranks;  // of a checksum: by rank, then runner
};

// What a pull came to on one host.
struct HostPull {
  std::string host;
  std::uint32_t node_rank = 0;
  PullOutcome outcome;
};

struct ExportedTensor {
  std::string name;  // as in a checkpoint
  tensor::Dtype dtype = tensor::Dtype::kBF16;
  std::vector<std::uint64_t> shape;
  std::vector<std::byte> bytes;
};

// A version of a store to compare with.
struct DigestRequest {
  std::optional<std::uint64_t> version;  // nothing: compare with nothing
  std::string source;                    // store; empty: that of the last pull
};

struct DigestComparison {
  std::string source;
  std::uint64_t version = 0;
  std::string identity;                // of the version; empty: it has no manifest
  std::uint64_t equal = 0;             // tensors
  std::vector<std::string> different;  // names, also of tensors that only one of both has
  std::vector<std::string> unknown;    // names of which the store knows no digest
};

struct DigestReport {
  std::string weight_version;  // of the weights that the digests are of
  std::string model_path;
  struct Tensor {
    std::string name;
    tensor::Digest digest;
  };
  // Of the whole checkpoint tensors, in the plan's order; then those of drafts, "<role>." before
  // their names. Only the target's are compared with a version.
  std::vector<Tensor> tensors;
  std::vector<std::string> derived;  // by rank, see RankDigests
  std::optional<DigestComparison> comparison;
};

struct SeedReport {
  std::string weight_version;       // of what was sent
  std::vector<std::string> hashes;  // of the parameters as they lie in memory, by rank
};

// Thread-safe. Slow work runs on threads of its own; one update, one pull and one digest at a time,
// further ones wait in order. Callbacks come on those threads.
class Weights {
 public:
  struct Options {
    std::string launch_path;  // the checkpoint that the model was loaded from; version 0 of a pull
    ranks::Leader* leader = nullptr;  // of the other ranks; null: there are none
    std::string host = "localhost";   // what this host is called in replies
    std::vector<Runner> drafts;       // updated beside the model; the same on all ranks
    SessionRule sessions = SessionRule::kOptional;
    bool await_weights = false;  // generates nothing before the first update
    // Of each rank and runner: bytes that the second arena may hold. What goes beyond is written in
    // place. 0: everything is.
    std::uint64_t undo_memory = ~std::uint64_t{0};
    std::chrono::milliseconds session_timeout{0};  // without a message; 0: none
    // Trainers may write straight into the target's parameters in sessions (Offer); the transfer
    // engine of this rank.
    std::optional<transport::TransferEngineOptions> p2p;
    // As RankWeights::Options::backup_directory.
    std::string backup_directory;
    // Of joining a group of processes, of each transfer over it, and of each message of a producer.
    std::chrono::milliseconds transfer_timeout = std::chrono::seconds(300);
  };
  // All must outlive it.
  static std::unique_ptr<Weights> Create(base::FileSystem& files, engine::Engine& engine,
                                         model::Model& model, Options options);
  // As Cancel; an update that waits for the engine is waited for, so stop that first.
  virtual ~Weights() = default;

  // Ends pulls and reading on all hosts, for good: they answer kCancelled.
  virtual void Cancel() = 0;

  using Updated = std::function<void(base::Result<UpdateReport>)>;
  // Reads and checks the whole checkpoint on every rank beside the live weights; all ranks must have
  // read the same version of their hosts' replicas. Then, with no forward running, it becomes live
  // on every rank and runner. A failure before that leaves everything as it was; nothing after it can
  // fail but the whole group of ranks. What came in a session that is open is dropped; the
  // session goes on empty or, if the update failed, will fail at its end.
  virtual void FromDisk(DiskUpdate update, Updated done) = 0;

  // A session: Begin, any number of FromTensors, End. It is one transaction: what comes is made
  // ready beside the live weights, and End makes it live on all ranks and runners at once, with its
  // label. A failure inside undoes all of it at the end. Messages of the errors are those of
  // docs/http.md.
  //
  // Begin during a session with the same selector and sync_base starts it anew (what came is
  // dropped); with others it is kOutOfOrder. End is anyone's, and kOutOfOrder without a session.
  virtual void Begin(BeginRequest request, std::function<void(base::Status)> done) = 0;
  virtual void End(EndRequest request, Updated done) = 0;
  // Where such trainers write, by rank; the same for the life of this object. Sessions whose
  // selector covers the target are open for them from then on. Once, before any update; waits.
  virtual base::Result<std::vector<WindowInfo>> Offer() = 0;
  // To start another engine with the live weights of this one. Joins the groups on all ranks:
  // `done` with their ports once all have come, or at once where the ports were left to this
  // engine.
  virtual void OpenSeed(SeedGroups groups,
                        std::function<void(base::Result<std::vector<std::uint16_t>>)> done) = 0;
  // In the order of updates: the weights do not change meanwhile, and generation goes on.
  virtual void SendSeed(std::string name, std::function<void(base::Result<SeedReport>)> done) = 0;
  // The other side, before the model is used; waits. `expected` is called meanwhile, on a thread of
  // its own: it asks the seed to send. If it fails nothing is waited for any more.
  // kChecksumMismatch: not what it says has come.
  virtual base::Status TakeSeed(SeedGroups groups,
                                const std::function<base::Result<SeedReport>()>& expected) = 0;
  virtual std::string layout() const = 0;  // RankWeights::Layout
  // Inside a session; or a transaction of its own, where the rule allows it.
  virtual void FromTensors(TensorUpdate update, Updated done) = 0;
  // Groups of processes that a trainer makes: all ranks join, or none. They wait for nothing else
  // that is done here, and for each other only by name.
  virtual void JoinGroup(GroupRequest request, std::function<void(base::Status)> done) = 0;
  virtual void LeaveGroup(std::string name, std::function<void(base::Status)> done) = 0;
  // Receives what the trainer broadcasts, at once, whatever else is under way; then as FromTensors.
  // What must be refused is received too, so that the trainer's call ends, and then refused. Where
  // receiving fails the group is left on all ranks, and a session that is open has failed.
  virtual void FromGroup(GroupUpdate update, Updated done) = 0;
  // Sets the label; in a session, at its end. Says which label now holds or will hold.
  virtual void SetVersion(std::string label, std::function<void(base::Status)> done) = 0;
  virtual SessionState session() const = 0;

  // Gives memory back to the system, on all ranks. In the order of updates; no session may be open,
  // and no request may need the engine: while generation is paused they may wait, without their
  // cache, else there may be none (kOutOfOrder). Nothing is generated until all is resumed;
  // requests wait. Weights without a backup are lost: requests that come are refused until updates
  // have brought all of them. What is released already is left as it is.
  virtual void ReleaseMemory(MemoryParts parts, std::function<void(base::Status)> done) = 0;
  // Takes it again; the weights first. kNoSpace, kLimitExceeded: a rank, which the error names, has
  // no memory, and that part stays released on all.
  virtual void ResumeMemory(MemoryParts parts, std::function<void(base::Status)> done) = 0;

  virtual void Check(CheckRequest request, std::function<void(base::Result<CheckReport>)> done) = 0;

  // On every host, by one rank of each. One entry for each host, in order of their node ranks: a
  // host that failed does not hold up the others.
  virtual void Pull(PullRequest request, std::function<void(std::vector<HostPull>)> done) = 0;

  // The live bytes of a checkpoint tensor, put together from all ranks. kNotFound for a name that
  // the model has none of.
  virtual void Export(std::string name, std::function<void(base::Result<ExportedTensor>)> done) = 0;
  virtual std::vector<std::string> names() const = 0;  // of all checkpoint tensors

  // Digests of all live checkpoint tensors, summed over the ranks that own parts of them, while
  // generation goes on. kOutOfOrder if the weights change again and again meanwhile.
  virtual void Digests(DigestRequest request,
                       std::function<void(base::Result<DigestReport>)> done) = 0;

  virtual std::string model_path() const = 0;  // of the last good load
};

}  // namespace syncline::update
