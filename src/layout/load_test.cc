#include "layout/load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <set>

#include "base/progress.h"
#include "base/result_matchers.h"
#include "base/temp_dir.h"
#include "checkpoint/writer.h"
#include "layout/random_model.h"

namespace syncline::layout {
namespace {

using base::Code;
using base::FileSystem;
using tensor::Dtype;

using Contents = std::map<std::string, std::vector<std::byte>>;

// A plan with a stack (in one piece each), a tensor that is cut by columns (scattered), a skip and
// an alias.
Plan MakePlan(std::uint64_t rows, std::uint64_t columns) {
  PlanBuilder builder;
  builder.AddStacked({{"q", Dtype::kBF16, {rows, columns}}, {"k", Dtype::kBF16, {2, columns}}},
                     "qk");
  const std::size_t left = builder.AddParameter({"left", Dtype::kBF16, {rows, 1}});
  const std::size_t right = builder.AddParameter({"right", Dtype::kBF16, {rows, columns}});
  const std::size_t cut = builder.AddTensor({"cut", Dtype::kBF16, {rows, columns + 1}});
  builder.AddPiece({cut, left, {{0, 0}, {rows, 1}}, {{0, 0}, {rows, 1}}});
  builder.AddPiece({cut, right, {{0, 1}, {rows, columns + 1}}, {{0, 0}, {rows, columns}}});
  builder.Alias("twin", "cut");
  builder.Skip("*.inv_freq");
  auto plan = std::move(builder).Build();
  if (!plan) ADD_FAILURE() << plan.error().message;
  return std::move(*plan);
}

class LoadTest : public testing::Test {
 protected:
  void MakePlanOf(std::uint64_t rows, std::uint64_t columns) {
    plan_ = MakePlan(rows, columns);
    memory_.clear();
    for (const TensorSpec& parameter : plan_.parameters()) {
      memory_.emplace_back(parameter.bytes(), std::byte{0xEE});
    }
    contents_.clear();
    shapes_.clear();
    for (const TensorSpec& tensor : plan_.tensors()) Add(tensor.name, tensor.shape);
  }
  void Add(const std::string& name, const std::vector<std::uint64_t>& shape) {
    std::uint64_t bytes = 2;
    for (const std::uint64_t size : shape) bytes *= size;
    std::vector<std::byte> data(bytes);
    for (std::byte& value : data) value = static_cast<std::byte>(next_ = next_ * 5 + 3);
    contents_[name] = data;
    shapes_[name] = shape;
  }

  base::Result<LoadReport> Load(std::uint64_t max_file_bytes = 1 << 30) {
    std::vector<tensor::TensorView> views;
    for (const auto& [name, bytes] : contents_) {
      const bool wide = wide_.contains(name);
      views.push_back({name, wide ? Dtype::kF32 : Dtype::kBF16, shapes_[name], bytes});
    }
    base::ThreadPool pool(2);
    base::Progress progress;
    EXPECT_OK(FileSystem::Posix().RemoveAll(directory_ / "c"));
    EXPECT_OK(FileSystem::Posix().MakeDirectories(directory_ / "c"));
    EXPECT_OK(checkpoint::WriteCheckpoint(FileSystem::Posix(), directory_ / "c", views,
                                          {.max_file_bytes = max_file_bytes, .durable = false},
                                          pool, progress, nullptr));
    SYNCLINE_ASSIGN(const auto opened,
                    checkpoint::Checkpoint::Open(FileSystem::Posix(), directory_ / "c"));
    std::vector<base::MutableByteSpan> spans(memory_.begin(), memory_.end());
    SYNCLINE_TRY(CheckNames(opened, plan_, {.forms = forms_}));
    return LoadCheckpoint(FileSystem::Posix(), opened, plan_, spans, pool, {.forms = forms_});
  }

  void ExpectLoaded() {
    const std::vector<base::ByteSpan> spans(memory_.begin(), memory_.end());
    for (std::size_t i = 0; i < plan_.tensors().size(); ++i) {
      std::vector<std::byte> found(plan_.tensors()[i].bytes());
      plan_.Gather(i, spans, found);
      EXPECT_EQ(found, contents_[plan_.tensors()[i].name]) << plan_.tensors()[i].name;
    }
  }

