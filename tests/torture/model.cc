#include "torture/model.h"

#include <fmt/format.h>

#include <array>
#include <cstring>

namespace syncline::torture {
namespace {

using tensor::Dtype;

void Fill(std::vector<std::byte>& bytes, Dice& dice) {
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t word = dice.Seed();
    std::memcpy(&bytes[at], &word, std::min(sizeof(word), bytes.size() - at));
  }
}

}  // namespace

Model::Model(Dice& dice, bool large) {
  static constexpr std::array kDtypes = {Dtype::kBF16, Dtype::kF32, Dtype::kU8};
  Add(dice.Pick(kDtypes), {dice.Between(50, 130), dice.Between(90, 140)});
  const std::uint64_t more = dice.Between(1, 5);
  for (std::uint64_t i = 0; i < more; ++i) {
    Add(dice.Pick(kDtypes), {dice.Between(1, 60), dice.Between(1, 99)});
  }
  if (dice.Percent(50)) Add(dice.Pick(kDtypes), {});
  if (dice.Percent(50)) Add(dice.Pick(kDtypes), {dice.Between(1, 3), 0});
  if (dice.Percent(50)) Add(Dtype::kBF16, {1});
  if (large) Add(Dtype::kF32, {2050, 1025});
}

void Model::Add(Dtype dtype, std::vector<std::uint64_t> shape) {
  tensors_.push_back({fmt::format("layer.{:02}.weight", size()), dtype, std::move(shape), {}});
}

std::vector<tensor::TensorView> Model::Views(const Weights& weights) const {
  std::vector<tensor::TensorView> views = tensors_;
  for (std::size_t i = 0; i < views.size(); ++i) views[i].bytes = weights[i];
  return views;
}

Weights Model::Start(Dice& dice) const {
  Weights weights;
  for (const tensor::TensorView& view : tensors_) {
    weights.emplace_back(tensor::ByteCount(view.dtype, view.shape).value());
    Fill(weights.back(), dice);
  }
  return weights;
}

Weights Model::Step(const Weights& weights, Dice& dice) const {
  static constexpr std::array<std::uint64_t, 5> kOneIn = {3, 20, 200, 3000, 20000};
  Weights next = weights;
  if (dice.Percent(4)) return next;
  for (std::vector<std::byte>& bytes : next) {
    if (bytes.empty() || dice.Percent(25)) continue;
    if (dice.Percent(5)) {
      Fill(bytes, dice);
      continue;
    }
    const std::uint64_t gap = dice.Pick(kOneIn);
    for (std::size_t at = dice.Below(gap); at < bytes.size(); at += dice.Between(1, 2 * gap)) {
      bytes[at] ^= static_cast<std::byte>(dice.Between(1, 255));
    }
  }
  return next;
}

}  // namespace syncline::torture
