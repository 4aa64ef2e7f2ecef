// How a group comes to be:
//
//   1. Rank 0 listens. Only now its port is known, so only now it starts the other ranks of its node
//      (and says the port in torchrun's store, where torchrun has started them).
//   2. All others connect (ranks/leader.h); the first rank of another node has started its own node's.
//   3. Rank 0 asks every rank to listen for the mesh, and gets their addresses.
//   4. Rank 0 sends all addresses to all, and everybody connects with everybody.
// A process that was started by another one ends with it (ranks/launch.h); a child that ends before
// the group stands ends the wait for it.
#include "serve/rank_group.h"

#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <future>
#include <mutex>
#include <optional>

#include "base/cancel.h"
#include "base/file.h"
#include "base/log.h"
#include "base/wire.h"
#include "engine/rank_messages.h"
#include "model/mesh_collectives.h"
#include "model/torch_store.h"
#include "tensor/hash.h"

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace syncline::serve {
namespace {

using base::Code;
using base::Fail;
using base::Result;
using base::Status;
using std::chrono::milliseconds;

// Commands of this room's own.
constexpr std::uint32_t kListen = engine::kFirstOther + 900;   // answered with a text: the address
constexpr std::uint32_t kConnect = engine::kFirstOther + 901;  // a text for each rank

std::vector<std::string> ChildEnvironment(const std::string& token) {
  std::vector<std::string> variables;
  const std::string prefix = std::string(kTokenVariable) + "=";
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!std::string_view(*variable).starts_with(prefix)) variables.emplace_back(*variable);
  }
  variables.push_back(prefix + token);
  return variables;
}

// Ends the wait for a group of which a child has ended, and keeps why.
class ChildWatch {
 public:
  explicit ChildWatch(const base::CancelToken* parent) : cancel_(parent) {}

  const base::CancelToken* cancel() const { return &cancel_; }

  void OnExit(const ranks::RankExit& exit) {
    base::Log(exit.ok ? base::LogLevel::kDebug : base::LogLevel::kError, exit.text);
    const std::scoped_lock lock(mutex_);
    if (!first_) first_ = exit.text;
    cancel_.Cancel();
  }

  // The error of a wait that may have been ended by this.
  base::Error Explain(base::Error error) const {
    const std::scoped_lock lock(mutex_);
    if (error.code == Code::kCancelled && first_) {
      return {Code::kUnavailable, *first_ + " before the ranks were together"};
    }
    return error;
  }

 private:
  base::CancelToken cancel_;
  mutable std::mutex mutex_;
  std::optional<std::string> first_;  // guarded by mutex_
};

Result<std::unique_ptr<ranks::Launcher>> StartRanks(const RankSetting& setting,
                                                    const ranks::Address& rendezvous,
                                                    const std::shared_ptr<ChildWatch>& watch) {
  const Placement& placement = setting.placement;
  std::array<char, 4096> path = {};
  const ssize_t size = readlink("/proc/self/exe", path.data(), path.size());
  if (size <= 0) return base::FailErrno(errno, "/proc/self/exe");
  const std::string program(path.data(), static_cast<std::size_t>(size));
  std::vector<ranks::RankProgram> programs;
  for (std::uint32_t i = 1; i < placement.ranks_here; ++i) {
    ranks::RankProgram& child = programs.emplace_back();
    child.rank = placement.group.rank + i;
    child.path = program;
    child.arguments = setting.arguments;
    for (std::string& own : std::vector<std::string>{"--rank", std::to_string(child.rank),
                                                     "--rendezvous", ToText(rendezvous)}) {
      child.arguments.push_back(std::move(own));
    }
    child.environment = ChildEnvironment(placement.token);
  }
  return ranks::Launcher::Start(std::move(programs),
                                [watch](const ranks::RankExit& exit) { watch->OnExit(exit); });
}

model::TorchStore StoreOf(const TorchRendezvous& torch, milliseconds timeout) {
  return {.host = torch.store.host, .port = torch.store.port, .timeout = timeout};
}

