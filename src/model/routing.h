// Which experts of a mixture a token goes to, and with what weights.
//
// Sources of the formulas: Qwen3 (2025) for the softmax form; DeepSeek-V2 (2024) and DeepSeek-V3
// (2024), "auxiliary-loss-free load balancing", for groups, sigmoid scores and the correction bias.
// Details are those of Hugging Face's models.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "model/config.h"

namespace syncline::model {

// For each row, `per_token` experts one after the other, the best first.
struct Routes {
  std::vector<std::uint32_t> experts;  // [rows · per_token]
  std::vector<float> weights;          // likewise
};

// `logits`: [rows, experts] in natural units; `bias`: [experts] or empty, added to the scores for
// choosing only. `config` is one that ParseModelConfig accepts. All in fp32. Of experts (and
// groups) with equal scores the one with the lower number is chosen; NaN counts as lowest. So the
// same bits of logits and bias give the same routes on every rank, and a row's routes do not depend
// on other rows.
Routes ChooseExperts(const ExpertsConfig& config, std::span<const float> logits,
                     std::span<const float> bias);

}  // namespace syncline::model
