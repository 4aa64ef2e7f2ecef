#include "orders/server.h"

#include <algorithm>
#include <future>
#include <thread>

namespace syncline::orders {

using base::Json;

base::Result<std::unique_ptr<Server>> Server::Start(const World& world, const Setting& setting,
                                                    std::size_t version) {
  std::unique_ptr<Server> server(new Server());
  serve::AddAllRoutes(server->router_, server->front_);
  const std::string& path = world.directory(version);
  SYNCLINE_ASSIGN(server->model_,
                  model::LoadModel(base::FileSystem::Posix(), path, {.threads = 1}));
  SYNCLINE_ASSIGN(server->engine_,
                  engine::Engine::Start({.kv_cache_bytes = 1 << 20, .max_running = 8},
                                        *server->model_, server->vocabulary_, {}, "v0"));
  server->weights_ = update::Weights::Create(
      base::FileSystem::Posix(), *server->engine_, *server->model_,
      {.launch_path = path, .sessions = setting.rule, .undo_memory = setting.undo_memory});
  server->front_.SetReady({.engine = server->engine_.get(),
                           .weights = server->weights_.get(),
                           .vocabulary = &server->vocabulary_},
                          {.served_name = "tiny", .tokenizer_path = path, .software_version = "0"});
  return server;
}

void Server::WaitForQuiet() const {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (front_.open_requests() > 0 && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Server::~Server() {
  if (weights_ == nullptr) return;
  front_.BeginStopping();
  engine_->Stop();
  weights_->Cancel();
  WaitForQuiet();
  front_.Drain();
  weights_.reset();
  engine_.reset();
}

std::shared_ptr<Client> Server::Send(const std::string& method, const std::string& target,
                                     std::string body) {
  auto request = std::make_shared<http::Request>();
  request->method = method;
  const std::size_t mark = target.find('?');
  request->path = target.substr(0, mark);
  std::string_view rest = mark == std::string::npos ? "" : std::string_view(target).substr(mark);
  while (!rest.empty()) {
    rest.remove_prefix(1);  // '?' or '&'
    const std::string_view pair = rest.substr(0, rest.find('&'));
    rest.remove_prefix(pair.size());
    const std::size_t equals = std::min(pair.find('='), pair.size() - 1);
    request->query.emplace_back(pair.substr(0, equals), pair.substr(equals + 1));
  }
  request->body = std::move(body);
  auto client = std::make_shared<Client>();
  router_.Handle(request, client);
  return client;
}

bool Server::Holds(const std::vector<std::vector<std::byte>>& bytes) {
  std::promise<bool> holds;
  const bool asked = engine_->BetweenSteps([&] {
    const auto live = model_->parameters().live();
    bool same = live.size() == bytes.size();
    for (std::size_t i = 0; same && i < live.size(); ++i) {
      same = std::ranges::equal(live[i], bytes[i]);
    }
    holds.set_value(same);
  });
  return asked && holds.get_future().get();
}

}  // namespace syncline::orders
