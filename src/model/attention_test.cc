#include "model/attention.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <stdexcept>

#include "model/each_target.h"

namespace syncline::model {
namespace {

using Path = AttentionStep::Path;

// A step and the cache that it finds: earlier tokens of each sequence are there, everything else is
// NaN.
struct Case {
  AttentionSizes sizes;
  at::ScalarType type = at::kBFloat16;
  Batch batch;
  at::Tensor qkv;
  KvLayer layer;
  RotaryTables rotary;

  std::int64_t group() const { return sizes.heads / sizes.kv_heads; }
  KvLayer CloneLayer() const { return {layer.keys.clone(), layer.values.clone()}; }
};

struct Slice {
  std::uint32_t context = 1;
  std::uint32_t length = 1;
};

// Angle 0 everywhere: queries and keys stay as they are.
RotaryTables NoRotation(std::int64_t positions, std::int64_t head_size) {
  return {at::ones({positions, head_size / 2}), at::zeros({positions, head_size / 2})};
}

RotaryTables Rotation(std::int64_t positions, std::int64_t head_size) {
  const at::Tensor angles =
      at::outer(at::arange(positions, at::kFloat),
                at::pow(10000.0, at::arange(head_size / 2, at::kFloat) * -2.0 / head_size));
  return {angles.cos(), angles.sin()};
}

Case MakeCase(const AttentionSizes& sizes, at::ScalarType type, const std::vector<Slice>& slices,
              unsigned seed = 1) {
  Case made{.sizes = sizes, .type = type};
  std::uint32_t blocks = 3;  // that nobody owns
  std::int64_t longest = 1;
  for (const Slice& slice : slices) {
    SequenceSlice sequence{.begin = static_cast<std::uint32_t>(made.batch.tokens.size()),
                           .length = slice.length,
                           .context = slice.context};
    made.batch.tokens.resize(made.batch.tokens.size() + slice.length);
    sequence.blocks.resize((slice.context + kKvBlock - 1) / kKvBlock);
    blocks += static_cast<std::uint32_t>(sequence.blocks.size());
    longest = std::max<std::int64_t>(longest, slice.context);
    made.batch.sequences.push_back(std::move(sequence));
  }
  // Blocks are dealt out in no order.
  std::vector<std::uint32_t> order(blocks);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::shuffle(order, std::mt19937(seed));
  for (SequenceSlice& sequence : made.batch.sequences) {
    for (std::uint32_t& block : sequence.blocks) {
      block = order.back();
      order.pop_back();
    }
  }

  const auto rows = static_cast<std::int64_t>(made.batch.tokens.size());
  const std::int64_t slots = std::int64_t{blocks} * kKvBlock;
  std::vector<std::int64_t> owned;
  for (const SequenceSlice& sequence : made.batch.sequences) {
    for (std::int64_t i = 0; i < sequence.context - sequence.length; ++i) {
      owned.push_back(SlotOf(sequence, i));
    }
  }
  const auto cache = [&] {
    at::Tensor memory = at::full({slots, sizes.kv_heads, sizes.head_size},
                                 std::numeric_limits<double>::quiet_NaN(), type);
    const at::Tensor earlier =
        at::randn({static_cast<std::int64_t>(owned.size()), sizes.kv_heads, sizes.head_size});
    return memory.index_copy_(0, at::tensor(owned, at::kLong), earlier.to(type));
  };
  made.layer = {.keys = cache(), .values = cache()};
  made.qkv = at::randn({rows, (sizes.heads + 2 * sizes.kv_heads) * sizes.head_size}).to(type);
  made.rotary = NoRotation(longest, sizes.head_size);
  return made;
}

at::Tensor RunStep(const Case& c, Path path, const KvLayer& layer) {
  AttentionStep step(c.batch, c.sizes, c.rotary, c.qkv.options(), path);
  return step.Attend(c.qkv.clone(), layer);
}

// In fp64, from queries that are not rotated and the cache as it is after the step. Beside the
// result, the mix of magnitudes of values, to which errors of the weights are in proportion.
struct Exact {
  at::Tensor mixed;
  at::Tensor magnitude;
};

Exact Compute(const Case& c, const KvLayer& layer) {
  const std::int64_t size = c.sizes.head_size;
  std::vector<at::Tensor> mixed;
  std::vector<at::Tensor> magnitude;
  for (const SequenceSlice& sequence : c.batch.sequences) {
    std::vector<std::int64_t> slots;
    for (std::int64_t i = 0; i < sequence.context; ++i) slots.push_back(SlotOf(sequence, i));
    const at::Tensor rows = at::tensor(slots);
    const at::Tensor key = layer.keys.index_select(0, rows).to(at::kDouble);
    const at::Tensor value = layer.values.index_select(0, rows).to(at::kDouble);
    const at::Tensor query = c.qkv.narrow(0, sequence.begin, sequence.length)
                                 .narrow(1, 0, c.sizes.heads * size)
                                 .reshape({sequence.length, c.sizes.kv_heads, c.group(), size})
                                 .to(at::kDouble);
    const at::Tensor position = at::arange(std::int64_t{sequence.context - sequence.length},
                                           std::int64_t{sequence.context});
    const at::Tensor token = at::arange(std::int64_t{sequence.context});
    const at::Tensor distance = position.unsqueeze(1) - token.unsqueeze(0);
    at::Tensor unseen = distance < 0;
    if (c.sizes.window > 0) unseen = unseen | (distance >= c.sizes.window);
    const at::Tensor scores = (at::einsum("ikgd,tkd->kgit", {query, key}) * c.sizes.Scale())
                                  .masked_fill(unseen, -std::numeric_limits<double>::infinity());
    const at::Tensor weights = at::softmax(scores, -1);
    const auto mix = [&](const at::Tensor& of) {
      return at::einsum("kgit,tkd->ikgd", {weights, of}).flatten(1);
    };
    mixed.push_back(mix(value));
    magnitude.push_back(mix(value.abs()));
  }
  return {at::cat(mixed), at::cat(magnitude)};
}

// The share by which weights may be off in fp32: a score is a sum of head_size products, of which
// the largest here is about 6² · head_size / sqrt(head_size); the exponential carries its error
// over; then come the sums over the context. Then one rounding of the result to its type. The
// reference rounds the weights to the type too.
void ExpectNear(const Exact& exact, const Case& c, const at::Tensor& found, Path path) {
  const double rounding = std::ldexp(1.0, c.type == at::kBFloat16 ? -8 : -24);
  std::uint32_t longest = 0;
  for (const SequenceSlice& sequence : c.batch.sequences) {
    longest = std::max(longest, sequence.context);
  }
  const auto size = static_cast<double>(c.sizes.head_size);
  const double scores_error = 36 * size * c.sizes.Scale() * (size + 4) * 0x1p-24;
  const double share = scores_error + (longest + 16.0) * 0x1p-24 +
                       (path == Path::kReference || c.sizes.window > 0 ? 2.01 * rounding : 0.0);
  const at::Tensor bound = exact.mixed.abs() * (1.01 * rounding) + exact.magnitude * share;
  const at::Tensor error = (found.to(at::kDouble) - exact.mixed).abs();
  EXPECT_TRUE((error <= bound).all().item<bool>())
      << "worst by " << (error - bound).max().item<double>();
}

void ExpectBothPathsNearExact(const Case& c) {
  for (const Path path : {Path::kFastest, Path::kReference}) {
    const KvLayer layer = c.CloneLayer();
    const at::Tensor found = RunStep(c, path, layer);
    EXPECT_EQ(found.scalar_type(), c.type);
    EXPECT_EQ(found.sizes(), at::IntArrayRef({c.qkv.size(0), c.sizes.heads * c.sizes.head_size}));
    ExpectNear(Compute(c, layer), c, found, path);
  }
}

const std::vector<Slice> kMixed = {{1, 1},   {17, 1}, {40, 40}, {300, 1},  {128, 1}, {129, 1},
                                   {150, 9}, {16, 3}, {33, 1},  {200, 70}, {5, 5}};

TEST(Attention, EachTargetAndHeadSizeIsWithinRoundingOfTheExactOne) {
  for (const std::int64_t head_size : {16, 18, 24, 64, 80, 96, 128, 256}) {
    SCOPED_TRACE(head_size);
    const Case c = MakeCase({6, 2, head_size}, at::kBFloat16, kMixed);
    KvLayer layer = c.CloneLayer();
    RunStep(c, Path::kReference, layer);
    const Exact exact = Compute(c, layer);
    ForEachTarget(
        [&] { ExpectNear(exact, c, RunStep(c, Path::kFastest, c.CloneLayer()), Path::kFastest); });
  }
}

TEST(Attention, EachGroupAndTypeIsWithinRoundingOfTheExactOne) {
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
    for (const std::int64_t group : {1, 2, 3, 4, 5, 6, 7, 8}) {
      SCOPED_TRACE(group);
      ExpectBothPathsNearExact(MakeCase({3 * group, 3, 32}, type, kMixed));
    }
  }
}

TEST(Attention, WindowOfAnyLengthIsThatManyTokens) {
  for (const std::int64_t window : {1, 2, 16, 37, 70, 128, 150, 299, 300}) {
    SCOPED_TRACE(window);
    ExpectBothPathsNearExact(MakeCase({4, 2, 32, window}, at::kFloat, kMixed));
  }
}

TEST(Attention, ScaleIsTheOneAskedFor) {
  ExpectBothPathsNearExact(MakeCase({4, 2, 32, 0, 0.31}, at::kFloat, kMixed));
  ExpectBothPathsNearExact(MakeCase({4, 2, 32, 20, 0.31}, at::kFloat, kMixed));
}

RC_GTEST_PROP(Attention, IsWithinRoundingWhateverTheStep, ()) {
  const auto kv_heads = *rc::gen::inRange<std::int64_t>(1, 5);
  const AttentionSizes sizes = {kv_heads * *rc::gen::inRange<std::int64_t>(1, 9), kv_heads,
                                2 * *rc::gen::inRange<std::int64_t>(1, 65),
                                *rc::gen::element<std::int64_t>(0, 1, 7, 200)};
  const auto slices = *rc::gen::nonEmpty(rc::gen::container<std::vector<Slice>>(rc::gen::map(
      rc::gen::pair(rc::gen::inRange<std::uint32_t>(1, 1000), rc::gen::inRange(0, 3)),
      [](const std::pair<std::uint32_t, int>& drawn) {
        const auto [context, kind] = drawn;  // a decoding row, a short piece, a long one
        const std::uint32_t length = kind == 0 ? 1 : kind == 1 ? 1 + context % 20 : context / 3 + 1;
        return Slice{context, std::min(context, length)};
      })));
  const std::vector<Slice> few(slices.begin(), slices.begin() + std::min<long>(4, slices.size()));
  ExpectBothPathsNearExact(MakeCase(sizes, *rc::gen::element(at::kBFloat16, at::kFloat), few,
                                    *rc::gen::arbitrary<unsigned>()));
}

// Rotation on: both paths round queries and keys once, to possibly different sides.
TEST(Attention, PathsAgreeWithRotation) {
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
    Case c = MakeCase({6, 2, 64}, type, kMixed);
    c.rotary = Rotation(300, 64);
    const KvLayer fast_layer = c.CloneLayer();
    const KvLayer reference_layer = c.CloneLayer();
    const at::Tensor fast = RunStep(c, Path::kFastest, fast_layer).to(at::kFloat);
    const at::Tensor reference = RunStep(c, Path::kReference, reference_layer).to(at::kFloat);
    const double rounding = type == at::kBFloat16 ? 0x1p-8 : 0x1p-24;
    EXPECT_TRUE(fast_layer.values.allclose(reference_layer.values, 0, 0, /*equal_nan=*/true));
    EXPECT_TRUE(fast_layer.keys.allclose(reference_layer.keys, 2.01 * rounding, 4 * 0x1p-22,
                                         /*equal_nan=*/true));
    // Scores of up to 36 · 8 in magnitude are off by some 2 · rounding of their terms' size.
    EXPECT_LT((fast - reference).abs().max().item<double>(), 40 * rounding);
  }
}

