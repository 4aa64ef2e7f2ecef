// Where trainers write straight into the parameters of each rank: what the ranks have registered,
// and the small server that SGLang has for it (--engine-info-bootstrap-port).
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "update/window.h"

namespace syncline::serve {

class Router;

// Thread-safe.
class EngineInfo {
 public:
  static constexpr std::uint64_t kRanks = 1024;  // at most

  // Of a rank of this engine; nobody else can replace it.
  void Set(std::uint64_t rank, const update::WindowInfo& info);
  // What somebody says of a rank of his. kInvalidArgument; kAlreadyExists for a rank of this
  // engine.
  base::Status Register(const base::Json& message);
  // {"rank", "remote_instance_transfer_engine_info": [session, {name: [address, elements, bytes]}]}
  std::optional<base::Json> Of(std::uint64_t rank) const;

 private:
  struct Entry {
    base::Json session;
    base::Json parameters;
    bool own = false;
  };
  mutable std::mutex mutex_;
  std::map<std::uint64_t, Entry> entries_;  // guarded by mutex_
};

// "rank" of a query: a number without sign.
std::optional<std::uint64_t> RankOf(const std::string* text);

// PUT /register_transfer_engine_info, GET /get_transfer_engine_info and /health, on a server of
// their own. `info` must outlive the router.
void AddEngineInfoRoutes(Router& router, EngineInfo& info);

}  // namespace syncline::serve
