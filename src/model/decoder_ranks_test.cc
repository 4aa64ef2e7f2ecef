// Several ranks, as threads of this process, against one; and weights that change under a decoder.
#include <ATen/Parallel.h>
#include <ATen/ops/add.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>

#include "base/result_matchers.h"
#include "model/architecture.h"
#include "model/collectives.h"
#include "model/small_ranks.h"

namespace syncline::model {
namespace {

using tensor::Dtype;

constexpr std::uint32_t kBlocks = 12;

// What the threads of all ranks share.
struct Meeting {
  explicit Meeting(std::uint32_t size) : barrier(size), slots(size) {}
  std::barrier<> barrier;
  std::vector<at::Tensor> slots;
};

class ThreadCollectives : public Collectives {
 public:
  ThreadCollectives(Meeting& meeting, std::uint32_t rank) : meeting_(meeting), rank_(rank) {}

  void Sum(at::Tensor& x) override {
    EXPECT_TRUE(x.is_contiguous());
    EXPECT_EQ(x.scalar_type(), at::kFloat);
    const std::vector<at::Tensor> all = Exchange(x.clone());
    x.copy_(all[0]);
    for (std::size_t i = 1; i < all.size(); ++i) x.add_(all[i]);
  }

  std::vector<at::Tensor> Gather(const at::Tensor& x) override {
    std::vector<at::Tensor> all = Exchange(x.clone());
    return rank_ == 0 ? all : std::vector<at::Tensor>();
  }

 private:
  std::vector<at::Tensor> Exchange(at::Tensor own) {
    meeting_.slots[rank_] = std::move(own);
    meeting_.barrier.arrive_and_wait();
    std::vector<at::Tensor> all = meeting_.slots;
    meeting_.barrier.arrive_and_wait();
    return all;
  }

