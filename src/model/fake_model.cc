#include "model/fake_model.h"

#include <algorithm>
#include <cstdlib>

namespace syncline::model {
namespace {

template <typename T>
T OrDie(base::Result<T> result) {
  if (!result) std::abort();
  return std::move(*result);
}

layout::Plan MakePlan() {
  layout::PlanBuilder builder;
  builder.AddStacked({{"a.weight", tensor::Dtype::kU8, {8}}, {"b.weight", tensor::Dtype::kU8, {8}}},
                     "ab.weight");
  builder.Alias("b.twin", "b.weight");
  builder.Skip("*.ignored");
  return OrDie(std::move(builder).Build());
}

}  // namespace

FakeModel::FakeModel(std::uint32_t max_positions)
    : plan_(MakePlan()), parameters_(OrDie(Parameters::Create(plan_))) {
  config_.model_type = "fake";
  config_.architectures = {"FakeForCausalLM"};
  config_.vocabulary = kVocabulary;
  config_.max_positions = max_positions;
}

void FakeModel::SetWeights(std::uint8_t a, std::uint8_t b) {
  parameters_.live()[0][0] = std::byte{a};
  parameters_.live()[0][8] = std::byte{b};
}

void FakeModel::AddExperts() {
  config_.layers = 2;
  config_.experts = ExpertsConfig{.experts = 4096, .per_token = 1};
}

base::Status FakeModel::ReserveKv(std::uint32_t blocks) {
  keys_.assign(std::size_t{blocks} * kKvBlock, 0xDEAD);
  return {};
}

base::Status FakeModel::Forward(const Batch& batch, std::span<float> logits) {
  ++steps;
  largest_step = std::max(largest_step.load(), static_cast<std::uint32_t>(batch.tokens.size()));
  if (before_step) SYNCLINE_TRY(before_step(batch));
  const auto a = std::to_integer<std::uint32_t>(parameters_.live()[0][0]);
  const auto b = std::to_integer<std::uint32_t>(parameters_.live()[0][8]);
  std::vector<std::uint32_t> next(batch.tokens.size());
  if (batch.experts) chosen_.clear();
  for (const SequenceSlice& sequence : batch.sequences) {
    const auto key = [&](std::uint32_t position) -> std::uint32_t& {
      return keys_.at(std::size_t{sequence.blocks.at(position / kKvBlock)} * kKvBlock +
                      position % kKvBlock);
    };
    const std::uint32_t first = sequence.context - sequence.length;
    std::uint64_t sum = b;
    for (std::uint32_t i = 0; i < sequence.context; ++i) {
      if (i >= first)
        key(i) = static_cast<std::uint32_t>(batch.tokens[sequence.begin + i - first]) * 3 + a;
      sum += std::uint64_t{key(i)} * (i + 1);
      if (i >= first && batch.experts) {
        chosen_.push_back(static_cast<std::int32_t>(key(i)));
        chosen_.push_back(static_cast<std::int32_t>(i));
      }
      if (i >= first)
        next[sequence.begin + i - first] = static_cast<std::uint32_t>(sum % kVocabulary);
    }
  }
  for (std::size_t i = 0; i < batch.logits_rows.size(); ++i) {
    for (std::uint32_t v = 0; v < kVocabulary; ++v) {
      logits[i * kVocabulary + v] = Logit(v, next[batch.logits_rows[i]]);
    }
  }
  return {};
}

float FakeModel::Logit(std::uint32_t token, std::uint32_t next) {
  return token == next ? 8.0F : -static_cast<float>(token % 7);
}

std::int32_t FakeModel::Next(const std::vector<std::int32_t>& tokens,
                             const std::vector<Weights>& weights) {
  std::uint64_t sum = weights.back().b;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    sum += (static_cast<std::uint64_t>(tokens[i]) * 3 + weights[i].a) * (i + 1);
  }
  return static_cast<std::int32_t>(sum % kVocabulary);
}

std::vector<std::int32_t> FakeModel::Continue(std::vector<std::int32_t> tokens, std::uint32_t count,
                                              Weights weights) {
  const std::size_t begin = tokens.size();
  while (tokens.size() < begin + count) {
    tokens.push_back(Next(tokens, std::vector<Weights>(tokens.size(), weights)));
  }
  return {tokens.begin() + static_cast<std::ptrdiff_t>(begin), tokens.end()};
}

}  // namespace syncline::model
