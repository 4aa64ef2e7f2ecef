// Updates of one runner: whatever comes, in whatever pieces and order, and wherever it is written,
// what is live afterwards is a cold load of what was sent over what was there.
#include "update/transaction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <numeric>
#include <random>

#include "base/result_matchers.h"
#include "quant/forms.h"
#include "update/unit_model.h"

namespace syncline::update {
namespace {

using base::Code;
using base::Status;
using layout::Arrival;
using layout::Claim;
using Weights = UnitModel::Weights;

// Everything, and not enough for the second unit.
constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};
constexpr std::uint64_t kSome = 60'000;

class Updated {
 public:
  explicit Updated(std::uint64_t undo_memory)
      : forms_(quant::MakeForms(model.plan(), model.units())),
        transaction(model, *forms_, undo_memory) {}

  Arrival ArrivalOf(std::size_t tensor, const Weights& weights) const {
    const layout::TensorSpec& spec = model.plan().tensors()[tensor];
    return {spec.name, spec.dtype, spec.shape, weights[tensor]};
  }

  // A message of these tensors.
  Status Send(const std::vector<std::size_t>& tensors, const Weights& weights) {
    std::vector<Arrival> message;
    for (const std::size_t tensor : tensors) message.push_back(ArrivalOf(tensor, weights));
    SYNCLINE_ASSIGN(const std::vector<Claim> claims, transaction.Find(message, /*direct=*/false));
    return transaction.Write(message, claims, pool);
  }

  // Writes past the transaction, as who has the address of its window does.
  Status Poke(const std::vector<std::size_t>& tensors, const Weights& weights) {
    SYNCLINE_ASSIGN(const base::Arena* window, transaction.window());
    const std::byte* const live = model.parameters().live_arena().bytes().data();
    std::vector<base::MutableByteSpan> slots;
    for (const base::MutableByteSpan slot : model.parameters().live()) {
      const auto offset = static_cast<std::size_t>(slot.data() - live);
      slots.push_back(window->bytes().subspan(offset, slot.size()));
    }
    for (const std::size_t tensor : tensors) model.plan().Scatter(tensor, weights[tensor], slots);
    return {};
  }

  Status Finish() {
    SYNCLINE_TRY(transaction.Prepare(pool));
    transaction.Commit(pool);
    return {};
  }

  std::size_t Tensor(std::string_view name) const { return model.plan().FindTensor(name); }

  UnitModel model;
  base::ThreadPool pool{2};

 private:
  std::unique_ptr<layout::Forms> forms_;