  Meeting& meeting_;
  std::uint32_t rank_;
};

// A prompt in two pieces beside another sequence, then a few tokens of both: logits of all rows.
std::vector<Batch> MakeSteps(std::uint32_t vocabulary, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Batch> steps;
  const auto add = [&](Batch& batch, std::uint32_t length, std::uint32_t context,
                       std::vector<std::uint32_t> blocks) {
    batch.sequences.push_back(
        {static_cast<std::uint32_t>(batch.tokens.size()), length, context, std::move(blocks)});
    for (std::uint32_t i = 0; i < length; ++i) {
      batch.logits_rows.push_back(static_cast<std::uint32_t>(batch.tokens.size()));
      batch.tokens.push_back(static_cast<std::int32_t>(random() % vocabulary));
    }
  };
  add(steps.emplace_back(), 23, 23, {5, 2});
  add(steps.emplace_back(), 21, 44, {5, 2, 7});
  add(steps.back(), 9, 9, {0});
  for (std::uint32_t i = 1; i <= 4; ++i) {
    add(steps.emplace_back(), 1, 44 + i, {5, 2, 7});
    add(steps.back(), 1, 9 + i, {0});
  }
  return steps;
}

std::vector<float> RunSteps(Model& model, const std::vector<Batch>& steps) {
  std::vector<float> all;
  for (const Batch& batch : steps) {
    std::vector<float> logits(batch.logits_rows.size() * model.config().vocabulary);
    EXPECT_OK(model.Forward(batch, logits));
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

// What rank 0 of so many gives.
std::vector<float> RunRanks(const SmallModel& small, const Weights& weights,
                            const layout::Shard& division, const std::vector<Batch>& steps) {
  Meeting meeting(division.size);
  std::vector<float> result;
  const auto run = [&](std::uint32_t rank) {
    at::set_num_threads(1);
    ThreadCollectives collectives(meeting, rank);
    ModelOptions options{.threads = 1, .shard = division};
    options.shard.rank = rank;
    if (division.size > 1) options.collectives = &collectives;
    auto model = MakeRank(small, weights, options, kBlocks);
    ASSERT_OK(model);
    std::vector<float> logits = RunSteps(**model, steps);
    if (rank == 0) result = std::move(logits);
  };
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < division.size; ++rank) threads.emplace_back(run, rank);
  for (std::thread& thread : threads) thread.join();
  return result;
}

float LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  float largest = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    // A NaN is a difference too.
    if (!(std::abs(a[i] - b[i]) <= largest)) largest = std::abs(a[i] - b[i]);
  }
  return largest;
}

class DecoderRanks : public testing::TestWithParam<const Architecture*> {};
INSTANTIATE_TEST_SUITE_P(All, DecoderRanks,
                         testing::ValuesIn(Architectures().begin(), Architectures().end()),
                         [](const auto& tested) { return std::string(tested.param->name); });

TEST_P(DecoderRanks, SeveralGiveTheLogitsOfOne) {
  for (const std::uint32_t seed : {1U, 2U, 3U}) {
    const SmallModel small = MakeSmallModel(GetParam()->name, seed, Dtype::kF32, /*even=*/true);
    SCOPED_TRACE(small.config);
    ASSERT_OK_AND_ASSIGN(const DecoderPlan plan, PlanSmall(small, {}));
    const Weights weights = MakeWeights(plan.plan, seed);
    const std::vector<Batch> steps = MakeSteps(ParseSmall(small).vocabulary, seed);
    const std::vector<float> alone = RunRanks(small, weights, {}, steps);
    EXPECT_GT(*std::ranges::max_element(alone), 0.5F);
    for (const layout::Shard& division :
         {layout::Shard{.size = 2}, layout::Shard{.size = 2, .expert_groups = 2},
          layout::Shard{.size = 4}, layout::Shard{.size = 4, .expert_groups = 2}}) {
      const std::vector<float> found = RunRanks(small, weights, division, steps);
      EXPECT_LT(LargestDifference(found, alone), 1e-4F)
          << division.size << " ranks, " << division.expert_groups << " groups";
    }
  }
}

// Mixtures and latent attention too must not mix up the rows of different sequences.
TEST_P(DecoderRanks, LogitsDoNotDependOnTheRowsBeside) {
  const SmallModel small = MakeSmallModel(GetParam()->name, 5, Dtype::kF32, /*even=*/false);
  ASSERT_OK_AND_ASSIGN(const DecoderPlan plan, PlanSmall(small, {}));
  ASSERT_OK_AND_ASSIGN(const auto model,
                       MakeRank(small, MakeWeights(plan.plan, 5), {.threads = 1}, kBlocks));
  const std::vector<Batch> steps = MakeSteps(ParseSmall(small).vocabulary, 5);
  const std::vector<float> together = RunSteps(*model, steps);
  std::vector<Batch> apart;
  std::vector<std::int32_t> first;
  for (const Batch& batch : steps) {
    for (std::uint32_t i = 0; i < batch.sequences[0].length; ++i) first.push_back(batch.tokens[i]);
  }
  for (std::uint32_t i = 0; i < first.size(); ++i) {
    apart.push_back({{first[i]}, {{0, 1, i + 1, {5, 2, 7}}}, {0}});
  }
  ASSERT_OK(model->ReserveKv(kBlocks));
  const std::vector<float> alone = RunSteps(*model, apart);
  // The last step's first row is the last of the sequence.
  const std::size_t vocabulary = ParseSmall(small).vocabulary;
  const std::vector<float> last(alone.end() - static_cast<long>(vocabulary), alone.end());
  const std::vector<float> found(together.end() - static_cast<long>(2 * vocabulary),
                                 together.end() - static_cast<long>(vocabulary));
  EXPECT_LT(LargestDifference(found, last), 1e-4F);
}

using Addresses = std::vector<const std::byte*>;

Addresses AddressesOf(Model& model) {
  Addresses addresses;
  for (const base::MutableByteSpan bytes : model.parameters().live()) {
    addresses.push_back(bytes.data());
  }
  return addresses;
}

std::vector<std::vector<std::byte>> BytesOf(Model& model) {
  std::vector<std::vector<std::byte>> bytes;
  for (const base::MutableByteSpan span : model.parameters().live()) {
    bytes.emplace_back(span.begin(), span.end());
  }
  return bytes;
}

// BR-25: derived weights that stay those of the version before, or move while something holds their
// address.
TEST_P(DecoderRanks, DerivedWeightsFollowAnUpdateAndStayInPlaceBr25) {
  const SmallModel small = MakeSmallModel(GetParam()->name, 4, Dtype::kF32, /*even=*/true);
  const ModelOptions options{.threads = 1};
  ASSERT_OK_AND_ASSIGN(const DecoderPlan plan, PlanSmall(small, {}));
  const Weights a = MakeWeights(plan.plan, 1);
  const Weights b = MakeWeights(plan.plan, 2);
  const std::vector<Batch> steps = MakeSteps(ParseSmall(small).vocabulary, 4);
  ASSERT_OK_AND_ASSIGN(const auto model, MakeRank(small, a, options, kBlocks));
  ASSERT_OK_AND_ASSIGN(const auto cold_b, MakeRank(small, b, options, kBlocks));
  const Addresses addresses = AddressesOf(*model);
  const auto bytes_a = BytesOf(*model);
  const std::vector<float> logits_a = RunSteps(*model, steps);
  EXPECT_NE(bytes_a, BytesOf(*cold_b));

  base::ThreadPool pool(2);
  ASSERT_OK_AND_ASSIGN(const auto staging, model->parameters().Staging());
  ScatterAll(model->plan(), b, staging);
  ASSERT_OK(model->Derive(staging));
  EXPECT_EQ(BytesOf(*model), bytes_a);
  std::vector<std::size_t> all(staging.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  model->parameters().Commit(all, pool);
  EXPECT_EQ(AddressesOf(*model), addresses);
  EXPECT_EQ(BytesOf(*model), BytesOf(*cold_b));
  EXPECT_EQ(RunSteps(*model, steps), RunSteps(*cold_b, steps));

  ScatterAll(model->plan(), a, staging);
  ASSERT_OK(model->Derive(staging));
  model->parameters().Commit(all, pool);
  EXPECT_EQ(AddressesOf(*model), addresses);
  EXPECT_EQ(BytesOf(*model), bytes_a);
  EXPECT_EQ(RunSteps(*model, steps), logits_a);
}

// A parameter by name, as fp32.
std::span<const float> FloatsOf(Model& model, const std::string& name) {
  const std::size_t parameter = model.plan().FindParameter(name);
  EXPECT_NE(parameter, layout::Plan::npos) << name;
  const base::MutableByteSpan bytes = model.parameters().live()[parameter];
  return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
}

TEST(LatentDecoder, DerivedWeightsAreThoseOfTheLocalHeadsTransposed) {
  const SmallModel small = MakeSmallModel("DeepseekV3ForCausalLM", 4, Dtype::kF32, /*even=*/true);
  const ModelConfig config = ParseSmall(small);
  const LatentConfig& latent = *config.latent;
  ASSERT_OK_AND_ASSIGN(const DecoderPlan plan, PlanSmall(small, {}));
  const layout::Shard shard{.rank = 1, .size = 2};
  ASSERT_OK_AND_ASSIGN(const auto model, MakeRank(small, MakeWeights(plan.plan, 4),
                                                  {.threads = 1, .shard = shard}, kBlocks));
  const std::string prefix = "model.layers.1.self_attn.kv_b_proj.";
  const auto kv_b = FloatsOf(*model, prefix + "weight");
  const auto k = FloatsOf(*model, prefix + "absorbed_k");
  const auto v = FloatsOf(*model, prefix + "absorbed_v");
  const std::size_t heads = config.heads / 2;
  const std::size_t rank = latent.kv_rank;
  ASSERT_EQ(k.size(), heads * rank * latent.nope_size);
  ASSERT_EQ(v.size(), heads * rank * latent.value_size);
  for (std::size_t head = 0; head < heads; ++head) {
    const std::size_t first = head * (latent.nope_size + latent.value_size);
    for (std::size_t l = 0; l < rank; ++l) {
      for (std::size_t i = 0; i < latent.nope_size; ++i) {
        ASSERT_EQ(k[(head * rank + l) * latent.nope_size + i], kv_b[(first + i) * rank + l]);
      }
      for (std::size_t i = 0; i < latent.value_size; ++i) {
        ASSERT_EQ(v[(head * latent.value_size + i) * rank + l],
                  kv_b[(first + latent.nope_size + i) * rank + l]);
      }
    }
  }
  for (const char* name : {"absorbed_k", "absorbed_v"}) {
    EXPECT_TRUE(model->plan().IsDerived(model->plan().FindParameter(prefix + name)));
  }
}

}  // namespace
}  // namespace syncline::model
