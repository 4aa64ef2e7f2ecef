#include "engine/kv_blocks.h"

#include <gmock/gmock.h>

#include <numeric>

namespace syncline::engine {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Blocks = std::vector<std::uint32_t>;

constexpr std::uint32_t kBlock = 16;

std::vector<BlockKey> KeysOf(std::uint32_t tokens, std::uint64_t epoch = 0,
                             std::string_view partition = "") {
  std::vector<text::TokenId> ids(tokens);
  std::iota(ids.begin(), ids.end(), 0);
  PrefixKeys keys(epoch, partition);
  const auto found = keys.Of(ids);
  return {found.begin(), found.end()};
}

// Publishes all of `blocks`.
void PublishAll(KvBlocks& kv, const Blocks& blocks, const std::vector<BlockKey>& keys) {
  for (std::size_t i = 0; i < blocks.size(); ++i) kv.Publish(blocks[i], keys[i], {{"v", 0, 1}});
}

TEST(PrefixKeys, NameTheTokensTheirBeginningTheEpochAndThePartition) {
  const std::vector<BlockKey> keys = KeysOf(3 * kBlock + 5);
  EXPECT_EQ(keys.size(), 3U);
  EXPECT_EQ(KeysOf(3 * kBlock), keys);
  EXPECT_NE(keys[0], keys[1]);
  EXPECT_NE(KeysOf(kBlock, 1)[0], keys[0]);
  EXPECT_NE(KeysOf(kBlock, 0, "a")[0], keys[0]);
  std::vector<text::TokenId> other(2 * kBlock);
  std::iota(other.begin(), other.end(), 0);
  other[0] = 99;
  PrefixKeys changed(0, "");
  EXPECT_NE(changed.Of(other)[1], keys[1]) << "the same tokens after another beginning";
}

TEST(PrefixKeys, GrowWithTheirSequence) {
  std::vector<text::TokenId> tokens(5 * kBlock);
  std::iota(tokens.begin(), tokens.end(), 0);
  PrefixKeys keys(0, "");
  EXPECT_EQ(keys.Of(std::span(tokens).first(kBlock - 1)).size(), 0U);
  EXPECT_EQ(keys.Of(std::span(tokens).first(2 * kBlock)).size(), 2U);
  EXPECT_EQ(keys.Of(std::span(tokens).first(kBlock)).size(), 1U);
  const auto all = keys.Of(tokens);
  EXPECT_EQ(std::vector(all.begin(), all.end()), KeysOf(5 * kBlock));
}

TEST(KvBlocks, PublishedBlocksAreFoundWhileTheyAreHeldAndAfterwards) {
  KvBlocks kv(8);
  const std::vector<BlockKey> keys = KeysOf(3 * kBlock);
  Blocks first;
  ASSERT_TRUE(kv.Grow(first, 3));
  PublishAll(kv, {first[0], first[1]}, keys);
  Blocks second = kv.Find(keys);
  EXPECT_THAT(second, ElementsAre(first[0], first[1]));
  EXPECT_EQ(kv.free(), 5U);
  const Blocks held = first;
  kv.Release(first);
  EXPECT_EQ(kv.free(), 6U) << "two are still held";
  kv.Release(second);
  EXPECT_EQ(kv.free(), 8U);
  Blocks third = kv.Find(keys);
  EXPECT_THAT(third, ElementsAre(held[0], held[1]));
  EXPECT_EQ(kv.free(), 6U);
  EXPECT_EQ(kv.spans(third[0]).size(), 1U);
}

TEST(KvBlocks, LeastRecentlyUsedIsGivenUpFirstAndTheEndBeforeTheBeginning) {
  KvBlocks kv(4);
  const std::vector<BlockKey> old_keys = KeysOf(2 * kBlock);
  const std::vector<BlockKey> new_keys = KeysOf(2 * kBlock, 1);
  Blocks first;
  Blocks second;
  ASSERT_TRUE(kv.Grow(first, 2));
  ASSERT_TRUE(kv.Grow(second, 2));
  PublishAll(kv, first, old_keys);
  PublishAll(kv, second, new_keys);
  kv.Release(first);
  kv.Release(second);
  Blocks again = kv.Find(old_keys);  // now the younger ones
  kv.Release(again);
  Blocks taken;
  ASSERT_TRUE(kv.Grow(taken, 1));
  Blocks found = kv.Find(new_keys);
  EXPECT_EQ(found.size(), 1U) << "the second block was given up";
  kv.Release(found);
  ASSERT_TRUE(kv.Grow(taken, 2));
  EXPECT_EQ(kv.Find(new_keys).size(), 1U);
  EXPECT_EQ(kv.Find(old_keys).size(), 1U);
  EXPECT_FALSE(kv.Grow(taken, 3)) << "what is held is not given up";
}

TEST(KvBlocks, FreeBlocksAreTakenBeforePublishedOnes) {
  KvBlocks kv(3);
  const std::vector<BlockKey> keys = KeysOf(kBlock);
  Blocks first;
  ASSERT_TRUE(kv.Grow(first, 1));
  PublishAll(kv, first, keys);
  kv.Release(first);
  Blocks other;
  ASSERT_TRUE(kv.Grow(other, 2));
  EXPECT_EQ(kv.Find(keys).size(), 1U);
}

TEST(KvBlocks, ForgottenBlocksAreNotFoundButStayWithTheirHolders) {
  KvBlocks kv(4);
  const std::vector<BlockKey> keys = KeysOf(2 * kBlock);
  Blocks held;
  Blocks idle;
  ASSERT_TRUE(kv.Grow(held, 1));
  ASSERT_TRUE(kv.Grow(idle, 1));
  kv.Publish(held[0], keys[0], {});
  kv.Publish(idle[0], keys[1], {});
  kv.Release(idle);
  kv.Forget();
  EXPECT_THAT(kv.Find(keys), IsEmpty());
  EXPECT_EQ(kv.free(), 3U);
  Blocks rest;
  ASSERT_TRUE(kv.Grow(rest, 3));
  EXPECT_EQ(std::ranges::count(rest, held[0]), 0);
  kv.Release(held);
  EXPECT_EQ(kv.free(), 1U);
}

TEST(KvBlocks, ContentThatIsKnownIsNotPublishedTwice) {
  KvBlocks kv(2);
  const std::vector<BlockKey> keys = KeysOf(kBlock);
  Blocks first;
  Blocks second;
  ASSERT_TRUE(kv.Grow(first, 1));
  ASSERT_TRUE(kv.Grow(second, 1));
  kv.Publish(first[0], keys[0], {});
  kv.Publish(second[0], keys[0], {});
  kv.Release(second);
  Blocks found = kv.Find(keys);
  EXPECT_EQ(found, first);
  Blocks other;
  EXPECT_TRUE(kv.Grow(other, 1)) << "the second one is free";
}

}  // namespace
}  // namespace syncline::engine