TEST(Attention, StoresKeysAndValuesInTheirSlotsAndNothingElse) {
  for (const Path path : {Path::kFastest, Path::kReference}) {
    const Case c = MakeCase({4, 2, 16}, at::kBFloat16, kMixed);
    const KvLayer layer = c.CloneLayer();
    RunStep(c, path, layer);
    KvLayer expected = c.CloneLayer();
    for (const SequenceSlice& sequence : c.batch.sequences) {
      for (std::int64_t i = 0; i < sequence.length; ++i) {
        const std::int64_t slot = SlotOf(sequence, sequence.context - sequence.length + i);
        const at::Tensor heads = c.qkv[sequence.begin + i].view({8, 16});
        expected.keys[slot].copy_(heads.narrow(0, 4, 2));
        expected.values[slot].copy_(heads.narrow(0, 6, 2));
      }
    }
    EXPECT_TRUE(layer.keys.allclose(expected.keys, 0, 0, /*equal_nan=*/true));
    EXPECT_TRUE(layer.values.allclose(expected.values, 0, 0, /*equal_nan=*/true));
  }
}

// A row has the same bits whether its sequence is alone or not, computed in one piece or token by
// token, on one thread or several.
TEST(Attention, RowDoesNotDependOnBatchPiecesOrThreads) {
  const int threads = at::get_num_threads();
  Case c = MakeCase({6, 2, 64}, at::kBFloat16, kMixed);
  c.rotary = Rotation(300, 64);
  const at::Tensor whole = RunStep(c, Path::kFastest, c.CloneLayer());
  for (const int count : {1, 2, 3, 7}) {
    at::set_num_threads(count);
    EXPECT_TRUE(RunStep(c, Path::kFastest, c.CloneLayer()).equal(whole)) << count;
  }
  at::set_num_threads(threads);

  for (const std::uint32_t most : {1U, 5U, 16U, 64U}) {
    const KvLayer layer = c.CloneLayer();
    for (const SequenceSlice& sequence : c.batch.sequences) {
      for (std::uint32_t done = 0; done < sequence.length;) {
        Case piece{.sizes = c.sizes, .type = c.type};
        SequenceSlice slice = sequence;
        slice.begin = 0;
        slice.length = std::min(most, sequence.length - done);
        slice.context = sequence.context - sequence.length + done + slice.length;
        piece.batch.tokens.resize(slice.length);
        piece.batch.sequences = {slice};
        piece.rotary = c.rotary;
        piece.qkv = c.qkv.narrow(0, sequence.begin + done, slice.length).contiguous();
        const at::Tensor found = RunStep(piece, Path::kFastest, layer);
        ASSERT_TRUE(found.equal(whole.narrow(0, sequence.begin + done, slice.length)))
            << "pieces of " << most << ", context " << slice.context;
        done += slice.length;
      }
    }
  }
}

