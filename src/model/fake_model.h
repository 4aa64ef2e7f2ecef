// A model for tests whose output depends on everything that an engine can get wrong: each token,
// its position, the cache blocks that it was written to, and the weights at that time.
//
//   key of token t, written while the live weights are w:   t · 3 + w[0]
//   next token:   argmax of logits[v] = 8 if v = (Σ key[position] · (position + 1) + w[1]) mod
//   vocabulary, else -(v mod 7)
//
// Its checkpoint has the tensors "a.weight" and "b.weight" (U8 [8] each), stacked into the
// parameter "ab.weight"; w[0] is the first byte of a, w[1] of b. "b.twin" is an alias of b.weight.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "model/model.h"

namespace syncline::model {

class FakeModel : public Model {
 public:
  static constexpr std::uint32_t kVocabulary = 61;

  explicit FakeModel(std::uint32_t max_positions = 4096);

  const ModelConfig& config() const override { return config_; }
  const layout::Plan& plan() const override { return plan_; }
  Parameters& parameters() override { return parameters_; }
  std::uint64_t KvBytesPerToken() const override { return 4; }
  base::Status ReserveKv(std::uint32_t blocks) override;
  base::Status Derive(std::span<const base::MutableByteSpan>) override { return {}; }
  base::Status Forward(const Batch& batch, std::span<float> logits) override;

  std::span<const std::int32_t> chosen_experts() const override { return chosen_; }

  void SetWeights(std::uint8_t a, std::uint8_t b);
  // Gives the model two layers of experts, one a token: its "experts" are the key and the position.
  void AddExperts();

  // Called at the start of each step, if set: to slow it, or to make it fail.
  std::function<base::Status(const Batch&)> before_step;
  std::atomic<std::uint64_t> steps = 0;
  std::atomic<std::uint32_t> largest_step = 0;  // rows

  // The token that follows `tokens`, where token i was written under weights[i] = (a, b) and the
  // last weights are those of the step.
  struct Weights {
    std::uint8_t a = 0;
    std::uint8_t b = 0;
  };
  static std::int32_t Next(const std::vector<std::int32_t>& tokens,
                           const std::vector<Weights>& weights);
  // `count` tokens that follow `tokens` under the same weights all the time.
  static std::vector<std::int32_t> Continue(std::vector<std::int32_t> tokens, std::uint32_t count,
                                            Weights weights);
  static std::vector<std::int32_t> Continue(std::vector<std::int32_t> tokens, std::uint32_t count) {
    return Continue(std::move(tokens), count, Weights{});
  }
  static float Logit(std::uint32_t token, std::uint32_t next);

 private:
  ModelConfig config_;
  layout::Plan plan_;
  Parameters parameters_;
  std::vector<std::uint32_t> keys_;  // by slot
  std::vector<std::int32_t> chosen_;
};

}  // namespace syncline::model
