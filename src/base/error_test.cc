#include "base/error.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <set>

#include "base/bytes.h"

namespace syncline::base {
namespace {

TEST(ErrorTest, TableIsInTheOrderOfTheNumbersAndUnambiguous) {
  std::set<std::string_view> names;
  std::set<int> exits;
  int number = 1;
  for (const CodeInfo& info : CodeTable()) {
    EXPECT_EQ(static_cast<int>(info.code), number++);
    EXPECT_EQ(&Info(info.code), &info);
    EXPECT_TRUE(names.insert(info.name).second) << info.name;
    EXPECT_TRUE(exits.insert(info.exit_code).second) << info.name;
    EXPECT_NE(info.exit_code, 0);
    EXPECT_GE(info.http_status, 400);
  }
}

TEST(ErrorTest, ErrnoKeepsItsTextAndCode) {
  const Status status = FailErrno(ENOSPC, "cannot write x");
  EXPECT_EQ(status.error().code, Code::kNoSpace);
  EXPECT_EQ(status.error().message, "cannot write x: No space left on device");
}

Result<int> Half(int value) {
  if (value % 2 != 0) return Fail(Code::kInvalidArgument, "odd");
  return value / 2;
}

Result<int> Quarter(int value) {
  SYNCLINE_ASSIGN(const int half, Half(value));
  SYNCLINE_ASSIGN(const int quarter, Half(half));
  return quarter;
}

TEST(ErrorTest, AssignReturnsValuesAndErrors) {
  EXPECT_EQ(Quarter(12).value(), 3);
  EXPECT_EQ(Quarter(6).error().message, "odd");
  EXPECT_EQ(Status(Annotate(Quarter(6).error(), "six")).error().message, "six: odd");
}

TEST(BytesTest, TextForms) {
  const std::uint8_t bytes[] = {0x00, 0x9f, 0xff};
  EXPECT_EQ(ToHex(bytes), "009fff");
  EXPECT_EQ(HumanBytes(999), "999 B");
  EXPECT_EQ(HumanBytes(269'000'000), "269.00 MB");
}

}  // namespace
}  // namespace syncline::base