// Ends what waits in the mesh when the group fails; a mesh that comes later too.
class MeshGuard {
 public:
  void Watch(ranks::Mesh* mesh) {
    const std::scoped_lock lock(mutex_);
    mesh_ = mesh;
    if (mesh_ != nullptr && reason_) mesh_->Abort(*reason_);
  }
  void Abort(const base::Error& reason) {
    const std::scoped_lock lock(mutex_);
    reason_ = reason;
    if (mesh_ != nullptr) mesh_->Abort(reason);
  }

 private:
  std::mutex mutex_;
  ranks::Mesh* mesh_ = nullptr;        // guarded by mutex_
  std::optional<base::Error> reason_;  // guarded by mutex_
};

using Answers = std::vector<Result<std::vector<std::byte>>>;

Status FormMesh(const RankSetting& setting, LeadingRanks& ranks, MeshGuard& guard) {
  const ranks::Group& group = setting.placement.group;
  const auto deadline = std::chrono::steady_clock::now() + setting.timeout;
  SYNCLINE_ASSIGN(ranks.mesh,
                  ranks::Mesh::Listen(group.rank, group.size, ranks.host, setting.placement.token));
  guard.Watch(ranks.mesh.get());
  std::promise<Answers> answered;
  ranks.leader->CommandAndAsk(kListen, {},
                              [&](Answers all) { answered.set_value(std::move(all)); });
  std::vector<ranks::Address> addresses = {ranks.mesh->address()};
  base::WireWriter message;
  message.PutText(ToText(addresses[0]));
  for (const Result<std::vector<std::byte>>& answer : answered.get_future().get()) {
    if (!answer) return std::unexpected(answer.error());
    SYNCLINE_ASSIGN(const ranks::Address address, ranks::ParseAddress(base::AsText(*answer)));
    addresses.push_back(address);
    message.PutText(ToText(address));
  }
  ranks.leader->Command(kConnect, std::move(message).Take());
  SYNCLINE_TRY(ranks.mesh->Connect(addresses, deadline));
  ranks.collectives = model::MakeMeshCollectives(*ranks.mesh, group.rank, group.size);
  return {};
}

// The next command, which must be of that kind.
Result<ranks::Message> Await(ranks::Follower& follower, std::uint32_t kind) {
  SYNCLINE_ASSIGN(std::optional<ranks::Message> message, follower.Next());
  if (!message) return Fail(Code::kUnavailable, "rank 0 has ended the group");
  if (message->kind == kind) return *std::move(message);
  return Fail(Code::kInternal,
              fmt::format("rank 0 sends a command of kind {}, not {}", message->kind, kind));
}

Status JoinMesh(const RankSetting& setting, const ranks::Address& leader, FollowingRank& rank) {
  const ranks::Group& group = setting.placement.group;
  const auto deadline = std::chrono::steady_clock::now() + setting.timeout;
  SYNCLINE_ASSIGN(const ranks::Message listen, Await(*rank.follower, kListen));
  SYNCLINE_ASSIGN(const std::string host, ranks::OwnHostTowards(leader, deadline));
  SYNCLINE_ASSIGN(rank.mesh,
                  ranks::Mesh::Listen(group.rank, group.size, host, setting.placement.token));
  const std::string address = ToText(rank.mesh->address());
  const base::ByteSpan text = base::AsBytes(address);
  rank.follower->Reply(listen.id, std::vector<std::byte>(text.begin(), text.end()));
  SYNCLINE_ASSIGN(const ranks::Message connect, Await(*rank.follower, kConnect));
  base::WireReader reader(connect.payload);
  std::vector<ranks::Address> addresses;
  for (std::uint32_t i = 0; i < group.size; ++i) {
    SYNCLINE_ASSIGN(const ranks::Address other, ranks::ParseAddress(reader.TakeText()));
    addresses.push_back(other);
  }
  SYNCLINE_TRY(reader.status());
  SYNCLINE_TRY(rank.mesh->Connect(addresses, deadline));
  rank.collectives = model::MakeMeshCollectives(*rank.mesh, group.rank, group.size);
  return {};
}

}  // namespace

