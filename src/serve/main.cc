// syncline-engine: serves a model over HTTP.
//
// 1. Idle OpenMP threads must not spin beside the server's threads. That is read from the
//    environment when the library is loaded, so the program starts itself again with it set.
// 2. The HTTP server listens; routes that need the model answer 503.
// 3. Another thread loads the model, then one line on standard output says where it is served.
// 4. A signal: requests that come are refused, those that run may finish for a while, what is left
//    is aborted with 503, and the parts end in the reverse order of their start.
#include <fmt/format.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>

#include "base/log.h"
#include "engine/engine.h"
#include "http/server.h"
#include "model/model.h"
#include "serve/options.h"
#include "serve/router.h"
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

// Everything behind the server, in the order of its start.
struct Loaded {
  std::unique_ptr<model::Model> model;
  text::Vocabulary vocabulary;
  std::unique_ptr<text::TokenizerProcess> tokenizer;
  std::unique_ptr<engine::Engine> engine;
  std::unique_ptr<update::Weights> weights;
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

engine::EngineOptions ToEngineOptions(const Options& options, const model::Model& model) {
  std::uint64_t bytes = options.kv_cache_bytes;
  if (options.max_total_tokens > 0) bytes = options.max_total_tokens * model.KvBytesPerToken();
  return {.kv_cache_bytes = bytes,
          .max_running = options.max_running_requests,
          .prefill_tokens = options.chunked_prefill_size,
          .max_context = options.context_length,
          .seed = options.random_seed};
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

Status Load(const Options& options, Loaded& loaded, Front& front) {
  base::FileSystem& files = base::FileSystem::Posix();
  SYNCLINE_TRY(StartTokenizer(options, loaded));  // first: the helper starts meanwhile
  SYNCLINE_ASSIGN(loaded.model,
                  model::LoadModel(files, options.model, {.threads = options.threads}));
  const model::ModelConfig& config = loaded.model->config();
  SYNCLINE_ASSIGN(loaded.engine, engine::Engine::Start(ToEngineOptions(options, *loaded.model),
                                                       *loaded.model, loaded.vocabulary,
                                                       config.end_tokens, options.weight_version));
  loaded.weights = update::Weights::Create(files, *loaded.engine, *loaded.model, options.model);
  front.SetReady({.engine = loaded.engine.get(),
                  .weights = loaded.weights.get(),
                  .tokenizer = loaded.tokenizer.get(),
                  .vocabulary = &loaded.vocabulary},
                 {.served_name = options.served_model_name,
                  .tokenizer_path = options.tokenizer,
                  .model_type = config.model_type,
                  .architectures = config.architectures,
                  .arguments = OptionsJson(options),
                  .software_version = SYNCLINE_VERSION});
  return {};
}

void SayReady(const Options& options, std::uint16_t port) {
  const bool v6 = options.host.find(':') != std::string::npos && options.host.front() != '[';
  const std::string url = v6 ? fmt::format("http://[{}]:{}", options.host, port)
                             : fmt::format("http://{}:{}", options.host, port);
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
  const milliseconds limit(static_cast<std::int64_t>(options.shutdown_timeout * 1000));
  WaitForQuiet(front, limit);
  front.engine().Stop();  // what is left gets its 503
  WaitForQuiet(front, milliseconds(1000));
}

int Serve(const Options& options) {
  const auto fail = [](const base::Error& error) {
    fmt::print(stderr, "syncline-engine: {}\n", error.message);
    return Info(error.code).exit_code;
  };
  if (const Status installed = StopSignal::Install(); !installed) return fail(installed.error());
  auto front = std::make_unique<Front>(base::MetricsRegistry::Global());
  Router router(*front, options.keys);
  AddAllRoutes(router, *front);
  auto server = http::Server::Start({.address = options.host, .port = options.port},
                                    [&router](const RequestPtr& request, ExchangePtr exchange) {
                                      router.Handle(request, std::move(exchange));
                                    });
  if (!server) return fail(server.error());
  auto loaded = std::make_unique<Loaded>();
  Status outcome;
  std::atomic<bool> loading = true;
  std::thread loader([&] {
    outcome = Load(options, *loaded, *front);
    loading = false;
    if (!outcome) return StopSignal::Raise();
    SayReady(options, (*server)->port());
  });
  StopSignal::Wait(options.exit_with_parent);
  if (loading) {  // it cannot be interrupted, and there is nothing to finish
    (*server)->Stop(milliseconds(100));
    std::_Exit(0);
  }
  loader.join();
  front->BeginStopping();
  if (outcome) FinishRequests(options, *front);
  (*server)->Stop(milliseconds(1000));
  loaded->tokenizer.reset();  // its last answers go to the front's worker
  front->Drain();             // so that nothing calls the engine from here on
  loaded.reset();
  front.reset();
  return outcome ? 0 : fail(outcome.error());
}

// Starts this program again, with the environment that OpenMP reads when it is loaded.
void SetOpenMpEnvironment(char** argv) {
  if (getenv("OMP_WAIT_POLICY") != nullptr) return;
  setenv("OMP_WAIT_POLICY", "passive", 1);
  execv("/proc/self/exe", argv);  // if that fails, go on without
}

int Run(int argc, char** argv) {
  const auto line =
      ParseCommandLine(std::vector<std::string>(argv + 1, argv + argc), SYNCLINE_VERSION);
  if (!line) {
    fmt::print(stderr, "syncline-engine: {}\n", line.error().message);
    return Info(line.error().code).exit_code;
  }
  if (line->text) {
    fmt::print("{}", *line->text);
    return 0;
  }
  SetOpenMpEnvironment(argv);
  setenv("SYNCLINE_LOG", line->options.log_level.c_str(), 1);
  return Serve(line->options);
}

}  // namespace
}  // namespace syncline::serve

int main(int argc, char** argv) {
  try {
    return syncline::serve::Run(argc, argv);
  } catch (const std::exception& error) {  // memory ran out, say
    fmt::print(stderr, "syncline-engine: {}\n", error.what());
    return Info(syncline::base::Code::kInternal).exit_code;
  }
}
