// Updates from disk over the fake model: what is served is exactly the old or the new weights,
// whatever goes wrong.
#include "update/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>

#include "base/faulty_file_system.h"
#include "base/result_matchers.h"
#include "base/temp_dir.h"
#include "checkpoint/writer.h"
#include "engine/engine_testing.h"
#include "replica/state.h"

namespace syncline::update {
namespace {

using base::Code;
using base::FileSystem;
using tensor::Dtype;
using tensor::TensorView;

struct NamedBytes {
  std::string name;
  std::vector<std::uint8_t> bytes;
  Dtype dtype = Dtype::kU8;
};

class WeightsTest : public engine::EngineTest {
 protected:
  void SetUp() override {
    WriteCheckpoint("first", {{"a.weight", Bytes(1)}, {"b.weight", Bytes(2)}});
    WriteCheckpoint("second", {{"a.weight", Bytes(3)}, {"b.weight", Bytes(4)}});
    Start();
    weights_ = Weights::Create(faulty_, *engine_, model_, {.launch_path = Path("first")});
    ASSERT_OK(Update(Path("first"), "one"));
  }
  void TearDown() override {
    engine_->Stop();
    weights_.reset();
    EngineTest::TearDown();
  }

  static std::vector<std::uint8_t> Bytes(std::uint8_t value) {
    return std::vector<std::uint8_t>(8, value);
  }
  std::string Path(const std::string& name) const { return directory_ / name; }

  void WriteCheckpoint(const std::string& name, const std::vector<NamedBytes>& tensors) {
    std::vector<TensorView> views;
    for (const NamedBytes& tensor : tensors) {
      const auto elements = tensor.bytes.size() * 8 / tensor::Bits(tensor.dtype);
      views.push_back(
          {tensor.name, tensor.dtype, {elements}, std::as_bytes(std::span(tensor.bytes))});
    }
    ASSERT_OK(FileSystem::Posix().MakeDirectories(Path(name)));
    base::ThreadPool pool(1);
    base::Progress progress;
    ASSERT_OK(checkpoint::WriteCheckpoint(FileSystem::Posix(), Path(name), views,
                                          {.durable = false}, pool, progress, nullptr));
  }

  base::Result<UpdateReport> Update(const std::string& path, std::optional<std::string> label) {
    auto promise = std::make_shared<std::promise<base::Result<UpdateReport>>>();
    weights_->FromDisk({.path = path, .weight_version = std::move(label)},
                       [promise](auto result) { promise->set_value(std::move(result)); });
    return promise->get_future().get();
  }

  std::vector<std::byte> Export(const std::string& name) {
    auto promise = std::make_shared<std::promise<base::Result<ExportedTensor>>>();
    weights_->Export(name, [promise](auto result) { promise->set_value(std::move(result)); });
    auto exported = promise->get_future().get();
    return exported ? exported->bytes : std::vector<std::byte>();
  }

  void ExpectServed(std::uint8_t a, std::uint8_t b, const std::string& name,
                    const std::string& version) {
    EXPECT_EQ(Export("a.weight"), std::vector<std::byte>(8, std::byte{a}));
    EXPECT_EQ(Export("b.weight"), std::vector<std::byte>(8, std::byte{b}));
    EXPECT_EQ(weights_->model_path(), Path(name));
    EXPECT_EQ(engine_->stats().weight_version, version);
    engine::Client client;
    ASSERT_OK(engine_->Submit(MakeRequest("probe", {4, 5}, 6), client.sink()));
    EXPECT_EQ(client.Wait().tokens, model::FakeModel::Continue({4, 5}, 6, {a, b}));
  }
  void ExpectOld() { ExpectServed(1, 2, "first", "one"); }

