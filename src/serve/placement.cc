#include "serve/placement.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>

#include "base/bytes.h"

namespace syncline::serve {

const char* const kTokenVariable = "SYNCLINE_RENDEZVOUS_TOKEN";

namespace {

using base::Code;
using base::Fail;
using base::Result;

Result<std::uint32_t> ReadNumber(const Environment& environment, const char* name) {
  const std::string text = environment(name);
  std::uint32_t number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  if (parsed.ec == std::errc() && parsed.ptr == text.data() + text.size()) return number;
  return Fail(Code::kInvalidArgument,
              fmt::format("{}: expected a number, as torchrun sets it, found \"{}\"", name, text));
}

// torchrun (or a program that sets the same variables) has started this process.
Result<Placement> PlaceByTorchrun(Options& options, const Environment& environment) {
  SYNCLINE_ASSIGN(const std::uint32_t size, ReadNumber(environment, "WORLD_SIZE"));
  SYNCLINE_ASSIGN(const std::uint32_t rank, ReadNumber(environment, "RANK"));
  SYNCLINE_ASSIGN(const std::uint32_t here, ReadNumber(environment, "LOCAL_WORLD_SIZE"));
  SYNCLINE_ASSIGN(const std::uint32_t node, ReadNumber(environment, "GROUP_RANK"));
  SYNCLINE_ASSIGN(const std::uint32_t port, ReadNumber(environment, "MASTER_PORT"));
  if (options.tp != size) {
    return Fail(Code::kInvalidArgument,
                fmt::format("torchrun has started {} processes (WORLD_SIZE), --tp is {}", size,
                            options.tp));
  }
  if (here == 0 || size % here != 0 || rank >= size || port > 65535) {
    return Fail(Code::kInvalidArgument,
                fmt::format("torchrun's RANK {} of WORLD_SIZE {}, LOCAL_WORLD_SIZE {}, MASTER_PORT "
                            "{} do not fit together",
                            rank, size, here, port));
  }
  options.rank = rank;
  options.nodes = size / here;
  options.node_rank = node;
  Placement placement;
  placement.group = {.rank = rank, .size = size, .node_rank = node, .nodes = size / here};
  placement.ranks_here = here;
  const std::string host = environment("MASTER_ADDR");
  const ranks::Address master = {host, static_cast<std::uint16_t>(port)};
  if (!options.rendezvous.empty()) {
    SYNCLINE_ASSIGN(placement.rendezvous, ranks::ParseAddress(options.rendezvous));
  } else if (environment("TORCHELASTIC_USE_AGENT_STORE") == "True") {
    // The port is torchrun's own: rank 0 takes another one and says so there.
    placement.rendezvous = {host, 0};
    placement.torch = {master,
                       fmt::format("syncline/{}/{}/rendezvous", environment("TORCHELASTIC_RUN_ID"),
                                   environment("TORCHELASTIC_RESTART_COUNT"))};
  } else {
    placement.rendezvous = master;
  }
  return placement;
}

}  // namespace

Result<Placement> PlaceOf(Options& options, const Environment& environment) {
  Placement placement;
  if (!options.rank && !environment("LOCAL_RANK").empty() && !environment("WORLD_SIZE").empty()) {
    SYNCLINE_ASSIGN(placement, PlaceByTorchrun(options, environment));
  } else {
    placement.ranks_here = options.tp / options.nodes;
    const std::uint32_t first = options.node_rank * placement.ranks_here;
    placement.group = {.rank = options.rank.value_or(first),
                       .size = options.tp,
                       .node_rank = options.node_rank,
                       .nodes = options.nodes};
    placement.starts_ranks = !options.rank && placement.ranks_here > 1;
    placement.rendezvous = {"127.0.0.1", 0};
    if (!options.rendezvous.empty()) {
      SYNCLINE_ASSIGN(placement.rendezvous, ranks::ParseAddress(options.rendezvous));
    }
  }
  const std::string& host = placement.rendezvous.host;
  if (options.nodes > 1 && (host == "0.0.0.0" || host == "::")) {
    return Fail(Code::kInvalidArgument,
                fmt::format("--rendezvous {}: expected an address of node 0 that the other nodes "
                            "can connect to",
                            options.rendezvous));
  }
  placement.token = environment(kTokenVariable);
  // Strangers on this host know the port but not this.
  const bool alone = placement.starts_ranks && options.nodes == 1;
  if (placement.token.empty() && alone) placement.token = base::RandomHex(16);
  return placement;
}

}  // namespace syncline::serve
