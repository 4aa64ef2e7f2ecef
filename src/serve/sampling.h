// Reads sampling parameters in the two spellings that clients use.
#pragma once

#include <cstdint>

#include "engine/request.h"
#include "serve/fields.h"

namespace syncline::serve {

inline constexpr std::uint32_t kMaxSamples = 4096;  // `n`: results of one prompt

// The `sampling_params` of /generate. `samples` is `n`.
void ReadSampling(Fields& fields, engine::SamplingParams& params, std::uint32_t& samples);

// The fields of /v1 requests, apart from the length.
void ReadOpenAiSampling(Fields& fields, engine::SamplingParams& params, std::uint32_t& samples);

}  // namespace syncline::serve
