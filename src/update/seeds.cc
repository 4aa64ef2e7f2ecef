#include "update/seeds.h"

#include <fmt/format.h>

#include <algorithm>

namespace syncline::update {

using base::Code;
using base::Fail;
using base::Result;
using base::Status;

void Seeds::Close(const std::string& name) const {
  std::future<Answers> asked = others_.Ask(kSeedClose, EncodeText(name));
  own_.seeding().Close(name);
  asked.wait();
}

Result<std::vector<std::uint16_t>> Seeds::Open(const SeedGroups& groups) const {
  const std::size_t ranks = others_.peers().size() + 1;
  if (!groups.ports.empty() && groups.ports.size() != ranks) {
    return Fail(Code::kInvalidArgument,
                fmt::format("Expected {} ports, but got {} ports.", ranks, groups.ports.size()));
  }
  const auto elsewhere = [](const ranks::Peer& peer) { return peer.node_rank != 0; };
  if (groups.rank == 0 && std::ranges::any_of(others_.peers(), elsewhere)) {
    return Fail(Code::kInvalidArgument,
                "an engine over several hosts cannot send: all groups meet at one master_address");
  }
  const auto address = [&](std::size_t rank) -> transport::GroupAddress {
    return {.name = groups.name,
            .host = groups.host,
            .port = groups.ports.empty() ? std::uint16_t{0} : groups.ports[rank],
            .rank = groups.rank,
            .size = groups.size,
            .backend = groups.backend};
  };
  std::vector<Payload> messages;
  for (std::size_t rank = 1; rank < ranks; ++rank) {
    messages.push_back(Encode(JoinGroup{.address = address(rank)}));
  }
  std::vector<std::future<Answers>> asked = others_.AskEach(kSeedOpen, std::move(messages));
  const Result<std::uint16_t> own = own_.seeding().Open(address(0), 0);
  Status all;
  std::vector<std::uint16_t> ports;
  if (own) ports.push_back(*own);
  if (!own) all = std::unexpected(own.error());
  for (std::future<Answers>& one : asked) {
    const Result<Payload> answer = one.get()[0];
    const Result<std::uint64_t> port =
        answer ? DecodeNumber(*answer) : std::unexpected(answer.error());
    if (port) ports.push_back(static_cast<std::uint16_t>(*port));
    if (!port && all) all = std::unexpected(port.error());
  }
  if (all) return ports;
  Close(groups.name);
  return std::unexpected(all.error());
}

Status Seeds::Wait(const std::string& name) const {
  std::future<Answers> asked = others_.Ask(kSeedWait, EncodeText(name));
  Status all = own_.seeding().Wait(name);
  if (const Status others = AllWell(asked.get()); all && !others) all = others;
  if (all) return {};
  Close(name);
  return all;
}

Result<std::vector<std::string>> Seeds::OnAll(
    RankMessage kind, const std::string& name,
    Result<std::string> (RankWeights::*move)(const std::string&)) const {
  std::future<Answers> asked = others_.Ask(kind, EncodeText(name));
  Result<std::string> own = (own_.*move)(name);
  if (!own && others_.any()) own = base::Annotate(own.error(), RankText(0, host_));
  // Whoever else still waits for its peer, here or there, learns of it.
  if (!own) Close(name);
  const Answers answers = asked.get();
  if (!own) return std::unexpected(own.error());
  std::vector<std::string> hashes = {*std::move(own)};
  for (const Result<Payload>& answer : answers) {
    const Result<std::string> hash = answer ? DecodeText(*answer) : std::unexpected(answer.error());
    if (!hash) {
      Close(name);
      return std::unexpected(hash.error());
    }
    hashes.push_back(*hash);
  }
  return hashes;
}

Result<std::vector<std::string>> Seeds::Send(const std::string& name) const {
  return OnAll(kSeedSend, name, &RankWeights::SendLive);
}

Result<std::vector<std::string>> Seeds::Receive(const std::string& name) const {
  return OnAll(kSeedReceive, name, &RankWeights::ReceiveLive);
}

}  // namespace syncline::update