  base::TempDir directory_;
  Plan plan_;
  std::vector<std::vector<std::byte>> memory_;
  Contents contents_;
  std::set<std::string> wide_;  // F32 in the checkpoint
  const Forms* forms_ = nullptr;
  std::map<std::string, std::vector<std::uint64_t>> shapes_;
  std::uint32_t next_ = 1;
};

TEST_F(LoadTest, EveryTensorIsWhereThePlanSays) {
  MakePlanOf(7, 5);
  const auto report = Load();
  ASSERT_OK(report);
  EXPECT_EQ(report->tensors, 3U);
  EXPECT_EQ(report->bytes, 2U * (35 + 10 + 42));
  ExpectLoaded();
}

// Longer than one read call takes at once.
TEST_F(LoadTest, LargeTensorsAreReadInPieces) {
  MakePlanOf(3000, 1001);
  ASSERT_OK(Load(1 << 20));
  ExpectLoaded();
}

// Each rank reads its own part, to the same bytes as from whole tensors.
RC_GTEST_PROP(LoadRanks, ReadWhatIsTheirs, ()) {
  const RandomModel model = MakeRandomModel();
  std::vector<tensor::TensorView> views;
  for (std::size_t i = 0; i < model.weights.size(); ++i) {
    const TensorSpec& spec = model.ranks[0].tensors()[i];
    views.push_back({spec.name, spec.dtype, spec.shape, model.weights[i]});
  }
  const base::TempDir directory;
  base::ThreadPool pool(2);
  base::Progress progress;
  RC_ASSERT(checkpoint::WriteCheckpoint(FileSystem::Posix(), directory / "", views,
                                        {.max_file_bytes = 1 << 20, .durable = false}, pool,
                                        progress, nullptr)
                .has_value());
  const auto opened = checkpoint::Checkpoint::Open(FileSystem::Posix(), directory / "");
  RC_ASSERT(opened.has_value());
  for (const Plan& plan : model.ranks) {
    auto expected = MakeMemory(plan, std::byte{0});
    auto memory = MakeMemory(plan, std::byte{0xEE});
    const std::vector<base::MutableByteSpan> to(expected.begin(), expected.end());
    const std::vector<base::MutableByteSpan> spans(memory.begin(), memory.end());
    for (std::size_t i = 0; i < model.weights.size(); ++i) plan.Scatter(i, model.weights[i], to);
    RC_ASSERT(LoadCheckpoint(FileSystem::Posix(), *opened, plan, spans, pool).has_value());
    for (std::size_t i = 0; i < memory.size(); ++i) {
      RC_ASSERT(plan.IsDerived(i) || memory[i] == expected[i]);
    }
  }
}

// Takes F32 for BF16, by cutting off.
class Truncation : public Forms {
 public:
  explicit Truncation(const Plan& plan) : plan_(plan) {}
  bool Accepts(std::size_t tensor, Dtype dtype, tensor::Shape shape) const override {
    return dtype == Dtype::kF32 && std::ranges::equal(shape, plan_.tensors()[tensor].shape);
  }
  base::Result<std::vector<std::byte>> Convert(std::size_t tensor, Dtype, tensor::Shape,
                                               base::ByteSpan bytes) const override {
    if (plan_.tensors()[tensor].name == refused) {
      return base::Fail(Code::kInvalidArgument, "these values cannot be");
    }
    std::vector<std::byte> converted;
    for (std::size_t i = 0; i < bytes.size(); i += 4) {
      converted.insert(converted.end(), {bytes[i + 2], bytes[i + 3]});
    }
    if (is_short) converted.pop_back();
    return converted;
  }

  std::string refused;
  bool is_short = false;

