// Sessions in which a trainer writes straight into the parameters. Its transfer engine is lines of
// shell here, and it writes through the model's own memory; a real one is in
// tests/serve/test_p2p_updates.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <thread>

#include "base/progress.h"
#include "base/result_matchers.h"
#include "base/temp_dir.h"
#include "base/wait_for.h"
#include "checkpoint/writer.h"
#include "engine/engine_testing.h"
#include "update/messages.h"
#include "update/weights.h"

namespace syncline::update {
namespace {

using base::Code;
using base::Result;
using base::Status;
using base::WaitFor;
using tensor::Dtype;
using tensor::TensorView;
using testing::HasSubstr;

constexpr const char* kHelper =
    "read q; echo '{\"session\":\"h:7\",\"address\":65536}'; "
    "while read q; do echo \"$q\" >> $0; echo '{\"ok\":true}'; done";

class P2pSessionsTest : public engine::EngineTest {
 protected:
  void SetUp() override {
    Start();
    const base::MutableByteSpan ab = model_.parameters().live()[0];
    std::ranges::fill(ab.first(8), std::byte{1});
    std::ranges::fill(ab.subspan(8), std::byte{2});
  }
  void TearDown() override {
    engine_->Stop();
    weights_.reset();
    EngineTest::TearDown();
  }

  void Make(Weights::Options options = {}, const std::string& helper = kHelper) {
    options.launch_path = "/launch";
    options.p2p = {.command = {"/bin/sh", "-c", helper, directory_ / "said"}};
    weights_ = Weights::Create(base::FileSystem::Posix(), *engine_, model_, std::move(options));
    ASSERT_OK_AND_ASSIGN(windows_, weights_->Offer());
  }

  Status Begin(BeginRequest request = {}) {
    return WaitFor<Status>([&](auto done) { weights_->Begin(request, std::move(done)); });
  }
  Result<UpdateReport> End(bool abort = false) {
    return WaitFor<Result<UpdateReport>>(
        [&](auto done) { weights_->End({.abort = abort}, std::move(done)); });
  }
  Result<UpdateReport> Send(const std::string& name, std::uint8_t value) {
    const std::vector<std::byte> bytes(8, std::byte{value});
    const TensorView view = {name, Dtype::kU8, {8}, bytes};
    TensorUpdate update;
    update.payloads = {MessageOf({&view, 1})};
    update.format = payload::Format::kSafetensors;
    return WaitFor<Result<UpdateReport>>(
        [&](auto done) { weights_->FromTensors(std::move(update), std::move(done)); });
  }
  Result<UpdateReport> FromDisk(const std::string& path) {
    return WaitFor<Result<UpdateReport>>(
        [&](auto done) { weights_->FromDisk({.path = path}, std::move(done)); });
  }

  // As the trainer: into half 0 or 1 of the window.
  void Poke(std::size_t half, std::uint8_t value, bool in_place = false) {
    const base::Arena& arena =
        in_place ? model_.parameters().live_arena() : model_.parameters().staging_arena();
    std::ranges::fill(arena.bytes().subspan(half * 8, 8), std::byte{value});
  }
  void ExpectLive(std::uint8_t a, std::uint8_t b) {
    EXPECT_EQ(model_.parameters().live()[0][0], std::byte{a});
    EXPECT_EQ(model_.parameters().live()[0][8], std::byte{b});
  }
  std::string Said() {
    return *base::ReadText(base::FileSystem::Posix(), directory_ / "said", 1 << 20);
  }

