// The values, stack, marks and memo of a pickle that is being read, within fixed limits.
//
// A mark is the height of the stack at its time. Nothing takes values below the last mark except
// TakeMarked(), which takes the mark too.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "payload/pickle.h"

namespace syncline::payload {

// Errors say nothing of where: kInvalidArgument, and kLimitExceeded for what is too deep or too
// many.
class PickleStack {
 public:
  explicit PickleStack(std::size_t message_bytes);

  base::Status Push(Value* value);
  template <typename T>
  base::Status Make(T content) {
    SYNCLINE_TRY(CheckRoom());
    return Push(&values_.emplace_back(std::move(content)));
  }
  // These are made once.
  base::Status PushNone() { return Push(none_); }
  base::Status PushBool(bool value) { return Push(value ? true_ : false_); }
  base::Status PushEmptyTuple() { return Push(empty_tuple_); }

  // The last values, in the order pushed.
  base::Result<std::vector<Ref>> Take(std::size_t count);
  base::Result<std::vector<Ref>> TakeMarked();
  // The last value; null if there is none above the last mark.
  Value* Top() const { return Above() == 0 ? nullptr : stack_.back(); }

  base::Status Mark();

  // The memo. Picklers number it without gaps.
  std::size_t remembered() const { return memo_.size(); }
  base::Status Remember(std::size_t index);
  base::Status Recall(std::size_t index);

  // The value that is left when all is read.
  base::Result<Ref> Last() const;
  std::deque<Value> TakeValues() && { return std::move(values_); }

 private:
  std::size_t Above() const { return stack_.size() - (marks_.empty() ? 0 : marks_.back()); }
  base::Status CheckRoom() const;

  std::size_t max_values_;
  std::deque<Value> values_;
  Value* none_;
  Value* true_;
  Value* false_;
  Value* empty_tuple_;
  std::vector<Value*> stack_;
  std::vector<std::size_t> marks_;
  std::vector<Value*> memo_;
};

}  // namespace syncline::payload
