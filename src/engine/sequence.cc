#include "engine/sequence.h"

#include <algorithm>

namespace syncline::engine {
namespace {

bool HasPenalty(const SamplingParams& params) {
  return params.frequency_penalty != 0 || params.presence_penalty != 0 ||
         params.repetition_penalty != 1;
}

}  // namespace

void ExtendSpans(std::vector<VersionSpan>& spans, std::uint32_t end, const std::string& version) {
  const std::uint32_t begin = spans.empty() ? 0 : spans.back().end;
  if (end <= begin) return;
  if (!spans.empty() && spans.back().version == version) {
    spans.back().end = end;
  } else {
    spans.push_back({version, begin, end});
  }
}

Sequence::Sequence(Request request, Sink sink, const text::Vocabulary& vocabulary,
                   std::span<const TokenId> end_tokens, std::uint64_t seed)
    : request_(std::move(request)),
      sink_(std::move(sink)),
      end_tokens_(end_tokens),
      seed_(request_.sampling.seed.value_or(seed)),
      tokens_(request_.input_ids),
      prompt_length_(static_cast<std::uint32_t>(tokens_.size())),
      detokenizer_(vocabulary, request_.sampling.skip_special_tokens),
      stops_(request_.sampling.stop, request_.sampling.no_stop_trim) {
  if (HasPenalty(request_.sampling)) counts_.emplace(tokens_);
  if (request_.sampling.min_new_tokens > 0) {
    forbidden_.assign(end_tokens_.begin(), end_tokens_.end());
    std::ranges::copy(request_.sampling.stop_token_ids, std::back_inserter(forbidden_));
  }
  const LogprobParams& logprobs = request_.logprobs;
  if (logprobs.enabled && logprobs.start >= 0 && logprobs.start < prompt_length_) {
    // The first position of the run has none: nothing before it was asked for.
    const auto start = static_cast<std::uint32_t>(logprobs.start);
    input_logprobs_.emplace().tokens.push_back({tokens_[start], std::nullopt});
    if (logprobs.top > 0) input_logprobs_->top.emplace_back();
    if (!logprobs.tokens.empty()) input_logprobs_->chosen.emplace_back();
    input_logprobs_end_ = start + 1;
  }
}

Sequence::Range Sequence::InputLogprobRows(std::uint32_t length) const {
  if (!input_logprobs_ || input_logprobs_end_ >= prompt_length_) return {};
  // Position p tells of token p + 1.
  const std::uint32_t first = std::max(computed, input_logprobs_end_ - 1);
  const std::uint32_t last = std::min(computed + length, prompt_length_ - 1);
  return first < last ? Range{first, last} : Range{};
}

void Sequence::AddInputLogprob(std::uint32_t position, std::span<const float> logits) {
  ReadLogprobs(logits, tokens_[position + 1], request_.logprobs, *input_logprobs_);
  input_logprobs_end_ = position + 2;
}

std::uint32_t Sequence::reusable() const {
  // The last token's logits are wanted, those of a run of input log-probabilities, and experts.
  auto end = static_cast<std::uint32_t>(tokens_.size()) - 1;
  if (input_logprobs_ && input_logprobs_end_ < prompt_length_) {
    end = std::min(end, input_logprobs_end_ - 1);
  }
  return std::min(end, request_.experts_from.value_or(end));
}

void Sequence::Reuse(std::uint32_t length, std::vector<VersionSpan> spans) {
  computed = length;
  computed_by_ = std::move(spans);
  // What it has computed itself, and lost, was not computed by others.
  if (length > computed_most_) cached_tokens_ += length - computed_most_;
  computed_most_ = std::max(computed_most_, length);
}

void Sequence::AddExperts(std::uint32_t length, std::span<const std::int32_t> experts) {
  const std::uint32_t from = *request_.experts_from;
  const std::size_t width = experts.size() / length;
  const std::uint32_t begin = std::max(from, computed);
  if (begin >= computed + length) return;
  // After a retraction they are computed again, maybe by other weights.
  experts_.resize((begin - from) * width);
  experts = experts.subspan((begin - computed) * width);
  experts_.insert(experts_.end(), experts.begin(), experts.end());
}

void Sequence::Advance(std::uint32_t length, const std::string& version) {
  computed += length;
  computed_most_ = std::max(computed_most_, computed);
  ExtendSpans(computed_by_, computed, version);
}

std::vector<VersionSpan> Sequence::ComputedBy(std::uint32_t begin, std::uint32_t end) const {
  std::vector<VersionSpan> spans;
  for (const VersionSpan& span : computed_by_) {
    const std::uint32_t from = std::max(span.start, begin);
    const std::uint32_t to = std::min(span.end, end);
    if (from < to) spans.push_back({span.version, from, to});
  }
  return spans;
}

void Sequence::Retract() {
  computed = 0;
  ++retractions_;
}

bool Sequence::IsStopToken(TokenId token) const {
  if (request_.sampling.ignore_eos) return false;
  return std::ranges::find(end_tokens_, token) != end_tokens_.end() ||
         std::ranges::find(request_.sampling.stop_token_ids, token) !=
             request_.sampling.stop_token_ids.end();
}

// Adds the token's text to `text`, up to a stop.
std::optional<Finish> Sequence::CheckEnd(TokenId token, std::string& text) {
  const SamplingParams& params = request_.sampling;
  if (IsStopToken(token)) {
    // The token itself is part of the text only on demand.
    text::StopStrings::Found found;
    if (params.no_stop_trim) found = stops_.Push(detokenizer_.Push(token));
    text += found.text;
    if (!found.matched) {
      return Finish{.kind = Finish::Kind::kStopToken, .matched_token = token};
    }
    return Finish{.kind = Finish::Kind::kStopString, .matched_string = *found.matched};
  }
  text::StopStrings::Found found = stops_.Push(detokenizer_.Push(token));
  text += found.text;
  if (found.matched) {
    return Finish{.kind = Finish::Kind::kStopString, .matched_string = *found.matched};
  }
  if (output_length() >= params.max_new_tokens) {
    return Finish{.kind = Finish::Kind::kLength, .length = output_length()};
  }
  return std::nullopt;
}

bool Sequence::Generate(std::span<float> logits, const std::string& version) {
  const SamplingParams& params = request_.sampling;
  const Draw draw = {.forbidden = output_length() < params.min_new_tokens
                                      ? std::span<const TokenId>(forbidden_)
                                      : std::span<const TokenId>(),
                     .counts = counts_ ? &*counts_ : nullptr,
                     .uniform = UniformAt(seed_, output_length())};
  const TokenId token = ChooseToken(params, draw, logits);
  if (request_.logprobs.enabled) {
    ReadLogprobs(logits, token, request_.logprobs, pending_.output_logprobs);
  }
  if (counts_) counts_->Add(token);
  tokens_.push_back(token);
  pending_.tokens.push_back(token);
  ExtendSpans(spans_, output_length(), version);
  const std::optional<Finish> finish = CheckEnd(token, pending_.text);
  if (finish) {
    End(*finish, version);
    return true;
  }
  if (request_.stream) Tell(std::nullopt, version);
  return false;
}

void Sequence::End(Finish finish, const std::string& version) {
  // After a stop string or token nothing that was held back belongs to the text.
  if (finish.kind == Finish::Kind::kLength || finish.kind == Finish::Kind::kAbort) {
    pending_.text += stops_.Push(detokenizer_.Finish()).text;
    pending_.text += stops_.Finish();
  } else if (finish.kind == Finish::Kind::kStopToken) {
    pending_.text += stops_.Finish();
  }
  Tell(std::move(finish), version);
}

void Sequence::Tell(std::optional<Finish> finish, const std::string& version) {
  Event event = std::move(pending_);
  pending_ = {};
  if (input_logprobs_ && input_logprobs_end_ >= prompt_length_) {
    event.input_logprobs = std::move(*input_logprobs_);
    input_logprobs_.reset();
  }
  event.weight_version = spans_.empty() ? version : spans_.back().version;
  event.finish = std::move(finish);
  if (event.finish) {
    if (spans_.empty()) spans_.push_back({version, 0, 0});
    event.weight_versions = spans_;
    event.prefill_weight_versions = ComputedBy(0, prompt_length_);
    event.retractions = retractions_;
    event.cached_tokens = cached_tokens_;
    event.experts = std::move(experts_);
  }
  sink_(std::move(event));
}

}  // namespace syncline::engine