  base::TempDir directory_;
  std::vector<WindowInfo> windows_;
  std::unique_ptr<Weights> weights_;
};

TEST_F(P2pSessionsTest, WhatIsOfferedIsEveryParameter) {
  Make();
  ASSERT_EQ(windows_.size(), 1U);
  EXPECT_EQ(windows_[0].session, "h:7");
  ASSERT_FALSE(windows_[0].parameters.empty());
  const ParameterPlace& first = windows_[0].parameters[0];
  EXPECT_EQ(first.name, model_.plan().parameters()[0].name);
  EXPECT_EQ(first.address, 65536U);
  EXPECT_EQ(first.elements, 16U);
  EXPECT_EQ(first.element_bytes, 1U);
}

TEST_F(P2pSessionsTest, WhatIsWrittenIsLiveAtTheEndWithItsVersion) {
  Make();
  for (std::uint8_t round = 3; round < 6; ++round) {
    ASSERT_OK(Begin());
    EXPECT_TRUE(weights_->session().open_for_writes);
    Poke(0, round);
    const std::string label = std::to_string(round);
    ASSERT_OK(WaitFor<Status>([&](auto done) { weights_->SetVersion(label, std::move(done)); }));
    EXPECT_NE(model_.parameters().live()[0][0], std::byte{round});
    ASSERT_OK_AND_ASSIGN(const UpdateReport report, End());
    EXPECT_TRUE(report.undoable);
    ExpectLive(round, 2);
    EXPECT_EQ(engine_->stats().weight_version, label);
    EXPECT_FALSE(weights_->session().open_for_writes);
  }
  // Writes were taken from each begin to each end, and only there.
  EXPECT_EQ(Said(),
            "{\"do\":\"open\"}\n{\"do\":\"close\"}\n{\"do\":\"open\"}\n{\"do\":\"close\"}\n"
            "{\"do\":\"open\"}\n{\"do\":\"close\"}\n");
}

TEST_F(P2pSessionsTest, NothingWrittenChangesNothing) {
  Make();
  ASSERT_OK(Begin());
  ASSERT_OK(End());
  ExpectLive(1, 2);
}

TEST_F(P2pSessionsTest, MessagesAndWritesTogether) {
  Make();
  ASSERT_OK(Begin());
  Poke(0, 3);
  ASSERT_OK(Send("b.weight", 4));
  ASSERT_OK(End());
  ExpectLive(3, 4);
}

TEST_F(P2pSessionsTest, ATrainerThatGivesUpLeavesNothing) {
  Make();
  ASSERT_OK(Begin());
  Poke(0, 3);
  ASSERT_OK(End(/*abort=*/true));
  ExpectLive(1, 2);
  ASSERT_OK(Begin());
  Poke(0, 3);
  ASSERT_OK(Begin());  // anew
  ASSERT_OK(End());
  ExpectLive(1, 2);
}

TEST_F(P2pSessionsTest, ATrainerThatDiesLeavesNothing) {
  Make({.session_timeout = std::chrono::milliseconds(50)});
  ASSERT_OK(Begin());
  Poke(0, 3);
  while (weights_->session().open) std::this_thread::yield();  // it times out
  ASSERT_OK(Send("b.weight", 5));
  ExpectLive(1, 5);
}

TEST_F(P2pSessionsTest, OnlySessionsThatCoverTheTargetAreOpen) {
  Make();
  ASSERT_OK(Begin({.selector = Selector::kDraft}));
  EXPECT_FALSE(weights_->session().open_for_writes);
  ASSERT_OK(End());
  ASSERT_OK(Begin({.sync_base = false}));
  EXPECT_FALSE(weights_->session().open_for_writes);
  ASSERT_OK(End());
  ASSERT_OK(Begin({.selector = Selector::kTarget}));
  EXPECT_TRUE(weights_->session().open_for_writes);
  ASSERT_OK(End());
}

// The session goes on, over what was read.
TEST_F(P2pSessionsTest, AnUpdateFromDiskInTheMiddle) {
  Make();
  const std::vector<std::byte> bytes(8, std::byte{7});
  const std::vector<TensorView> views = {{"a.weight", Dtype::kU8, {8}, bytes},
                                         {"b.weight", Dtype::kU8, {8}, bytes}};
  base::ThreadPool pool(1);
  base::Progress progress;
  ASSERT_OK(base::FileSystem::Posix().MakeDirectories(directory_ / "disk"));
  ASSERT_OK(checkpoint::WriteCheckpoint(base::FileSystem::Posix(), directory_ / "disk", views,
                                        {.durable = false}, pool, progress, nullptr));
  ASSERT_OK(Begin());
  Poke(0, 3);
  ASSERT_OK(FromDisk(directory_ / "disk"));
  ExpectLive(7, 7);
  Poke(1, 4);
  ASSERT_OK(End());
  ExpectLive(7, 4);
  ASSERT_OK(Begin());
  Poke(0, 3);
  EXPECT_FALSE(FromDisk(directory_ / "nothing"));
  EXPECT_ERROR(End(), Code::kOutOfOrder, "the session was undone");
  ExpectLive(7, 4);
}

TEST_F(P2pSessionsTest, InPlaceTheEngineIsHeldAndWhatWasWrittenIsLost) {
  Make({.undo_memory = 0});
  ASSERT_OK(Begin());
  EXPECT_EQ(engine_->stats().hold, engine::Hold::kWait);
  Poke(0, 3, /*in_place=*/true);
  ASSERT_OK(End());
  EXPECT_EQ(engine_->stats().hold, engine::Hold::kNone);
  ExpectLive(3, 2);
  ASSERT_OK(Begin());
  ASSERT_OK(End(/*abort=*/true));
  EXPECT_EQ(engine_->stats().hold, engine::Hold::kNone);  // nothing was written
  ASSERT_OK(Begin());
  Poke(0, 4, /*in_place=*/true);
  ASSERT_OK(End(/*abort=*/true));
  EXPECT_EQ(engine_->stats().hold, engine::Hold::kRefuse);
  EXPECT_THAT(weights_->session().incomplete.value_or(""), HasSubstr("incomplete update"));
  ASSERT_OK(Begin());
  Poke(0, 5, /*in_place=*/true);
  ASSERT_OK(End());
  EXPECT_EQ(engine_->stats().hold, engine::Hold::kNone);
  ExpectLive(5, 2);
}

TEST_F(P2pSessionsTest, ATransferEngineThatIsGoneFailsTheBegin) {
  Make({}, "read q; echo '{\"session\":\"h:7\",\"address\":65536}'; read q");
  EXPECT_ERROR(Begin(), Code::kUnavailable, "transfer engine: exit status 0");
  EXPECT_FALSE(weights_->session().open);
  ASSERT_OK(Send("a.weight", 6));
  ExpectLive(6, 2);
}

}  // namespace
}  // namespace syncline::update