RankSetting MakeSetting(const Options& options, Placement placement,
                        std::vector<std::string> arguments) {
  RankSetting setting = {.placement = std::move(placement), .arguments = std::move(arguments)};
  const std::string path = base::JoinPath(options.model, "config.json");
  const auto config = base::ReadText(base::FileSystem::Posix(), path, std::uint64_t{16} << 20);
  // A file that cannot be read is said when the model is loaded.
  const std::string hash =
      config ? tensor::HashHex(tensor::HashKind::kXxh3, base::AsBytes(*config)) : "";
  setting.fingerprint = fmt::format("syncline {}, --tp {} --ep {}, config.json {}",
                                    SYNCLINE_VERSION, options.tp, options.ep, hash);
  setting.timeout = milliseconds(static_cast<std::int64_t>(options.rendezvous_timeout * 1000));
  return setting;
}

void LeadingRanks::End() {
  collectives.reset();
  leader->Shutdown();
  if (launcher) launcher->Stop(std::chrono::seconds(5));
}

Result<std::unique_ptr<LeadingRanks>> Lead(const RankSetting& setting,
                                           std::function<void(base::Error)> on_failure) {
  const Placement& placement = setting.placement;
  auto ranks = std::make_unique<LeadingRanks>();
  const auto watch = std::make_shared<ChildWatch>(setting.cancel);
  const auto guard = std::make_shared<MeshGuard>();
  ranks::Address address = placement.rendezvous;
  auto failed = [guard, on_failure = std::move(on_failure)](const base::Error& error) {
    guard->Abort(error);
    on_failure(error);
  };
  SYNCLINE_ASSIGN(ranks->leader, ranks::Leader::Listen({.listen = address,
                                                        .size = placement.group.size,
                                                        .nodes = placement.group.nodes,
                                                        .token = placement.token,
                                                        .fingerprint = setting.fingerprint,
                                                        .join_timeout = setting.timeout,
                                                        .on_failure = std::move(failed),
                                                        .cancel = watch->cancel()}));
  address.port = ranks->leader->port();
  ranks->host = address.host;
  if (placement.torch) {
    SYNCLINE_TRY(model::PublishText(StoreOf(*placement.torch, setting.timeout),
                                    placement.torch->key, ToText(address)));
  }
  if (placement.starts_ranks) {
    SYNCLINE_ASSIGN(ranks->launcher, StartRanks(setting, address, watch));
  }
  if (const Status joined = ranks->leader->Join(); !joined) {
    return std::unexpected(watch->Explain(joined.error()));
  }
  if (const Status formed = FormMesh(setting, *ranks, *guard); !formed) {
    // All hear why. If the group has failed for another reason, that is the one.
    ranks->leader->GiveUp(formed.error());
    return std::unexpected(ranks->leader->failure().value_or(formed.error()));
  }
  return ranks;
}

Result<std::unique_ptr<FollowingRank>> Follow(const RankSetting& setting,
                                              std::function<void(base::Error)> on_failure) {
  const Placement& placement = setting.placement;
  auto rank = std::make_unique<FollowingRank>();
  const auto watch = std::make_shared<ChildWatch>(setting.cancel);
  ranks::Address leader = placement.rendezvous;
  if (placement.torch) {
    SYNCLINE_ASSIGN(
        const std::string text,
        model::AwaitText(StoreOf(*placement.torch, setting.timeout), placement.torch->key));
    SYNCLINE_ASSIGN(leader, ranks::ParseAddress(text));
  }
  if (placement.starts_ranks) {
    SYNCLINE_ASSIGN(rank->launcher, StartRanks(setting, leader, watch));
  }
  auto joined = ranks::Follower::Join({.leader = leader,
                                       .group = placement.group,
                                       .token = placement.token,
                                       .fingerprint = setting.fingerprint,
                                       .join_timeout = setting.timeout,
                                       .on_failure = std::move(on_failure),
                                       .cancel = watch->cancel()});
  if (!joined) return std::unexpected(watch->Explain(joined.error()));
  rank->follower = *std::move(joined);
  if (const Status formed = JoinMesh(setting, leader, *rank); !formed) {
    rank->follower->GiveUp(formed.error());
    return std::unexpected(formed.error());
  }
  return rank;
}

}  // namespace syncline::serve