 public:
  Transaction transaction;
};

// The tensors of each checkpoint module, which come together or not at all.
std::vector<std::vector<std::size_t>> Modules(const UnitModel& model) {
  std::vector<std::vector<std::size_t>> modules;
  for (std::size_t i = 0; i < model.plan().tensors().size(); ++i) {
    const std::string& name = model.plan().tensors()[i].name;
    if (name.contains(".weight_scale")) {
      modules.back().push_back(i);
    } else {
      modules.push_back({i});
    }
  }
  return modules;
}

std::vector<std::vector<std::byte>> ColdState(const Weights& weights) {
  UnitModel model;
  model.Load(weights);
  return model.State();
}

// BR-21, BR-27, BR-28: nothing, a half, everything; cut and shuffled in any way; staged, in place,
// and both; in messages, by others who write straight into the memory, and both; many times.
RC_GTEST_PROP(Transactions, AnyUpdateEndsAtAColdLoadOfWhatWasSentOverWhatWasThere, ()) {
  const auto undo_memory = *rc::gen::element(kUnlimited, kSome, std::uint64_t{0});
  Updated updated(undo_memory);
  updated.model.Load(updated.model.RandomWeights(*rc::gen::arbitrary<std::uint32_t>()));
  const auto addresses = updated.model.Addresses();
  for (int round = 0; round < 3; ++round) {
    Weights expected = updated.model.Exported();
    const Weights next = updated.model.RandomWeights(*rc::gen::arbitrary<std::uint32_t>());
    const int part = *rc::gen::inRange(0, 3);  // nothing, a half, everything
    std::vector<std::size_t> sent;
    for (const auto& module : Modules(updated.model)) {
      if (part == 0 || (part == 1 && *rc::gen::inRange(0, 2) == 0)) continue;
      sent.insert(sent.end(), module.begin(), module.end());
    }
    for (const std::size_t tensor : sent) expected[tensor] = next[tensor];
    std::mt19937_64 random(*rc::gen::arbitrary<std::uint32_t>());
    std::ranges::shuffle(sent, random);
    const std::size_t chunk = *rc::gen::element<std::size_t>(1, 2, 3, 7, 1000);
    const bool open = *rc::gen::arbitrary<bool>();
    if (open) RC_ASSERT(updated.transaction.Open(updated.pool));
    for (std::size_t i = 0; i < sent.size(); i += chunk) {
      const auto end = sent.begin() + static_cast<std::ptrdiff_t>(std::min(i + chunk, sent.size()));
      const std::vector<std::size_t> cut(sent.begin() + static_cast<std::ptrdiff_t>(i), end);
      const bool poke = open && *rc::gen::inRange(0, 4) != 0;
      const Status taken = poke ? updated.Poke(cut, next) : updated.Send(cut, next);
      RC_ASSERT(taken);
    }
    RC_ASSERT(updated.transaction.Halves().empty());
    RC_ASSERT(updated.Finish());
    RC_ASSERT(updated.transaction.Lost().empty());
    RC_ASSERT(updated.model.State() == ColdState(expected));
    RC_ASSERT(updated.model.Addresses() == addresses);
  }
}

// What is dropped leaves no trace where it was staged.
RC_GTEST_PROP(Transactions, WhatIsDroppedLeavesNoTrace, ()) {
  Updated updated(kUnlimited);
  const Weights first = updated.model.RandomWeights(1);
  updated.model.Load(first);
  const auto before = updated.model.State();
  const Weights next = updated.model.RandomWeights(2);
  for (std::size_t i = 0; i < next.size(); ++i) {
    if (*rc::gen::inRange(0, 2) == 1) RC_ASSERT(updated.Send({i}, next));
  }
  if (*rc::gen::inRange(0, 2) == 1) RC_ASSERT(updated.transaction.Prepare(updated.pool));
  updated.transaction.Drop(updated.pool);
  RC_ASSERT(updated.model.State() == before);
  RC_ASSERT(updated.transaction.Lost().empty());
  std::vector<std::size_t> all(next.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  RC_ASSERT(updated.Send(all, next));
  RC_ASSERT(updated.Finish());
  RC_ASSERT(updated.model.State() == ColdState(next));
}

TEST(Transaction, WhatIsWrittenIntoAnOpenWindowCanBeDropped) {
  Updated updated(kUnlimited);
  updated.model.Load(updated.model.RandomWeights(1));
  const auto before = updated.model.State();
  const Weights next = updated.model.RandomWeights(2);
  std::vector<std::size_t> all(next.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  for (const bool prepare : {false, true}) {
    ASSERT_OK(updated.transaction.Open(updated.pool));
    ASSERT_OK(updated.Poke(all, next));
    EXPECT_EQ(updated.model.State(), before);
    if (prepare) ASSERT_OK(updated.transaction.Prepare(updated.pool));
    updated.transaction.Drop(updated.pool);
    EXPECT_EQ(updated.model.State(), before);
    EXPECT_THAT(updated.transaction.Lost(), testing::IsEmpty());
  }
  // Nothing of it is in the next one.
  ASSERT_OK(updated.transaction.Open(updated.pool));
  ASSERT_OK(updated.Finish());
  EXPECT_EQ(updated.model.State(), before);
}

// What was written in place and dropped is lost, until a writer ends well; what was not is not.
TEST(Transaction, AWriterThatFailsInPlaceLosesWhatItWrote) {
  Updated updated(0);
  const Weights first = updated.model.RandomWeights(1);
  updated.model.Load(first);
  const auto before = updated.model.State();
  const Weights next = updated.model.RandomWeights(2);
  for (const bool prepare : {false, true}) {
    ASSERT_OK(updated.transaction.Open(updated.pool));
    EXPECT_TRUE(updated.transaction.writes_in_place());
    if (prepare) ASSERT_OK(updated.transaction.Prepare(updated.pool));
    updated.transaction.Drop(updated.pool);
    EXPECT_THAT(updated.transaction.Lost(), testing::IsEmpty());
    EXPECT_EQ(updated.model.State(), before);
  }
  ASSERT_OK(updated.transaction.Open(updated.pool));
  ASSERT_OK(updated.Poke({updated.Tensor("plain")}, next));
  updated.transaction.Drop(updated.pool);
  EXPECT_THAT(updated.transaction.Lost(), testing::ElementsAre("plain"));
  ASSERT_OK(updated.transaction.Open(updated.pool));
  ASSERT_OK(updated.Poke({updated.Tensor("plain")}, next));
  ASSERT_OK(updated.Finish());
  EXPECT_THAT(updated.transaction.Lost(), testing::IsEmpty());
  Weights expected = first;
  expected[updated.Tensor("plain")] = next[updated.Tensor("plain")];
  EXPECT_EQ(updated.model.State(), ColdState(expected));
}

TEST(Transaction, OnlyWhatAWriterChangesCounts) {
  for (const std::uint64_t undo_memory : {kUnlimited, std::uint64_t{0}}) {
    Updated updated(undo_memory);
    updated.model.Load(updated.model.RandomWeights(1));
    const Weights next = updated.model.RandomWeights(2);
    ASSERT_OK(updated.transaction.Open(updated.pool));
    ASSERT_OK_AND_ASSIGN(Transaction::Ready ready, updated.transaction.Prepare(updated.pool));
    EXPECT_FALSE(ready.touched);
    EXPECT_THAT(updated.transaction.Commit(updated.pool), testing::SizeIs(1));  // derived
    ASSERT_OK(updated.transaction.Open(updated.pool));
    ASSERT_OK(updated.Poke({updated.Tensor("plain")}, next));
    ASSERT_OK_AND_ASSIGN(ready, updated.transaction.Prepare(updated.pool));
    EXPECT_TRUE(ready.touched);
    EXPECT_FALSE(ready.came);
    EXPECT_FALSE(ready.unchanged);
    EXPECT_THAT(updated.transaction.Commit(updated.pool),
                testing::Contains(updated.model.plan().FindParameter("plain")));
  }
}

TEST(Transaction, TheWindowIsAlwaysTheSame) {
  for (const std::uint64_t undo_memory : {kUnlimited, kSome, std::uint64_t{0}}) {
    Updated updated(undo_memory);
    updated.model.Load(updated.model.RandomWeights(1));
    ASSERT_OK_AND_ASSIGN(const base::Arena* window, updated.transaction.window());
    const std::byte* const address = window->bytes().data();
    for (int round = 0; round < 100; ++round) {
      ASSERT_OK(updated.transaction.Open(updated.pool));
      ASSERT_OK(updated.Finish());
      ASSERT_OK_AND_ASSIGN(window, updated.transaction.window());
      ASSERT_EQ(window->bytes().data(), address);
    }
  }
}

TEST(Transaction, LiveWeightsAreUntouchedUntilTheCommit) {
  Updated updated(kUnlimited);
  updated.model.Load(updated.model.RandomWeights(1));
  const auto before = updated.model.State();
  const Weights next = updated.model.RandomWeights(2);
  for (std::size_t i = 0; i < next.size(); ++i) {
    ASSERT_OK(updated.Send({i}, next));
    EXPECT_EQ(updated.model.State(), before);
  }
  ASSERT_OK(updated.transaction.Prepare(updated.pool));
  EXPECT_EQ(updated.model.State(), before);
  updated.transaction.Commit(updated.pool);
  EXPECT_EQ(updated.model.State(), ColdState(next));
}

TEST(Transaction, AHundredRoundsBetweenTwoVersionsComeBackToTheSameBytes) {
  Updated updated(kUnlimited);
  const Weights a = updated.model.RandomWeights(1);
  const Weights b = updated.model.RandomWeights(2);
  const auto state_a = ColdState(a);
  const auto state_b = ColdState(b);
  std::vector<std::size_t> all(a.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  for (int round = 0; round < 100; ++round) {
    ASSERT_OK(updated.Send(all, round % 2 == 0 ? a : b));
    ASSERT_OK(updated.Finish());
    ASSERT_EQ(updated.model.State(), round % 2 == 0 ? state_a : state_b) << round;
  }
}

// BR-28: what is not sent is not packed again.
TEST(Transaction, BR28OneLayerOfManyLeavesTheOthers) {
  Updated updated(kUnlimited);
  updated.model.Load(updated.model.RandomWeights(1));
  const auto before = updated.model.State();
  const Weights next = updated.model.RandomWeights(2);
  ASSERT_OK(
      updated.Send({updated.Tensor("g.1.weight"), updated.Tensor("g.1.weight_scale_inv")}, next));
  ASSERT_OK(updated.Finish());
  const auto after = updated.model.State();
  const layout::Plan& plan = updated.model.plan();
  for (std::size_t i = 0; i < after.size(); ++i) {
    const bool sent = plan.parameters()[i].name.starts_with("gu.");
    EXPECT_EQ(after[i] == before[i], !sent) << plan.parameters()[i].name;
  }
  // Of the unit, the other experts too.
  const std::size_t weight = plan.FindParameter("gu.weight");
  const std::size_t expert = after[weight].size() / 3;
  EXPECT_TRUE(std::equal(after[weight].begin(),
                         after[weight].begin() + static_cast<std::ptrdiff_t>(expert),
                         before[weight].begin()));
}

// BR-25: what is derived follows, at its old address.
TEST(Transaction, BR25DerivedWeightsAreThoseOfAColdLoad) {
  Updated updated(kUnlimited);
  const Weights a = updated.model.RandomWeights(1);
  updated.model.Load(a);
  const std::size_t absorbed = updated.model.plan().FindParameter("absorbed");
  const auto before = updated.model.State()[absorbed];
  Weights next = a;
  const Weights b = updated.model.RandomWeights(2);
  for (const char* name : {"k.weight", "k.weight_scale_inv"}) {
    next[updated.Tensor(name)] = b[updated.Tensor(name)];
    ASSERT_OK(updated.Send({updated.Tensor(name)}, b));
  }
  ASSERT_OK(updated.Finish());
  EXPECT_NE(updated.model.State()[absorbed], before);
  ASSERT_OK(updated.Send({updated.Tensor("k.weight"), updated.Tensor("k.weight_scale_inv")}, a));
  ASSERT_OK(updated.Finish());
  EXPECT_EQ(updated.model.State()[absorbed], before);
}

TEST(Transaction, AWeightWithoutItsScaleIsAHalf) {
  Updated updated(kUnlimited);
  updated.model.Load(updated.model.RandomWeights(1));
  const auto before = updated.model.State();
  const Weights next = updated.model.RandomWeights(2);
  ASSERT_OK(updated.Send({updated.Tensor("q.weight"), updated.Tensor("plain")}, next));
  EXPECT_THAT(updated.transaction.Halves(),
              testing::ElementsAre("q: weight has come without weight_scale_inv"));
  // What is whole becomes live; the half waits, and is not processed.
  ASSERT_OK(updated.Finish());
  Weights expected = updated.model.RandomWeights(1);
  expected[updated.Tensor("plain")] = next[updated.Tensor("plain")];
  EXPECT_EQ(updated.model.State(), ColdState(expected));
  EXPECT_EQ(updated.transaction.Halves().size(), 1U);
  ASSERT_OK(updated.Send({updated.Tensor("q.weight_scale_inv")}, next));
  EXPECT_TRUE(updated.transaction.Halves().empty());
  ASSERT_OK(updated.Finish());
  for (const char* name : {"q.weight", "q.weight_scale_inv"}) {
    expected[updated.Tensor(name)] = next[updated.Tensor(name)];
  }
  // k was there, and processed once already.
  UnitModel cold;
  cold.Load(updated.model.RandomWeights(1));
  Weights over = cold.Exported();
  for (const char* name : {"q.weight", "q.weight_scale_inv", "plain"}) {
    over[updated.Tensor(name)] = next[updated.Tensor(name)];
  }
  EXPECT_EQ(updated.model.State(), ColdState(over));
}

TEST(Transaction, SayingThatNothingChanged) {
  Updated updated(kUnlimited);
  const Weights a = updated.model.RandomWeights(1);
  updated.model.Load(a);
  ASSERT_OK_AND_ASSIGN(Transaction::Ready ready, updated.transaction.Prepare(updated.pool));
  EXPECT_FALSE(ready.touched);
  ASSERT_OK(updated.Send({0, 3}, a));
  ASSERT_OK_AND_ASSIGN(ready, updated.transaction.Prepare(updated.pool));
  EXPECT_TRUE(ready.touched);
  EXPECT_TRUE(ready.unchanged);
  updated.transaction.Commit(updated.pool);
  ASSERT_OK(updated.Send({0}, updated.model.RandomWeights(2)));
  ASSERT_OK_AND_ASSIGN(ready, updated.transaction.Prepare(updated.pool));
  EXPECT_FALSE(ready.unchanged);
  updated.transaction.Drop(updated.pool);
  // One bit of the last byte.
  const std::vector<std::size_t> large = {updated.Tensor("w.weight"),
                                          updated.Tensor("w.weight_scale_inv")};
  Weights close = a;
  close[large[0]].back() ^= std::byte{0x80};
  ASSERT_OK(updated.Send(large, close));
  ASSERT_OK_AND_ASSIGN(ready, updated.transaction.Prepare(updated.pool));
  EXPECT_FALSE(ready.unchanged);
  ASSERT_OK(updated.Send(large, a));
  ASSERT_OK_AND_ASSIGN(ready, updated.transaction.Prepare(updated.pool));
  EXPECT_TRUE(ready.unchanged);
}

// In place there is no way back; what is lost stays lost until it has come completely.
TEST(Transaction, WhatWasWrittenInPlaceAndDroppedIsLostUntilItIsWrittenAnew) {
  Updated updated(0);
  const Weights a = updated.model.RandomWeights(1);
  const Weights b = updated.model.RandomWeights(2);
  updated.model.Load(a);
  EXPECT_TRUE(updated.transaction.may_write_in_place());
  ASSERT_OK(updated.Send({updated.Tensor("a"), updated.Tensor("q.weight")}, b));
  EXPECT_TRUE(updated.transaction.writes_in_place());
  updated.transaction.Drop(updated.pool);
  EXPECT_FALSE(updated.transaction.writes_in_place());
  EXPECT_THAT(updated.transaction.Lost(),
              testing::ElementsAre("a", "b", "c", "q.weight", "q.weight_scale_inv", "k.weight",
                                   "k.weight_scale_inv"));
  ASSERT_OK(updated.Send({updated.Tensor("a"), updated.Tensor("b")}, a));
  ASSERT_OK(updated.Finish());
  EXPECT_EQ(updated.transaction.Lost().size(), 5U);  // c may be of any version
  std::vector<std::size_t> all(a.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  ASSERT_OK(updated.Send(all, a));
  ASSERT_OK(updated.Finish());
  EXPECT_TRUE(updated.transaction.Lost().empty());
  EXPECT_EQ(updated.model.State(), ColdState(a));
}

// Whatever is lost comes back tensor by tensor, over any number of updates.
RC_GTEST_PROP(Transactions, WhatIsLostComesBackPieceByPiece, ()) {
  Updated updated(*rc::gen::element(kUnlimited, kSome, std::uint64_t{0}));
  updated.model.Load(updated.model.RandomWeights(*rc::gen::arbitrary<std::uint32_t>()));
  updated.model.parameters().Release();
  RC_ASSERT(updated.model.parameters().Resume());
  updated.transaction.LoseAll();
  const Weights next = updated.model.RandomWeights(*rc::gen::arbitrary<std::uint32_t>());
  std::size_t left = next.size();
  std::vector<std::vector<std::size_t>> modules = Modules(updated.model);
  std::mt19937_64 random(*rc::gen::arbitrary<std::uint32_t>());
  std::ranges::shuffle(modules, random);
  for (const std::vector<std::size_t>& module : modules) {
    RC_ASSERT(updated.transaction.Lost().size() == left);
    RC_ASSERT(updated.Send(module, next));
    RC_ASSERT(updated.Finish());
    left -= module.size();
  }
  RC_ASSERT(updated.transaction.Lost().empty());
  RC_ASSERT(updated.model.State() == ColdState(next));
}

TEST(Transaction, UndoMemoryBoundsWhatIsStaged) {
  Updated enough(kUnlimited);
  EXPECT_FALSE(enough.transaction.may_write_in_place());
  Updated some(kSome);
  EXPECT_TRUE(some.transaction.may_write_in_place());
  const Weights a = some.model.RandomWeights(1);
  some.model.Load(a);
  ASSERT_OK(some.Send({some.Tensor("a")}, a));
  EXPECT_FALSE(some.transaction.writes_in_place());
  ASSERT_OK(some.Send({some.Tensor("g.0.weight"), some.Tensor("g.0.weight_scale_inv")}, a));
  EXPECT_TRUE(some.transaction.writes_in_place());
}

// The engine's own names, in the load layout.
TEST(Transaction, ParametersUnderTheEnginesNames) {
  Updated updated(kUnlimited);
  const Weights a = updated.model.RandomWeights(1);
  const Weights b = updated.model.RandomWeights(2);
  updated.model.Load(a);
  std::vector<std::byte> abc;
  for (const char* name : {"a", "b", "c"}) {
    const auto& bytes = b[updated.Tensor(name)];
    abc.insert(abc.end(), bytes.begin(), bytes.end());
  }
  abc.resize(10 * 5 * 2, std::byte{0xff});  // the padding too
  const std::vector<std::uint64_t> shape = {10, 5};
  const std::vector<Arrival> message = {{"abc", tensor::Dtype::kBF16, shape, abc}};
  ASSERT_OK_AND_ASSIGN(const auto claims, updated.transaction.Find(message, /*direct=*/true));
  ASSERT_OK(updated.transaction.Write(message, claims, updated.pool));
  ASSERT_OK(updated.Finish());
  Weights expected = updated.model.Exported();
  for (const char* name : {"a", "b", "c"}) {
    EXPECT_EQ(expected[updated.Tensor(name)], b[updated.Tensor(name)]);
  }
  EXPECT_EQ(updated.model.State(), ColdState(expected));
  const std::vector<Arrival> derived = {{"absorbed", tensor::Dtype::kBF16, shape, abc}};
  EXPECT_ERROR(updated.transaction.Find(derived, /*direct=*/true), Code::kNotFound, "absorbed");
}

}  // namespace
}  // namespace syncline::update