  base::TempDir directory_;
  base::FaultyFileSystem faulty_{FileSystem::Posix()};
  std::unique_ptr<Weights> weights_;
};

TEST_F(WeightsTest, TakesTheWeightsOfACheckpoint) {
  const auto report = Update(Path("second"), "two");
  ASSERT_OK(report);
  EXPECT_EQ(report->tensors, 2U);
  EXPECT_EQ(report->bytes, 16U);
  ExpectServed(3, 4, "second", "two");
}

// BR-26: an update that changes nothing looks like a trainer that does not train.
TEST_F(WeightsTest, BR26UpdatesThatChangeNothingSaySo) {
  ASSERT_OK_AND_ASSIGN(UpdateReport report, Update(Path("second"), "two"));
  EXPECT_FALSE(report.unchanged);
  ASSERT_OK_AND_ASSIGN(report, Update(Path("second"), "three"));
  EXPECT_TRUE(report.unchanged);
  EXPECT_EQ(engine_->stats().weight_version, "three");
  ASSERT_OK_AND_ASSIGN(report, Update(Path("first"), "four"));
  EXPECT_FALSE(report.unchanged);
}

TEST_F(WeightsTest, BR26AnUpdateWithoutTensorsIsAnError) {
  WriteCheckpoint("empty", {});
  EXPECT_ERROR(Update(Path("empty"), "two"), Code::kNotFound, "2 of 2 tensors are missing");
  ExpectOld();
}

TEST_F(WeightsTest, WithoutALabelTheVersionStays) {
  ASSERT_OK(Update(Path("second"), std::nullopt));
  ExpectServed(3, 4, "second", "one");
}

TEST_F(WeightsTest, AddressesStay) {
  const std::byte* before = model_.parameters().live()[0].data();
  ASSERT_OK(Update(Path("second"), "two"));
  EXPECT_EQ(model_.parameters().live()[0].data(), before);
}

TEST_F(WeightsTest, MissingPath) {
  EXPECT_ERROR(Update(Path("nowhere"), "two"), Code::kNotFound, "nowhere");
  ExpectOld();
}

TEST_F(WeightsTest, MissingTensorIsNamed) {
  WriteCheckpoint("bad", {{"a.weight", Bytes(9)}});
  EXPECT_ERROR(Update(Path("bad"), "two"), Code::kNotFound, "b.weight");
  ExpectOld();
}

TEST_F(WeightsTest, UnknownTensorIsNamed) {
  WriteCheckpoint("bad", {{"a.weight", Bytes(9)}, {"b.weight", Bytes(9)}, {"c.weight", Bytes(9)}});
  EXPECT_ERROR(Update(Path("bad"), "two"), Code::kNotFound, "c.weight");
  ExpectOld();
}

TEST_F(WeightsTest, SkippedTensorIsIgnored) {
  WriteCheckpoint("good", {{"a.weight", Bytes(3)}, {"b.weight", Bytes(4)}, {"x.ignored", {1}}});
  ASSERT_OK(Update(Path("good"), "two"));
  ExpectServed(3, 4, "good", "two");
}

TEST_F(WeightsTest, WrongShapeAndDtypeAreNamed) {
  WriteCheckpoint("bad", {{"a.weight", Bytes(9)}, {"b.weight", {1, 2, 3}}});
  EXPECT_ERROR(Update(Path("bad"), "two"), Code::kInvalidArgument, "[3]");
  WriteCheckpoint("worse", {{"a.weight", Bytes(9)}, {"b.weight", Bytes(9), Dtype::kI8}});
  EXPECT_ERROR(Update(Path("worse"), "two"), Code::kInvalidArgument, "I8");
  ExpectOld();
}

TEST_F(WeightsTest, FusedNameIsRefusedWithAHint) {
  WriteCheckpoint("bad", {{"ab.weight", std::vector<std::uint8_t>(16, 1)}});
  EXPECT_FALSE(Update(Path("bad"), "two"));
  ExpectOld();
}

// BR-09: tied weights.
TEST_F(WeightsTest, BR09_TiedTensorMayComeAlongIfItIsEqual) {
  WriteCheckpoint("both", {{"a.weight", Bytes(3)}, {"b.weight", Bytes(4)}, {"b.twin", Bytes(4)}});
  ASSERT_OK(Update(Path("both"), "two"));
  ExpectServed(3, 4, "both", "two");
  WriteCheckpoint("differ", {{"a.weight", Bytes(5)}, {"b.weight", Bytes(6)}, {"b.twin", Bytes(7)}});
  EXPECT_ERROR(Update(Path("differ"), "three"), Code::kChecksumMismatch, "b.twin");
  ExpectServed(3, 4, "both", "two");
  WriteCheckpoint("twin", {{"a.weight", Bytes(5)}, {"b.twin", Bytes(7)}});
  ASSERT_OK(Update(Path("twin"), "three"));
  ExpectServed(5, 7, "twin", "three");
}

// BR-01: other bytes at the same path are seen.
TEST_F(WeightsTest, BR01_SamePathIsReadAgain) {
  WriteCheckpoint("first", {{"a.weight", Bytes(7)}, {"b.weight", Bytes(8)}});
  ASSERT_OK(Update(Path("first"), "two"));
  ExpectServed(7, 8, "first", "two");
}

// BR-10: a file that is cut short, at every length.
TEST_F(WeightsTest, BR10_TruncatedFileIsRefused) {
  ASSERT_OK_AND_ASSIGN(
      const std::string whole,
      base::ReadText(FileSystem::Posix(), Path("second") + "/model.safetensors", 1 << 20));
  ASSERT_OK(FileSystem::Posix().MakeDirectories(Path("cut")));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    ASSERT_OK(base::WriteTextAtomically(FileSystem::Posix(), Path("cut") + "/model.safetensors",
                                        whole.substr(0, size), false));
    EXPECT_ERROR(Update(Path("cut"), "two"), Code::kCorrupt, "model.safetensors");
  }
  ExpectOld();
}

// Every file operation of an update fails once.
TEST_F(WeightsTest, AnyFailureLeavesTheOldWeights) {
  bool succeeded = false;
  for (int i = 0; !succeeded && i < 1000; ++i) {
    std::atomic<int> left = i;
    faulty_.SetRule([&](std::string_view, const std::string& path) -> base::Status {
      if (left-- != 0) return {};
      return base::Fail(Code::kIo, path + ": injected");
    });
    const auto result = Update(Path("second"), "two");
    faulty_.SetRule({});
    if (result) {
      succeeded = true;
    } else {
      EXPECT_EQ(result.error().code, Code::kIo) << result.error().message;
      ExpectOld();
    }
  }
  EXPECT_TRUE(succeeded);
  ExpectServed(3, 4, "second", "two");
}

TEST_F(WeightsTest, ReplicaWithoutMarkerIsRefused) {
  const replica::ReplicaState state(FileSystem::Posix(), Path("second"));
  ASSERT_OK(FileSystem::Posix().MakeDirectories(Path("second") + "/.weight_sync"));
  EXPECT_ERROR(Update(Path("second"), "two"), Code::kOutOfOrder, "marker");
  ExpectOld();
  ASSERT_OK(state.PublishMarker({.version = 5, .token = "a"}));
  ASSERT_OK(Update(Path("second"), "two"));
  ExpectServed(3, 4, "second", "two");
}

// A program that does not take the lock patches the replica while it is read.
TEST_F(WeightsTest, ReplicaThatChangesMeanwhileIsRefused) {
  const replica::ReplicaState state(FileSystem::Posix(), Path("second"));
  ASSERT_OK(FileSystem::Posix().MakeDirectories(Path("second") + "/.weight_sync"));
  ASSERT_OK(state.PublishMarker({.version = 5, .token = "a"}));
  faulty_.SetRule([&](std::string_view operation, const std::string& path) -> base::Status {
    if (operation == "read" && path.ends_with("model.safetensors"))
      return state.PublishMarker({.version = 6, .token = "b"});
    return {};
  });
  EXPECT_ERROR(Update(Path("second"), "two"), Code::kOutOfOrder, "at version 5 and changed");
  faulty_.SetRule({});
  ExpectOld();
}

TEST_F(WeightsTest, FlushOverRequestsInPlaceIsRefused) {
  HoldSteps();
  engine::Client client;
  ASSERT_OK(engine_->Submit(MakeRequest("a", {7}, 8), client.sink()));
  Allow(2);
  client.WaitForTokens(2);
  WaitForHeldStep();
  PauseHeld(engine::PauseMode::kInPlace);
  EXPECT_ERROR(Update(Path("second"), "two"), Code::kOutOfOrder, "flush_cache=false");
  ASSERT_OK(Continue());
  Allow(1000);
  EXPECT_EQ(client.Wait().tokens, model::FakeModel::Continue({7}, 8, {1, 2}));
  ExpectOld();
}

TEST_F(WeightsTest, ExportOfAnUnknownName) {
  auto promise = std::make_shared<std::promise<base::Result<ExportedTensor>>>();
  weights_->Export("nothing", [promise](auto result) { promise->set_value(std::move(result)); });
  EXPECT_ERROR(promise->get_future().get(), Code::kNotFound, "nothing");
  EXPECT_THAT(weights_->names(), testing::ElementsAre("a.weight", "b.weight"));
  EXPECT_EQ(Export("b.twin"), std::vector<std::byte>(8, std::byte{2}));
}

}  // namespace
}  // namespace syncline::update
