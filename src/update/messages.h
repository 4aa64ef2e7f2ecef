// Messages of tensors, for tests.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tensor/view.h"
#include "update/unit_model.h"

namespace syncline::update {

// A safetensors file in memory.
std::vector<std::byte> MessageOf(std::span<const tensor::TensorView> tensors);

// Some tensors of a model, by their names.
std::vector<std::byte> MessageOf(const UnitModel& model, const UnitModel::Weights& weights,
                                 std::span<const std::string> names);

}  // namespace syncline::update