 private:
  const Plan& plan_;
};

class FormsTest : public LoadTest {
 protected:
  // The checkpoint has the tensor in F32, whose upper halves are what is there now.
  void Widen(const std::string& name) {
    std::vector<std::byte> bytes;
    for (std::size_t i = 0; i < contents_[name].size(); i += 2) {
      bytes.insert(bytes.end(),
                   {std::byte{1}, std::byte{2}, contents_[name][i], contents_[name][i + 1]});
    }
    contents_[name] = bytes;
    wide_.insert(name);
  }
  // Loads, and compares with what was there before the tensors were widened.
  void ExpectLoadedAs(const Contents& before) {
    ASSERT_OK(Load());
    contents_ = before;
    ExpectLoaded();
  }
};

TEST_F(FormsTest, OtherFormsAreConverted) {
  MakePlanOf(5, 3);
  const Contents before = contents_;
  const Truncation forms(plan_);
  forms_ = &forms;
  Widen("k");
  Widen("cut");
  ExpectLoadedAs(before);
}

TEST_F(FormsTest, TwinsMayComeInAnotherForm) {
  MakePlanOf(4, 3);
  const Contents before = contents_;
  const Truncation forms(plan_);
  forms_ = &forms;
  contents_["twin"] = contents_["cut"];
  shapes_["twin"] = shapes_["cut"];
  Widen("twin");
  const Contents with_twin = contents_;
  ExpectLoadedAs(before);
  contents_ = with_twin;
  contents_["twin"].back() ^= std::byte{1};
  EXPECT_ERROR(Load(), Code::kChecksumMismatch, "twin");
  contents_ = with_twin;
  contents_.erase("cut");  // stands in for it
  ExpectLoadedAs(before);
}

TEST_F(FormsTest, WhatIsNotAcceptedIsAsWithoutForms) {
  MakePlanOf(3, 3);
  Widen("k");
  EXPECT_ERROR(Load(), Code::kInvalidArgument, "tensor k has dtype F32, expected BF16");
  const Truncation forms(plan_);
  forms_ = &forms;
  Add("k", {3, 3});
  Widen("k");
  EXPECT_ERROR(Load(), Code::kInvalidArgument, "expected");
}

TEST_F(FormsTest, ValuesThatCannotBeNameTheTensor) {
  MakePlanOf(3, 3);
  Truncation forms(plan_);
  forms_ = &forms;
  Widen("k");
  forms.refused = "k";
  EXPECT_ERROR(Load(), Code::kInvalidArgument, "k: these values cannot be");
  forms.refused = "";
  forms.is_short = true;
  EXPECT_ERROR(Load(), Code::kInternal, "expected 12");
}

TEST_F(LoadTest, SkippedNamesAreIgnored) {
  MakePlanOf(3, 3);
  Add("layers.0.inv_freq", {4});
  ASSERT_OK(Load());
  ExpectLoaded();
}

TEST_F(LoadTest, MissingTensorsAreNamed) {
  MakePlanOf(3, 3);
  contents_.erase("k");
  contents_.erase("cut");
  EXPECT_ERROR(Load(), Code::kNotFound, "2 of 3 tensors are missing: k, cut");
}

TEST_F(LoadTest, ManyUnclaimedTensorsAreCounted) {
  MakePlanOf(3, 3);
  for (int i = 0; i < 9; ++i) Add("extra" + std::to_string(i), {1});
  EXPECT_ERROR(Load(), Code::kNotFound, "(and 4 more)");
}

TEST_F(LoadTest, FusedNameComesWithTheNamesToSend) {
  MakePlanOf(3, 3);
  Add("qk", {5, 3});
  EXPECT_ERROR(Load(), Code::kNotFound, "fused");
}

TEST_F(LoadTest, WrongShapeNamesFileAndTensor) {
  MakePlanOf(3, 3);
  Add("q", {3, 4});
  EXPECT_ERROR(Load(), Code::kInvalidArgument, "model.safetensors");
}

TEST_F(LoadTest, TwinMustBeEqual) {
  MakePlanOf(4, 3);
  contents_["twin"] = contents_["cut"];
  shapes_["twin"] = shapes_["cut"];
  ASSERT_OK(Load());
  ExpectLoaded();
  contents_["twin"].back() ^= std::byte{1};
  EXPECT_ERROR(Load(), Code::kChecksumMismatch, "twin");
}

TEST_F(LoadTest, TwinStandsInForItsTarget) {
  MakePlanOf(4, 3);
  contents_["twin"] = contents_["cut"];
  shapes_["twin"] = shapes_["cut"];
  const auto cut = contents_["cut"];
  contents_.erase("cut");
  ASSERT_OK(Load());
  contents_["cut"] = cut;
  ExpectLoaded();
}

}  // namespace
}  // namespace syncline::layout
