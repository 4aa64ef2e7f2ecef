#include "ranks/open_asks.h"

#include <algorithm>
#include <utility>

namespace syncline::ranks {

OpenAsks::Added OpenAsks::Add(std::vector<std::uint32_t> ranks, Leader::Replies replies) {
  Question question{.ranks = std::move(ranks), .replies = std::move(replies)};
  question.missing = question.ranks.size();
  question.answers.resize(question.ranks.size());
  const std::scoped_lock lock(mutex_);
  if (closed_) return {.id = 0, .call = Finish(std::move(question), *closed_)};
  const std::uint64_t id = next_id_++;
  // Nobody to ask (a group of one): all have answered.
  if (question.missing == 0) return {.id = id, .call = Finish(std::move(question), {})};
  questions_.emplace(id, std::move(question));
  return {.id = id, .call = {}};
}

OpenAsks::Call OpenAsks::Take(std::uint64_t id, std::uint32_t rank, Answer answer) {
  const std::scoped_lock lock(mutex_);
  const auto found = questions_.find(id);
  if (found == questions_.end()) return {};
  Question& question = found->second;
  const auto place = std::ranges::find(question.ranks, rank);
  if (place == question.ranks.end()) return {};
  auto& slot = question.answers[static_cast<std::size_t>(place - question.ranks.begin())];
  if (slot) return {};
  slot = std::move(answer);
  if (--question.missing > 0) return {};
  Question complete = std::move(question);
  questions_.erase(found);
  return Finish(std::move(complete), {});
}

std::vector<OpenAsks::Call> OpenAsks::CloseAll(const base::Error& reason) {
  const std::scoped_lock lock(mutex_);
  if (!closed_) closed_ = reason;
  std::vector<Call> calls;
  calls.reserve(questions_.size());
  for (auto& [id, question] : questions_) calls.push_back(Finish(std::move(question), *closed_));
  questions_.clear();
  return calls;
}

OpenAsks::Call OpenAsks::Finish(Question question, const base::Error& reason) {
  std::vector<Answer> answers;
  answers.reserve(question.answers.size());
  for (auto& answer : question.answers) {
    answers.push_back(answer ? *std::move(answer) : Answer(std::unexpected(reason)));
  }
  return [replies = std::move(question.replies), answers = std::move(answers)]() mutable {
    if (replies) replies(std::move(answers));
  };
}

}  // namespace syncline::ranks
