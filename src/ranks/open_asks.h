// The leader's questions that are not answered in full yet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "base/error.h"
#include "ranks/leader.h"

namespace syncline::ranks {

using Answer = base::Result<std::vector<std::byte>>;

// Thread-safe. Never calls a Replies itself: it hands out what is to be called, once each.
class OpenAsks {
 public:
  using Call = std::function<void()>;

  // The id of a new question to these ranks, and nothing to call; once the table is closed, id 0
  // and the call that reports why.
  struct Added {
    std::uint64_t id = 0;
    Call call;
  };
  Added Add(std::vector<std::uint32_t> ranks, Leader::Replies replies);

  // The call if this was the last answer that was missing. An answer that nobody waits for (from a
  // rank that was not asked, or has answered) is dropped.
  Call Take(std::uint64_t id, std::uint32_t rank, Answer answer);

  // All missing answers, and those of later questions, are `reason`. Only the first reason counts.
  std::vector<Call> CloseAll(const base::Error& reason);

 private:
  struct Question {
    std::vector<std::uint32_t> ranks;
    std::vector<std::optional<Answer>> answers;  // parallel to ranks
    std::size_t missing = 0;
    Leader::Replies replies;
  };
  static Call Finish(Question question, const base::Error& reason);

  std::mutex mutex_;
  std::uint64_t next_id_ = 1;                    // guarded by mutex_
  std::map<std::uint64_t, Question> questions_;  // guarded by mutex_
  std::optional<base::Error> closed_;            // guarded by mutex_
};

}  // namespace syncline::ranks