// Scores far beyond what exp can take.
TEST(Attention, LargeScoresDoNotOverflow) {
  Case c = MakeCase({2, 1, 64}, at::kBFloat16, {{400, 1}, {30, 30}});
  c.qkv.narrow(1, 0, 2 * 64).mul_(3000);
  const KvLayer layer = c.CloneLayer();
  const at::Tensor found = RunStep(c, Path::kFastest, layer);
  EXPECT_TRUE(found.isfinite().all().item<bool>());
  // Nearly all weight is on one token: the result is a mix of at most a few values.
  const at::Tensor magnitude = Compute(c, layer).magnitude;
  EXPECT_TRUE((found.to(at::kDouble).abs() <= magnitude * 1.01 + 0.5).all().item<bool>());
}

TEST(Attention, RefusesWhatDoesNotFit) {
  for (const Path path : {Path::kFastest, Path::kReference}) {
    const auto make = [&](const Case& c) {
      return AttentionStep(c.batch, c.sizes, c.rotary, c.qkv.options(), path);
    };
    Case c = MakeCase({2, 1, 16}, at::kBFloat16, {{20, 1}});
    c.rotary = NoRotation(19, 16);
    EXPECT_THROW(make(c), std::out_of_range);

    c = MakeCase({2, 1, 16}, at::kBFloat16, {{20, 1}});
    c.batch.sequences[0].blocks.pop_back();
    EXPECT_THROW(make(c), std::out_of_range);

    c = MakeCase({2, 1, 16}, at::kBFloat16, {{20, 1}});
    c.batch.sequences[0].blocks[0] = 1000;
    AttentionStep step = make(c);
    EXPECT_THROW(step.Attend(c.qkv, c.layer), std::out_of_range);
  }
}

}  // namespace
}  // namespace syncline::model
