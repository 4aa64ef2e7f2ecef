// Signals: whoever ends the engine as a whole tells every rank to end, and rank 0 then finishes its
// requests first. So the first SIGTERM or SIGINT ends the wait for the group, and afterwards only limits
// how long this rank goes on; the second one ends it.
#include "serve/follow_rank.h"

#include <fmt/core.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "base/cancel.h"
#include "engine/ranked_model.h"
#include "model/model.h"
#include "serve/path_rules.h"
#include "serve/seed_client.h"
#include "serve/serve_model.h"
#include "update/following_weights.h"

namespace syncline::serve {
namespace {

std::atomic<unsigned> grace_seconds = 10;
base::CancelToken joining;

void OnSignal(int number) {
  joining.Cancel();
  alarm(grace_seconds);
  signal(number, SIG_DFL);
}

int Report(std::uint32_t rank, const base::Error& error) {
  fmt::print(stderr, "syncline-engine rank {}: {}\n", rank, error.message);
  return Info(error.code).exit_code;
}

}  // namespace

int FollowRank(const Options& options, RankSetting setting) {
  const std::uint32_t own = setting.placement.group.rank;
  grace_seconds = static_cast<unsigned>(options.shutdown_timeout) + 5;
  signal(SIGTERM, OnSignal);
  signal(SIGINT, OnSignal);
  signal(SIGPIPE, SIG_IGN);
  setting.cancel = &joining;
  const auto rooted = RootedFilesOf(options);
  if (!rooted) return Report(own, rooted.error());
  // Nothing is waited for then: what this process holds ends with it.
  auto rank = Follow(setting, [own](const base::Error& error) { std::_Exit(Report(own, error)); });
  if (!rank) return Report(own, rank.error());
  ranks::Follower& follower = *(*rank)->follower;
  // Tells all others why. What was given to Follow ends the process once they have heard it.
  const auto give_up = [&](const base::Error& error) {
    follower.GiveUp(error);
    std::this_thread::sleep_for(std::chrono::seconds(5));
    std::_Exit(Report(own, error));
  };
  model::ModelOptions wanted = {
      .threads = ThreadsOf(options, setting.placement),
      .shard = {.rank = own, .size = setting.placement.group.size, .expert_groups = options.ep},
      .collectives = (*rank)->collectives.get(),
      .fp8_scales = Fp8ScalesOf(options)};
  if (!options.seed_from.empty()) {
    const auto seed = SeedClient::Make(options.seed_from, options.keys);
    const auto info = seed ? seed->Ask(setting.fingerprint) : std::unexpected(seed.error());
    if (!info) give_up(info.error());
    wanted.dtype_of = DtypesOf(*info);
  }
  auto model = model::LoadModel(base::FileSystem::Posix(), options.model, wanted);
  if (!model) give_up(model.error());
  base::FileSystem& files = *rooted ? **rooted : base::FileSystem::Posix();
  auto weights = update::FollowingWeights::Create(
      files, {{.role = "", .model = model->get()}}, follower,
      {.launch_path = options.model,
       .rank = own,
       .undo_memory = options.undo_memory,
       .backup_directory = BackupDirectoryOf(options),
       .p2p = TransferEngineOf(options, (*rank)->mesh->address().host)},
      Milliseconds(options.transfer_timeout));
  const base::Status done = engine::FollowCommands(
      follower, **model, [&](ranks::Message message) { weights->OnCommand(std::move(message)); });
  if (!done) give_up(done.error());
  weights.reset();
  (*rank)->collectives.reset();
  if ((*rank)->launcher) (*rank)->launcher->Stop(std::chrono::seconds(5));
  return 0;
}

}  // namespace syncline::serve
