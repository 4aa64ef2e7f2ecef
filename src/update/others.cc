#include "update/others.h"

#include <fmt/core.h>

#include <memory>

namespace syncline::update {

std::string RankText(std::uint32_t rank, const std::string& host) {
  return fmt::format("rank {} (host {})", rank, host);
}

base::Status AllWell(const Answers& answers) {
  for (const base::Result<Payload>& answer : answers) {
    if (!answer) return std::unexpected(answer.error());
  }
  return {};
}

base::Status AddTexts(const Answers& answers, std::vector<std::string>& texts) {
  SYNCLINE_TRY(AllWell(answers));
  for (const base::Result<Payload>& answer : answers) {
    SYNCLINE_ASSIGN(const std::vector<std::string> more, DecodeTexts(*answer));
    texts.insert(texts.end(), more.begin(), more.end());
  }
  return {};
}

const std::vector<ranks::Peer>& Others::peers() const {
  static const std::vector<ranks::Peer> none;
  return any() ? leader_->peers() : none;
}

std::future<Answers> Others::Command(RankMessage kind, Payload payload) const {
  auto promise = std::make_shared<std::promise<Answers>>();
  std::future<Answers> answers = promise->get_future();
  if (any()) {
    leader_->CommandAndAsk(kind, std::move(payload),
                           [promise](Answers all) { promise->set_value(std::move(all)); });
  } else {
    promise->set_value({});
  }
  return answers;
}

std::future<Answers> Others::Ask(RankMessage kind, Payload payload) const {
  return Ask(peers(), kind, std::move(payload));
}

std::future<Answers> Others::Ask(std::span<const ranks::Peer> of, RankMessage kind,
                                 Payload payload) const {
  auto promise = std::make_shared<std::promise<Answers>>();
  std::future<Answers> answers = promise->get_future();
  std::vector<std::uint32_t> asked;
  for (const ranks::Peer& peer : of) asked.push_back(peer.rank);
  if (asked.empty()) {
    promise->set_value({});
  } else {
    leader_->Ask(asked, kind, std::move(payload),
                 [promise](Answers all) { promise->set_value(std::move(all)); });
  }
  return answers;
}

std::vector<std::future<Answers>> Others::AskEach(RankMessage kind,
                                                  std::vector<Payload> payloads) const {
  std::vector<std::future<Answers>> asked;
  asked.reserve(peers().size());
  for (std::size_t i = 0; i < peers().size(); ++i) {
    asked.push_back(Ask(std::span(peers()).subspan(i, 1), kind, std::move(payloads[i])));
  }
  return asked;
}

}  // namespace syncline::update
