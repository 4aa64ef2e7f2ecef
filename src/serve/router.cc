#include "serve/router.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>

#include "base/log.h"

namespace syncline::serve {
namespace {

// Hands everything on to another one.
class ForwardingExchange : public http::Exchange {
 public:
  explicit ForwardingExchange(ExchangePtr inner) : inner_(std::move(inner)) {}

  void Send(http::Response response) override { inner_->Send(std::move(response)); }
  void BeginStream(int status, std::string content_type) override {
    inner_->BeginStream(status, std::move(content_type));
  }
  void Write(std::string chunk) override { inner_->Write(std::move(chunk)); }
  void End() override { inner_->End(); }
  void OnDisconnect(std::function<void()> callback) override {
    inner_->OnDisconnect(std::move(callback));
  }

 protected:
  void Drop() { inner_.reset(); }

 private:
  ExchangePtr inner_;
};

// A reply that ends an update (pause_order.h).
class UpdateExchange : public ForwardingExchange {
 public:
  UpdateExchange(std::shared_ptr<void> update, ExchangePtr inner)
      : ForwardingExchange(std::move(inner)), update_(std::move(update)) {}

  ~UpdateExchange() override { Drop(); }  // what a dropped one answers comes before the end
  UpdateExchange(const UpdateExchange&) = delete;
  UpdateExchange& operator=(const UpdateExchange&) = delete;

  void Send(http::Response response) override {
    ForwardingExchange::Send(std::move(response));
    update_.reset();
  }

 private:
  std::shared_ptr<void> update_;
};

// Counts a reply, and the requests that wait for theirs.
class CountedExchange : public ForwardingExchange {
 public:
  CountedExchange(Front& front, ExchangePtr inner)
      : ForwardingExchange(std::move(inner)), front_(front) {
    front_.AddOpenRequest(1);
  }
  ~CountedExchange() override {
    if (!answered_) Count(500);
    front_.AddOpenRequest(-1);
  }
  CountedExchange(const CountedExchange&) = delete;
  CountedExchange& operator=(const CountedExchange&) = delete;

  void Send(http::Response response) override {
    Count(response.status);
    ForwardingExchange::Send(std::move(response));
  }
  void BeginStream(int status, std::string content_type) override {
    Count(status);
    ForwardingExchange::BeginStream(status, std::move(content_type));
  }

 private:
  void Count(int status) {
    if (answered_.exchange(true)) return;
    front_.meters().http_requests.Add();
    if (status >= 500) front_.meters().http_server_errors.Add();
    if (status >= 400 && status < 500) front_.meters().http_client_errors.Add();
  }

  Front& front_;
  std::atomic<bool> answered_ = false;
};

http::Response WrongMethod(const Route& route, const http::Request& request) {
  const std::string allowed = fmt::format("{}", fmt::join(route.methods, ", "));
  http::Response response =
      Failure(StyleOf(request.path), 405,
              fmt::format("{} takes {}, not {}", request.path, allowed, request.method));
  response.headers.emplace_back("Allow", allowed);
  return response;
}

http::Response Denial(Access access) {
  const bool forbidden = access == Access::kForbidden;
  return JsonReply(
      base::Json(base::Json::Object{{"error", forbidden ? "Forbidden" : "Unauthorized"}}),
      forbidden ? 403 : 401);
}

std::string WhyNotReady(const Front& front) {
  if (const auto failure = front.failure()) return failure->message;
  return front.state() == Front::State::kStarting ? "the model is being loaded"
                                                  : "the server is stopping";
}

void HandleJson(Front& front, const http::Request& request, const ExchangePtr& exchange,
                JsonHandler handle) {
  const base::Result<base::Json> body = ParseBody(request);
  if (!body) return exchange->Send(InvalidRequest(ErrorStyle::kSglang, body.error().message));
  handle(front, *body, exchange);
}

}  // namespace

ErrorStyle StyleOf(std::string_view path) {
  return path.starts_with("/v1/") ? ErrorStyle::kOpenAi : ErrorStyle::kSglang;
}

Router::Router(Front& front, Keys keys) : front_(front), keys_(std::move(keys)) {}

const Route* Router::Find(std::string_view path) const {
  for (const Route& route : routes_) {
    const std::string_view pattern = route.path;
    if (path == pattern) return &route;
    if (pattern.ends_with("/*") && path.size() >= pattern.size() &&
        path.starts_with(pattern.substr(0, pattern.size() - 1))) {
      return &route;
    }
  }
  return nullptr;
}

void Router::Handle(const RequestPtr& request, ExchangePtr exchange) const {
  exchange = std::make_shared<CountedExchange>(front_, std::move(exchange));
  const ErrorStyle style = StyleOf(request->path);
  const Route* route = Find(request->path);
  const Level level = route == nullptr ? LevelOfUnknown(request->path) : route->level;
  const Access access = AccessTo(keys_, level, *request);
  if (access != Access::kGranted) return exchange->Send(Denial(access));
  if (route == nullptr) {
    return exchange->Send(Failure(style, 404, fmt::format("there is no {}", request->path)));
  }
  if (std::ranges::find(route->methods, request->method) == route->methods.end()) {
    return exchange->Send(WrongMethod(*route, *request));
  }
  if (route->needs_model && front_.state() != Front::State::kReady) {
    const std::string why = WhyNotReady(front_);
    return exchange->Send(JsonReply(
        base::Json(base::Json::Object{
            {"error",
             base::Json(base::Json::Object{{"message", why}, {"code", std::uint64_t{503}}})}}),
        503));
  }
  if (route->update && front_.engine().stats().paused) {
    exchange =
        std::make_shared<UpdateExchange>(front_.pause_order.BeginUpdate(), std::move(exchange));
  }
  try {
    route->handler(request, exchange);
  } catch (const std::exception& error) {  // memory ran out, say
    base::Log(base::LogLevel::kError, fmt::format("{} failed: {}", request->path, error.what()));
    exchange->Send(Failure(style, 500, error.what()));
  }
}

void AddJsonRoute(Router& router, Front& front, std::string path, JsonHandler handle, bool update) {
  router.Add({.methods = {"POST"},
              .path = std::move(path),
              .level = Level::kAdminOptional,
              .handler =
                  [&front, handle](const RequestPtr& request, const ExchangePtr& exchange) {
                    HandleJson(front, *request, exchange, handle);
                  },
              .update = update});
}

void AddQueuedRoute(Router& router, Front& front, std::vector<std::string> methods,
                    std::string path, JsonHandler handle, bool update) {
  router.Add({.methods = std::move(methods),
              .path = std::move(path),
              .level = Level::kAdminOptional,
              .handler =
                  [&front, handle](const RequestPtr& request, const ExchangePtr& exchange) {
                    front.disk_worker().Post([&front, handle, request, exchange] {
                      HandleJson(front, *request, exchange, handle);
                    });
                  },
              .update = update});
}

void AddAllRoutes(Router& router, Front& front) {
  AddInfoRoutes(router, front);
  AddGenerateRoute(router, front);
  AddOpenAiRoutes(router, front);
  AddControlRoutes(router, front);
  AddMemoryRoutes(router, front);
  AddWeightRoutes(router, front);
  AddSessionRoutes(router, front);
  AddTensorRoutes(router, front);
  AddGroupRoutes(router, front);
  AddIpcRoute(router, front);
  AddCheckerRoute(router, front);
  AddExportRoutes(router, front);
  AddDigestRoute(router, front);
  AddP2pRoutes(router, front);
  AddSeedRoutes(router, front);
}

}  // namespace syncline::serve
