#include "payload/pickle_stack.h"

#include <fmt/format.h>

#include <algorithm>

namespace syncline::payload {
namespace {

using base::Code;
using base::Fail;
using base::Result;
using base::Status;

// Memory stays below some 400 MB even for the largest message. A tensor takes about 15 values.
// Picklers write lists and dicts in parts of 1000, so stacks are short.
constexpr std::size_t kMaxValues = std::size_t{4} << 20;
constexpr std::size_t kMaxStack = std::size_t{1} << 16;
constexpr std::size_t kMaxMarks = 64;
// Every value takes two bytes of the message, except very few.
constexpr std::size_t kFreeValues = 64;

}  // namespace

PickleStack::PickleStack(std::size_t message_bytes)
    : max_values_(std::min(kMaxValues, kFreeValues + message_bytes / 2)),
      none_(&values_.emplace_back()),
      true_(&values_.emplace_back(true)),
      false_(&values_.emplace_back(false)),
      empty_tuple_(&values_.emplace_back(Tuple{})) {}

Status PickleStack::Push(Value* value) {
  if (stack_.size() >= kMaxStack) {
    return Fail(Code::kLimitExceeded, fmt::format("nested deeper than {} values", kMaxStack));
  }
  stack_.push_back(value);
  return {};
}

Status PickleStack::CheckRoom() const {
  if (values_.size() < max_values_) return {};
  return Fail(Code::kLimitExceeded, fmt::format("more than {} values", max_values_));
}

Result<std::vector<Ref>> PickleStack::Take(std::size_t count) {
  if (Above() < count) {
    return Fail(Code::kInvalidArgument,
                fmt::format("{} values are needed, {} are there", count, Above()));
  }
  const auto first = stack_.end() - static_cast<std::ptrdiff_t>(count);
  std::vector<Ref> taken(first, stack_.end());
  stack_.erase(first, stack_.end());
  return taken;
}

Result<std::vector<Ref>> PickleStack::TakeMarked() {
  if (marks_.empty()) return Fail(Code::kInvalidArgument, "no mark is there");
  Result<std::vector<Ref>> taken = Take(Above());
  marks_.pop_back();
  return taken;
}

Status PickleStack::Mark() {
  if (marks_.size() >= kMaxMarks) {
    return Fail(Code::kLimitExceeded, fmt::format("nested deeper than {} levels", kMaxMarks));
  }
  marks_.push_back(stack_.size());
  return {};
}

Status PickleStack::Remember(std::size_t index) {
  if (Top() == nullptr) return Fail(Code::kInvalidArgument, "no value to remember");
  if (index > memo_.size()) {
    return Fail(Code::kInvalidArgument,
                fmt::format("memo {}, expected at most {}", index, memo_.size()));
  }
  if (index >= max_values_) {
    return Fail(Code::kLimitExceeded, fmt::format("more than {} memos", max_values_));
  }
  if (index == memo_.size()) memo_.push_back(nullptr);
  memo_[index] = Top();
  return {};
}

Status PickleStack::Recall(std::size_t index) {
  if (index < memo_.size()) return Push(memo_[index]);
  return Fail(Code::kInvalidArgument,
              fmt::format("memo {} is not set, {} are", index, memo_.size()));
}

Result<Ref> PickleStack::Last() const {
  if (stack_.size() == 1 && marks_.empty()) return stack_[0];
  return Fail(Code::kInvalidArgument, fmt::format("{} values and {} marks are left at the end",
                                                  stack_.size(), marks_.size()));
}

}  // namespace syncline::payload
