#include "serve/pause_order.h"

#include <gmock/gmock.h>

#include <string>

namespace syncline::serve {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class PauseOrderTest : public testing::Test {
 protected:
  std::function<void()> Note(const std::string& name) {
    return [this, name] { called_.push_back(name); };
  }

  PauseOrder order_;
  std::vector<std::string> called_;
};

TEST_F(PauseOrderTest, WithoutUpdatesChangesAreCalledAtOnce) {
  order_.AfterUpdates(Note("continue"));
  order_.AfterChanges(Note("pause"));
  order_.AfterUpdates(Note("continue again"));
  EXPECT_THAT(called_, ElementsAre("continue", "pause", "continue again"));
}

TEST_F(PauseOrderTest, AContinueWaitsForAllUpdatesThatCameBefore) {
  std::shared_ptr<void> first = order_.BeginUpdate();
  std::shared_ptr<void> second = order_.BeginUpdate();
  order_.AfterUpdates(Note("continue"));
  second.reset();
  EXPECT_THAT(called_, IsEmpty());
  first.reset();
  EXPECT_THAT(called_, ElementsAre("continue"));
}

TEST_F(PauseOrderTest, AContinueDoesNotWaitForUpdatesThatCameAfter) {
  std::shared_ptr<void> before = order_.BeginUpdate();
  order_.AfterUpdates(Note("continue"));
  const std::shared_ptr<void> after = order_.BeginUpdate();
  before.reset();
  EXPECT_THAT(called_, ElementsAre("continue"));
}

TEST_F(PauseOrderTest, APauseWaitsOnlyForAContinueThatWaits) {
  std::shared_ptr<void> update = order_.BeginUpdate();
  order_.AfterChanges(Note("pause"));
  EXPECT_THAT(called_, ElementsAre("pause"));
  order_.AfterUpdates(Note("continue"));
  order_.AfterChanges(Note("second pause"));
  EXPECT_THAT(called_, ElementsAre("pause"));
  update.reset();
  EXPECT_THAT(called_, ElementsAre("pause", "continue", "second pause"));
}

TEST_F(PauseOrderTest, ChangesStayInTheirOrderWhileUpdatesEndInAnother) {
  std::shared_ptr<void> first = order_.BeginUpdate();
  order_.AfterUpdates(Note("continue"));
  std::shared_ptr<void> second = order_.BeginUpdate();
  order_.AfterUpdates(Note("continue again"));
  second.reset();
  EXPECT_THAT(called_, IsEmpty());
  first.reset();
  EXPECT_THAT(called_, ElementsAre("continue", "continue again"));
}

}  // namespace
}  // namespace syncline::serve
