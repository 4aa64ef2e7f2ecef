// GET /remote_instance_transfer_engine_info, its older name, and GET /parallelism_config: what a
// trainer asks of a rank before it writes straight into its parameters.
#include <fmt/format.h>

#include "serve/engine_info.h"
#include "serve/router.h"

namespace syncline::serve {
namespace {

using base::Json;

void BadRank(const ExchangePtr& exchange) {
  exchange->Send(Failure(ErrorStyle::kSglang, 400, "Missing or invalid rank parameter"));
}

void ShowTransferEngine(const Front& front, const RequestPtr& request,
                        const ExchangePtr& exchange) {
  const std::optional<std::uint64_t> rank = RankOf(request->Query("rank"));
  if (!rank) return BadRank(exchange);
  std::optional<Json> info = front.engine_info.Of(*rank);
  if (info) return exchange->Send(JsonReply(*info));
  exchange->Send(Failure(ErrorStyle::kSglang, 400,
                         fmt::format("Failed to get transfer engine info for rank {}", *rank)));
}

Json ParallelismOf(const Parallelism& all, std::uint32_t rank) {
  layout::Shard shard = all.shard;
  shard.rank = rank;
  const std::uint64_t one = 1;
  const std::uint64_t none = 0;
  return Json(Json::Object{{"tp_size", std::uint64_t{shard.size}},
                           {"tp_rank", std::uint64_t{rank}},
                           {"pp_size", one},
                           {"pp_rank", none},
                           {"ep_size", std::uint64_t{shard.expert_groups}},
                           {"ep_rank", std::uint64_t{shard.expert_group()}},
                           {"moe_tp_size", std::uint64_t{shard.expert_shards()}},
                           {"moe_tp_rank", std::uint64_t{shard.expert_shard()}},
                           {"attn_tp_size", std::uint64_t{shard.size}},
                           {"attn_tp_rank", std::uint64_t{rank}},
                           {"attn_dp_size", one},
                           {"attn_dp_rank", none},
                           {"world_size", std::uint64_t{shard.size}},
                           {"global_rank", std::uint64_t{rank}},
                           {"local_rank", std::uint64_t{rank % all.ranks_on_each_host}}});
}

void ShowParallelism(const Front& front, const RequestPtr& request, const ExchangePtr& exchange) {
  const std::optional<std::uint64_t> rank = RankOf(request->Query("rank"));
  if (!rank) return BadRank(exchange);
  const Parallelism& all = front.card().parallelism;
  if (*rank >= all.shard.size) {
    return exchange->Send(Failure(ErrorStyle::kSglang, 400,
                                  fmt::format("Failed to get parallelism config for rank {}: the "
                                              "engine has {} ranks",
                                              *rank, all.shard.size)));
  }
  exchange->Send(JsonReply(ParallelismOf(all, static_cast<std::uint32_t>(*rank))));
}

using Handler = void (*)(const Front&, const RequestPtr&, const ExchangePtr&);

void AddGet(Router& router, Front& front, const char* path, Handler handler) {
  router.Add({.methods = {"GET"},
              .path = path,
              .level = Level::kAdminOptional,
              .handler = [&front, handler](const RequestPtr& request, const ExchangePtr& exchange) {
                handler(front, request, exchange);
              }});
}

}  // namespace

void AddP2pRoutes(Router& router, Front& front) {
  AddGet(router, front, "/remote_instance_transfer_engine_info", ShowTransferEngine);
  AddGet(router, front, "/get_remote_instance_transfer_engine_info", ShowTransferEngine);
  AddGet(router, front, "/parallelism_config", ShowParallelism);
}

}  // namespace syncline::serve
