// The table of routes, and what happens to every request before its handler sees it.
//
// In order: a key is asked for, as the route's level says; a path or method that is not in the
// table is 404 or 405; routes that need the model answer 503 until it is loaded and once the server
// stops; a handler that throws answers 500.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "http/server.h"
#include "serve/auth.h"
#include "serve/front.h"
#include "serve/replies.h"

namespace syncline::serve {

using RequestPtr = std::shared_ptr<const http::Request>;
using ExchangePtr = std::shared_ptr<http::Exchange>;

struct Route {
  std::vector<std::string> methods;
  std::string path;                  // "/a/b", or "/a/*" for everything below
  Level level = Level::kAdminForce;  // of a route that does not say
  std::function<void(const RequestPtr&, const ExchangePtr&)> handler;
  bool needs_model = true;
  bool update = false;  // of the weights: a continue that comes after it waits for its reply
};

// Routes are added before the first request. Then thread-safe.
class Router {
 public:
  Router(Front& front, Keys keys);

  void Add(Route route) { routes_.push_back(std::move(route)); }
  const std::vector<Route>& routes() const { return routes_; }

  void Handle(const RequestPtr& request, ExchangePtr exchange) const;

 private:
  const Route* Find(std::string_view path) const;

  Front& front_;
  Keys keys_;
  std::vector<Route> routes_;
};

// A POST that changes the engine (kAdminOptional), whose JSON object is read before `handle` sees
// it; a body that is missing stands for {}.
using JsonHandler = void (*)(Front& front, const base::Json& body, const ExchangePtr& exchange);
void AddJsonRoute(Router& router, Front& front, std::string path, JsonHandler handle,
                  bool update = false);

// The same where a body may be large, or requests must reach the weights in the order in which they
// came: it is read and handled on the disk worker.
void AddQueuedRoute(Router& router, Front& front, std::vector<std::string> methods,
                    std::string path, JsonHandler handle, bool update = false);

// What a path's clients take for an error.
ErrorStyle StyleOf(std::string_view path);

void AddInfoRoutes(Router& router, Front& front);     // info.cc
void AddGenerateRoute(Router& router, Front& front);  // generate.cc
void AddOpenAiRoutes(Router& router, Front& front);   // openai_routes.cc
void AddControlRoutes(Router& router, Front& front);  // control.cc
void AddMemoryRoutes(Router& router, Front& front);   // memory_routes.cc
void AddWeightRoutes(Router& router, Front& front);   // weight_routes.cc
void AddSessionRoutes(Router& router, Front& front);  // session_routes.cc
void AddTensorRoutes(Router& router, Front& front);   // tensor_routes.cc
void AddGroupRoutes(Router& router, Front& front);    // group_routes.cc
void AddIpcRoute(Router& router, Front& front);       // ipc_route.cc
void AddCheckerRoute(Router& router, Front& front);   // checker_route.cc
void AddExportRoutes(Router& router, Front& front);   // export_routes.cc
void AddDigestRoute(Router& router, Front& front);    // digest_route.cc
void AddP2pRoutes(Router& router, Front& front);      // p2p_routes.cc
void AddSeedRoutes(Router& router, Front& front);     // seed_routes.cc
void AddAllRoutes(Router& router, Front& front);

}  // namespace syncline::serve
