// A whole engine in this process, with all of its routes and without a socket.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "model/model.h"
#include "orders/client.h"
#include "orders/world.h"
#include "serve/front.h"
#include "serve/router.h"
#include "text/vocabulary.h"
#include "update/weights.h"

namespace syncline::orders {

struct Setting {
  update::SessionRule rule = update::SessionRule::kOptional;
  std::uint64_t undo_memory = ~std::uint64_t{0};
};

// Thread-safe from Start to the destructor.
class Server {
 public:
  // Serves a version of the world, which must outlive it.
  static base::Result<std::unique_ptr<Server>> Start(const World& world, const Setting& setting,
                                                     std::size_t version = 0);
  // As the program ends: requests that run may finish, what is left is aborted.
  ~Server();

  std::shared_ptr<Client> Send(const std::string& method, const std::string& target,
                               std::string body = "");
  serve::Front& front() { return front_; }
  // Do the live bytes equal those? Read between two steps.
  bool Holds(const std::vector<std::vector<std::byte>>& bytes);

 private:
  Server() = default;
  void WaitForQuiet() const;

  base::MetricsRegistry registry_;
  serve::Front front_{registry_};
  serve::Router router_{front_, {}};
  text::Vocabulary vocabulary_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<update::Weights> weights_;
};

}  // namespace syncline::orders
