// 1. The HTTP server listens; routes that need the model answer 503.
// 2. Another thread forms the group of ranks, loads the model, and then one line on standard output
//    says where it is served.
// 3. A signal: requests that come are refused, those that run may finish for a while, what is left
//    is aborted with 503, and the parts end in the reverse order of their start.
// 4. A rank that is gone: all requests fail with 503 and the reason, as do those that come; after a
//    while, in which /health says 503 too, the process ends with the status of kUnavailable.
#include "serve/serve_model.h"

#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>

#include "base/log.h"
#include "base/thread_pool.h"
#include "engine/engine.h"
#include "engine/ranked_model.h"
#include "http/server.h"
#include "model/model.h"
#include "serve/device_uuids.h"
#include "serve/exposure.h"
#include "serve/router.h"
#include "serve/seed_client.h"
#include "serve/stop_signal.h"
#include "serve/tokenizer_command.h"
#include "text/tokenizer_process.h"
#include "text/vocabulary.h"
#include "update/weights.h"

namespace syncline::serve {
namespace {

using base::Result;
using base::Status;
using std::chrono::milliseconds;

// For clients and whoever watches /health to learn of a failure before the process is gone.
constexpr milliseconds kLinger{5000};

// Everything behind the server, in the order of its start.
struct Loaded {
  std::unique_ptr<base::RootedFileSystem> rooted;  // null: requests may name any path
  std::unique_ptr<LeadingRanks> ranks;             // null: there is only this one
  std::unique_ptr<model::Model> model;
  text::Vocabulary vocabulary;
  std::unique_ptr<text::TokenizerProcess> tokenizer;
  std::unique_ptr<engine::Engine> engine;
  std::unique_ptr<update::Weights> weights;
  SeedInfo seed;  // with --seed-from
};

std::string Environment(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? "" : value;
}

std::string ProgramDirectory() {
  std::array<char, 4096> path = {};
  const ssize_t size = readlink("/proc/self/exe", path.data(), path.size());
  const std::string program(path.data(), size < 0 ? 0 : static_cast<std::size_t>(size));
  return program.substr(0, program.rfind('/'));
}

std::vector<std::string> TransferEngineCommand() {
  return HelperCommand(
      base::FileSystem::Posix(),
      {.python = Environment("SYNCLINE_PYTHON"), .program_directory = ProgramDirectory()},
      "_transfer_engine");
}

engine::EngineOptions ToEngineOptions(const Options& options, const model::Model& model,
                                      const Placement& placement) {
  std::uint64_t bytes = options.kv_cache_bytes;
  if (options.max_total_tokens > 0) bytes = options.max_total_tokens * model.KvBytesPerToken();
  return {.kv_cache_bytes = bytes,
          .ranks_here = placement.ranks_here,
          .max_running = options.max_running_requests,
          .prefill_tokens = options.chunked_prefill_size,
          .max_context = options.context_length,
          .seed = options.random_seed,
          .max_queued = options.max_queued_requests,
          .prefix_cache = !options.disable_radix_cache,
          .prefix_cache_across_versions = options.prefix_cache_across_versions};
}

http::ServerOptions ToServerOptions(const Options& options, const std::string& address) {
  std::optional<http::TlsOptions> tls;
  if (!options.ssl_certfile.empty()) {
    tls = {.certificate_file = options.ssl_certfile,
           .key_file = options.ssl_keyfile,
           .key_password = options.ssl_keyfile_password};
  }
  return {.address = address,
          .port = options.port,
          .max_connections = options.max_connections,
          .max_header_bytes = options.max_header,
          .max_body_bytes = options.max_body,
          .header_timeout = Milliseconds(options.header_timeout),
          .idle_timeout = Milliseconds(options.idle_timeout),
          .tls = std::move(tls)};
}

Status StartTokenizer(const Options& options, Loaded& loaded) {
  if (options.skip_tokenizer) return {};
  auto vocabulary = text::Vocabulary::Load(base::FileSystem::Posix(), options.tokenizer);
  if (!vocabulary) {
    return base::Annotate(vocabulary.error(), "no tokenizer (--skip-tokenizer-init goes without)");
  }
  loaded.vocabulary = *std::move(vocabulary);
  loaded.tokenizer = text::TokenizerProcess::Start(
      {.command =
           TokenizerCommand(base::FileSystem::Posix(), {.command = options.tokenizer_command,
                                                        .python = Environment("SYNCLINE_PYTHON"),
                                                        .program_directory = ProgramDirectory()}),
       .directory = options.tokenizer});
  return {};
}

layout::Shard ShardOf(const Options& options, const RankSetting& setting) {
  return {.rank = 0, .size = setting.placement.group.size, .expert_groups = options.ep};
}

Status FormRanks(const Options& options, const RankSetting& setting, Loaded& loaded, Front& front) {
  if (setting.placement.group.size == 1) return {};
  // Now, not when all ranks have been started.
  SYNCLINE_TRY(
      model::CheckDivision(base::FileSystem::Posix(), options.model, ShardOf(options, setting)));
  SYNCLINE_ASSIGN(loaded.ranks, Lead(setting, [&front](const base::Error& error) {
                    front.Fail(error);
                    StopSignal::Raise();
                  }));
  return {};
}

Status LoadModel(const Options& options, const RankSetting& setting, Loaded& loaded) {
  model::ModelOptions wanted = {.threads = ThreadsOf(options, setting.placement),
                                .shard = ShardOf(options, setting),
                                .fp8_scales = Fp8ScalesOf(options)};
  if (!options.seed_from.empty()) {
    SYNCLINE_ASSIGN(const SeedClient seed, SeedClient::Make(options.seed_from, options.keys));
    SYNCLINE_ASSIGN(loaded.seed, seed.Ask(setting.fingerprint));
    wanted.dtype_of = DtypesOf(loaded.seed);
  }
  if (loaded.ranks) wanted.collectives = loaded.ranks->collectives.get();
  auto model = model::LoadModel(base::FileSystem::Posix(), options.model, wanted);
  if (!model) {
    if (loaded.ranks) loaded.ranks->leader->GiveUp(model.error());
    return std::unexpected(model.error());
  }
  loaded.model = *std::move(model);
  if (loaded.ranks) {
    loaded.model = engine::MakeRankedModel(std::move(loaded.model), *loaded.ranks->leader);
  }
  return {};
}

std::vector<std::pair<std::string, tensor::Dtype>> DtypesOf(const layout::Plan& plan) {
  std::vector<std::pair<std::string, tensor::Dtype>> dtypes;
  for (const layout::TensorSpec& tensor : plan.tensors()) {
    dtypes.emplace_back(tensor.name, tensor.dtype);
  }
  return dtypes;
}

update::SessionRule SessionRuleOf(const Options& options) {
  if (options.session == "required") return update::SessionRule::kRequired;
  if (options.session == "ignored") return update::SessionRule::kIgnored;
  return update::SessionRule::kOptional;
}

update::Weights::Options ToWeightsOptions(const Options& options, const Loaded& loaded) {
  update::Weights::Options weights = {.launch_path = options.model,
                                      .sessions = SessionRuleOf(options),
                                      .await_weights = options.await_weights,
                                      .undo_memory = options.undo_memory,
                                      .session_timeout = Milliseconds(options.session_timeout),
                                      .backup_directory = BackupDirectoryOf(options),
                                      .transfer_timeout = Milliseconds(options.transfer_timeout)};
  if (loaded.ranks) {
    weights.leader = loaded.ranks->leader.get();
    weights.host = loaded.ranks->host;
  }
  weights.p2p = TransferEngineOf(options, loaded.ranks ? loaded.ranks->host : "127.0.0.1");
  return weights;
}

Status OfferParameters(const Loaded& loaded, Front& front) {
  SYNCLINE_ASSIGN(const std::vector<update::WindowInfo> windows, loaded.weights->Offer());
  for (std::size_t rank = 0; rank < windows.size(); ++rank) {
    front.engine_info.Set(rank, windows[rank]);
  }
  return {};
}

Status Load(const Options& options, const RankSetting& setting, std::uint16_t port, Loaded& loaded,
            Front& front) {
  SYNCLINE_TRY(StartTokenizer(options, loaded));  // first: the helper starts meanwhile
  SYNCLINE_TRY(FormRanks(options, setting, loaded, front));
  SYNCLINE_TRY(LoadModel(options, setting, loaded));
  const model::ModelConfig& config = loaded.model->config();
  SYNCLINE_ASSIGN(loaded.engine,
                  engine::Engine::Start(ToEngineOptions(options, *loaded.model, setting.placement),
                                        *loaded.model, loaded.vocabulary, config.end_tokens,
                                        options.weight_version));
  loaded.weights = update::Weights::Create(front.paths.files(), *loaded.engine, *loaded.model,
                                           ToWeightsOptions(options, loaded));
  if (!options.seed_from.empty()) {
    SYNCLINE_ASSIGN(const SeedClient seed, SeedClient::Make(options.seed_from, options.keys));
    SYNCLINE_TRY(seed.Take(*loaded.weights, loaded.seed));
  }
  if (options.p2p) SYNCLINE_TRY(OfferParameters(loaded, front));
  front.SetReady(
      {.engine = loaded.engine.get(),
       .weights = loaded.weights.get(),
       .tokenizer = loaded.tokenizer.get(),
       .vocabulary = &loaded.vocabulary},
      {.served_name = options.served_model_name,
       .tokenizer_path = options.tokenizer,
       .model_type = config.model_type,
       .architectures = config.architectures,
       .arguments = OptionsJson(options),
       .software_version = SYNCLINE_VERSION,
       .device_uuids = DeviceUuids(base::ReadKernelText("/proc/sys/kernel/random/boot_id"),
                                   options.host, port, setting.placement.group.size),
       .parallelism = {.shard = ShardOf(options, setting),
                       .ranks_on_each_host = options.tp / options.nodes},
       .fingerprint = setting.fingerprint,
       .dtypes = DtypesOf(loaded.model->plan())});
  return {};
}

void SayReady(const Options& options, std::uint16_t port) {
  const bool v6 = options.host.find(':') != std::string::npos && options.host.front() != '[';
  const std::string_view scheme = options.ssl_certfile.empty() ? "http" : "https";
  const std::string url = v6 ? fmt::format("{}://[{}]:{}", scheme, options.host, port)
                             : fmt::format("{}://{}:{}", scheme, options.host, port);
  fmt::print("{}\n", ToText(base::Json(base::Json::Object{{"ready", true}, {"url", url}})));
  std::fflush(stdout);
  base::Log(base::LogLevel::kInfo, fmt::format("{} is served at {}", options.model, url));
}

// Until no request is open, at most `limit`.
bool WaitForQuiet(const Front& front, milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (front.open_requests() > 0) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return true;
}

void FinishRequests(const Options& options, Front& front) {
  const milliseconds limit = Milliseconds(options.shutdown_timeout);
  WaitForQuiet(front, limit);
  front.engine().Stop();     // what is left gets its 503
  front.weights().Cancel();  // and updates and pulls theirs
  WaitForQuiet(front, milliseconds(1000));
}

int Report(const base::Error& error) {
  fmt::print(stderr, "syncline-engine: {}\n", error.message);
  return Info(error.code).exit_code;
}

// The engine is gone. Ends the process, without what would wait for threads that hang.
[[noreturn]] void EndFailed(const base::Error& failure, bool loading, Front& front,
                            http::Server& server, Loaded& loaded) {
  const int status = Report(failure);
  if (!loading && front.has_backend()) {
    front.engine().Stop(failure.message);
    std::this_thread::sleep_for(kLinger);
  }
  server.Stop(milliseconds(100));
  if (!loading && loaded.ranks && loaded.ranks->launcher) {
    loaded.ranks->launcher->Stop(milliseconds(500));
  }
  std::fflush(stdout);
  std::_Exit(status);  // children that are left are killed with this process
}

// The server of --engine-info-bootstrap-port, with what it serves.
struct InfoServer {
  explicit InfoServer(Front& front, const Keys& keys) : router(front, keys) {
    AddEngineInfoRoutes(router, front.engine_info);
  }
  Router router;
  std::unique_ptr<http::Server> server;
};

Result<std::unique_ptr<InfoServer>> StartInfoServer(const Options& options, Front& front) {
  auto info = std::make_unique<InfoServer>(front, options.keys);
  if (options.engine_info_bootstrap_port == 0) return info;
  SYNCLINE_ASSIGN(info->server,
                  http::Server::Start(
                      {.address = options.host,
                       .port = options.engine_info_bootstrap_port,
                       .max_body_bytes = std::uint64_t{64} << 20},
                      [&router = info->router](const RequestPtr& request, ExchangePtr exchange) {
                        router.Handle(request, std::move(exchange));
                      }));
  return info;
}

}  // namespace

std::optional<transport::TransferEngineOptions> TransferEngineOf(const Options& options,
                                                                 const std::string& host) {
  if (!options.p2p) return std::nullopt;
  return transport::TransferEngineOptions{
      .command = TransferEngineCommand(),
      .host = options.p2p_host.empty() ? host : options.p2p_host};
}

std::uint32_t ThreadsOf(const Options& options, const Placement& placement) {
  if (options.threads > 0 || placement.ranks_here == 1) return options.threads;
  const auto share = static_cast<std::uint32_t>(base::AvailableProcessors()) / placement.ranks_here;
  return std::max(1U, share);
}

int ServeModel(const Options& options, const RankSetting& setting) {
  if (const Status installed = StopSignal::Install(); !installed) {
    return Report(installed.error());
  }
  const auto address = AddressToListenAt(options, ResolveBySystem);
  if (!address) return Report(address.error());
  auto rooted = RootedFilesOf(options);
  if (!rooted) return Report(rooted.error());
  auto loaded = std::make_unique<Loaded>();
  loaded->rooted = *std::move(rooted);
  auto front = std::make_unique<Front>(base::MetricsRegistry::Global());
  if (loaded->rooted) front->paths = PathRules(*loaded->rooted, options.allowed_sources);
  Router router(*front, options.keys);
  AddAllRoutes(router, *front);
  auto server = http::Server::Start(ToServerOptions(options, *address),
                                    [&router](const RequestPtr& request, ExchangePtr exchange) {
                                      router.Handle(request, std::move(exchange));
                                    });
  if (!server) return Report(server.error());
  auto info_server = StartInfoServer(options, *front);
  if (!info_server) return Report(info_server.error());
  Status outcome;
  std::atomic<bool> loading = true;
  std::thread loader([&] {
    outcome = Load(options, setting, (*server)->port(), *loaded, *front);
    loading = false;
    if (!outcome) return StopSignal::Raise();
    SayReady(options, (*server)->port());
  });
  StopSignal::Wait(options.exit_with_parent);
  if (const auto failure = front->failure()) {
    EndFailed(*failure, loading, *front, **server, *loaded);
  }
  if (loading) {  // it cannot be interrupted, and there is nothing to finish
    (*server)->Stop(milliseconds(100));
    std::_Exit(0);
  }
  loader.join();
  front->BeginStopping();
  if (outcome) FinishRequests(options, *front);
  (*server)->Stop(milliseconds(1000));
  info_server->reset();
  loaded->tokenizer.reset();  // its last answers go to the front's worker
  front->Drain();             // so that nothing calls the engine from here on
  loaded->weights.reset();
  loaded->engine.reset();
  if (const auto failure = front->failure()) EndFailed(*failure, true, *front, **server, *loaded);
  loaded->model.reset();
  if (loaded->ranks) loaded->ranks->End();
  loaded.reset();
  front.reset();
  return outcome ? 0 : Report(outcome.error());
}

}  // namespace syncline::serve
