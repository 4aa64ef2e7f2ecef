#include "serve/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/result_matchers.h"

namespace syncline::serve {
namespace {

using base::Code;
using Variables = std::map<std::string, std::string>;

base::Result<Placement> Place(Options options, const Variables& variables = {}) {
  return PlaceOf(options, [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::string() : found->second;
  });
}

Options With(std::uint32_t tp, std::uint32_t nodes = 1, std::uint32_t node_rank = 0) {
  Options options;
  options.tp = tp;
  options.nodes = nodes;
  options.node_rank = node_rank;
  if (nodes > 1) options.rendezvous = "node0:29500";
  return options;
}

TEST(PlacementTest, AloneItStartsNobody) {
  ASSERT_OK_AND_ASSIGN(const Placement placement, Place(With(1)));
  EXPECT_EQ(placement.group.size, 1U);
  EXPECT_FALSE(placement.starts_ranks);
}

TEST(PlacementTest, RanksOfOneHostHaveASecretByChance) {
  ASSERT_OK_AND_ASSIGN(const Placement placement, Place(With(4)));
  EXPECT_TRUE(placement.starts_ranks);
  EXPECT_EQ(placement.ranks_here, 4U);
  EXPECT_EQ(placement.rendezvous, (ranks::Address{"127.0.0.1", 0}));
  EXPECT_EQ(placement.token.size(), 32U);
  ASSERT_OK_AND_ASSIGN(const Placement other, Place(With(4)));
  EXPECT_NE(other.token, placement.token);
}

TEST(PlacementTest, TheFirstRankOfEachHostStartsTheOthers) {
  ASSERT_OK_AND_ASSIGN(const Placement second, Place(With(6, 3, 1), {{kTokenVariable, "secret"}}));
  EXPECT_EQ(second.group.rank, 2U);
  EXPECT_EQ(second.group.node_rank, 1U);
  EXPECT_EQ(second.ranks_here, 2U);
  EXPECT_TRUE(second.starts_ranks);
  EXPECT_EQ(second.token, "secret");
  EXPECT_EQ(second.rendezvous, (ranks::Address{"node0", 29500}));
  Options child = With(6, 3, 1);
  child.rank = 3;
  ASSERT_OK_AND_ASSIGN(const Placement third, Place(child));
  EXPECT_EQ(third.group.rank, 3U);
  EXPECT_FALSE(third.starts_ranks);
}

Variables Torchrun() {
  return {{"RANK", "3"},
          {"WORLD_SIZE", "4"},
          {"LOCAL_RANK", "1"},
          {"LOCAL_WORLD_SIZE", "2"},
          {"GROUP_RANK", "1"},
          {"MASTER_ADDR", "node0"},
          {"MASTER_PORT", "29400"},
          {"TORCHELASTIC_USE_AGENT_STORE", "True"},
          {"TORCHELASTIC_RUN_ID", "run7"},
          {"TORCHELASTIC_RESTART_COUNT", "0"}};
}

TEST(PlacementTest, TorchrunSaysWhoIsWho) {
  ASSERT_OK_AND_ASSIGN(const Placement placement, Place(With(4), Torchrun()));
  EXPECT_EQ(placement.group.rank, 3U);
  EXPECT_EQ(placement.group.node_rank, 1U);
  EXPECT_EQ(placement.group.nodes, 2U);
  EXPECT_EQ(placement.ranks_here, 2U);
  EXPECT_FALSE(placement.starts_ranks);
  ASSERT_TRUE(placement.torch.has_value());
  EXPECT_EQ(placement.torch->store, (ranks::Address{"node0", 29400}));
  EXPECT_EQ(placement.torch->key, "syncline/run7/0/rendezvous");
}

TEST(PlacementTest, WithoutTorchrunsStoreThePortIsFree) {
  Variables variables = Torchrun();
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  ASSERT_OK_AND_ASSIGN(const Placement placement, Place(With(4), variables));
  EXPECT_FALSE(placement.torch.has_value());
  EXPECT_EQ(placement.rendezvous, (ranks::Address{"node0", 29400}));
}

TEST(PlacementTest, WhatContradictsItselfIsRefused) {
  EXPECT_ERROR(Place(With(2), Torchrun()), Code::kInvalidArgument,
               "4 processes (WORLD_SIZE), --tp is 2");
  for (const auto& [name, value] :
       Variables{{"RANK", "4"}, {"LOCAL_WORLD_SIZE", "3"}, {"MASTER_PORT", "70000"}}) {
    Variables variables = Torchrun();
    variables[name] = value;
    EXPECT_ERROR(Place(With(4), variables), Code::kInvalidArgument, value);
  }
  Variables text = Torchrun();
  text["RANK"] = "first";
  EXPECT_ERROR(Place(With(4), text), Code::kInvalidArgument, "RANK");
  Options everywhere = With(2, 2);
  everywhere.rendezvous = "0.0.0.0:29500";
  EXPECT_ERROR(Place(everywhere), Code::kInvalidArgument, "can connect to");
  Options options = With(2, 2);
  options.rendezvous = "no port";
  EXPECT_ERROR(Place(options), Code::kInvalidArgument, "no port");
}

}  // namespace
}  // namespace syncline::serve
