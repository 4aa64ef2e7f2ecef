#include "layout/intake.h"

#include <fmt/format.h>

#include "layout/known_names.h"
#include "layout/pieces.h"
#include "layout/tensor_names.h"

namespace syncline::layout {
namespace {

using base::Code;
using base::Fail;
using base::Status;

constexpr std::size_t kNamesShown = 5;

// "k of the fused parameter qkv", or only the tensor.
std::string WaitingText(const Plan& plan, std::size_t tensor) {
  const std::string& name = plan.tensors()[tensor].name;
  const auto pieces = plan.PiecesOf(tensor);
  if (pieces.empty() || plan.parameters()[pieces.front().parameter].name == name) return name;
  return fmt::format("{} (a part of {})", name, plan.parameters()[pieces.front().parameter].name);
}

}  // namespace

Intake::Intake(const Plan& plan, std::span<const base::MutableByteSpan> parameters, Unknown unknown)
    : plan_(plan), parameters_(parameters), unknown_(unknown), names_(plan.tensors().size()) {}

Status Intake::Add(std::string_view name, tensor::Dtype dtype, tensor::Shape shape,
                   base::ByteSpan bytes) {
  const std::string plain = WithoutWrappers(name);
  if (plan_.IsSkipped(plain)) {
    ++report_.received;
    ++report_.skipped;
    return {};
  }
  const base::Result<std::size_t> match = plan_.Match(plain, dtype, shape);
  if (!match) {
    if (match.error().code != Code::kNotFound || unknown_ == Unknown::kRefuse) {
      return std::unexpected(match.error());
    }
    ++report_.received;
    ++report_.unknown;
    if (report_.unknowns.size() < kNamesShown) report_.unknowns.push_back(ClippedName(name));
    return {};
  }
  const TensorSpec& spec = plan_.tensors()[*match];
  if (bytes.size() != spec.bytes()) {
    return Fail(Code::kInvalidArgument, fmt::format("tensor {} came with {} bytes, expected {}",
                                                    name, bytes.size(), spec.bytes()));
  }
  std::string& came = names_[*match];
  const bool is_twin = plain != spec.name;
  if (!came.empty() && came != name) {
    const bool came_as_twin = WithoutWrappers(came) != spec.name;
    if (is_twin == came_as_twin) {
      return Fail(Code::kAlreadyExists,
                  fmt::format("{} and {} are both tensor {}", came, name, spec.name));
    }
    if (!HoldsBytes(plan_, *match, bytes, {parameters_.begin(), parameters_.end()})) {
      return Fail(Code::kChecksumMismatch,
                  fmt::format("{}: the model's configuration ties it to {}, but their bytes differ",
                              name, came));
    }
  } else {
    plan_.Scatter(*match, bytes, parameters_);
  }
  ++report_.received;
  if (came.empty()) {
    ++report_.written;
    report_.bytes += bytes.size();
    came = name;
  }
  return {};
}

Status Intake::Finish() const {
  plan_.ClearFills(parameters_);
  std::vector<std::string> missing;
  for (std::size_t i = 0; i < names_.size(); ++i) {
    if (names_[i].empty()) missing.push_back(WaitingText(plan_, i));
  }
  if (missing.empty()) return {};
  return Fail(Code::kNotFound, fmt::format("{} of {} tensors have not come: {}", missing.size(),
                                           names_.size(), FirstNamesText(missing)));
}

}  // namespace syncline::layout
