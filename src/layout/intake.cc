#include "layout/intake.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "base/stream_copy.h"
#include "layout/known_names.h"
#include "layout/pieces.h"
#include "layout/runs.h"
#include "layout/tensor_names.h"

namespace syncline::layout {
namespace {

using base::Code;
using base::Fail;
using base::Result;
using base::Status;

constexpr std::size_t kNamesShown = 5;
// What a thread writes at a time: small enough to share out a large tensor.
constexpr std::uint64_t kWriteBytes = 2 << 20;

// "k of the fused parameter qkv", or only the tensor.
std::string WaitingText(const Plan& plan, std::size_t tensor) {
  const std::string& name = plan.tensors()[tensor].name;
  const auto pieces = plan.PiecesOf(tensor);
  if (pieces.empty() || plan.parameters()[pieces.front().parameter].name == name) return name;
  return fmt::format("{} (a part of {})", name, plan.parameters()[pieces.front().parameter].name);
}

// kInvalidArgument where the bytes are not those of dtype and shape.
Status CheckBytes(const Arrival& arrival) {
  SYNCLINE_ASSIGN(const std::uint64_t expected, tensor::ByteCount(arrival.dtype, arrival.shape));
  if (arrival.bytes.size() == expected) return {};
  return Fail(Code::kInvalidArgument, fmt::format("tensor {} came with {} bytes, expected {}",
                                                  arrival.name, arrival.bytes.size(), expected));
}

bool IsTensor(const Claim& claim) {
  return claim.kind == Claim::Kind::kTensor || claim.kind == Claim::Kind::kTwin;
}

}  // namespace

Intake::Intake(const Plan& plan, std::span<const base::MutableByteSpan> parameters,
               const Forms* forms)
    : plan_(plan),
      parameters_(parameters),
      forms_(forms),
      names_(plan.tensors().size()),
      tensors_of_(plan.parameters().size()) {
  for (std::size_t i = 0; i < plan.tensors().size(); ++i) {
    for (const Piece& piece : plan.PiecesOf(i)) {
      std::vector<std::size_t>& tensors = tensors_of_[piece.parameter];
      if (tensors.empty() || tensors.back() != i) tensors.push_back(i);
    }
  }
}

Result<Claim> Intake::FindOne(const Arrival& arrival) const {
  const std::string plain = WithoutWrappers(arrival.name);
  if (plan_.IsSkipped(plain)) return Claim{.kind = Claim::Kind::kSkipped};
  Claim claim{.kind = Claim::Kind::kTensor, .index = plan_.FindTensor(plain)};
  if (claim.index == Plan::npos) {
    claim = {.kind = Claim::Kind::kTwin, .index = plan_.FindAlias(plain)};
  }
  if (claim.index == Plan::npos) return Claim{};
  SYNCLINE_TRY(CheckBytes(arrival));
  const Result<std::size_t> match = plan_.Match(plain, arrival.dtype, arrival.shape);
  if (!match) {
    claim.other_form =
        forms_ != nullptr && forms_->Accepts(claim.index, arrival.dtype, arrival.shape);
    if (!claim.other_form) return std::unexpected(match.error());
  }
  const std::string& came = names_[claim.index];
  if (!came.empty() && came != arrival.name) {
    const bool came_as_twin = WithoutWrappers(came) != plan_.tensors()[claim.index].name;
    if (came_as_twin == (claim.kind == Claim::Kind::kTwin)) {
      return Fail(Code::kAlreadyExists,
                  fmt::format("{} and {} are both tensor {}", came, arrival.name,
                              plan_.tensors()[claim.index].name));
    }
  }
  return claim;
}

Result<std::vector<Claim>> Intake::Find(std::span<const Arrival> message) const {
  std::vector<Claim> claims;
  std::unordered_map<std::size_t, std::string_view> tensors;
  std::unordered_map<std::size_t, std::string_view> twins;
  for (const Arrival& arrival : message) {
    SYNCLINE_ASSIGN(const Claim claim, FindOne(arrival));
    claims.push_back(claim);
    if (!IsTensor(claim)) continue;
    auto& seen = claim.kind == Claim::Kind::kTwin ? twins : tensors;
    const auto [first, is_new] = seen.emplace(claim.index, arrival.name);
    if (!is_new) {
      return Fail(Code::kAlreadyExists,
                  fmt::format("{} and {} are both tensor {}", first->second, arrival.name,
                              plan_.tensors()[claim.index].name));
    }
  }
  return claims;
}

Result<std::vector<Claim>> Intake::FindParameters(std::span<const Arrival> message) const {
  std::vector<Claim> claims;
  std::unordered_map<std::size_t, std::string_view> seen;
  for (const Arrival& arrival : message) {
    const std::size_t parameter = plan_.FindParameter(arrival.name);
    if (parameter == Plan::npos || plan_.IsDerived(parameter)) {
      return Fail(Code::kNotFound,
                  fmt::format("the engine has no parameter {} to load", ClippedName(arrival.name)));
    }
    SYNCLINE_TRY(CheckBytes(arrival));
    const TensorSpec& spec = plan_.parameters()[parameter];
    if (arrival.dtype != spec.dtype || !std::ranges::equal(arrival.shape, spec.shape)) {
      return Fail(Code::kInvalidArgument,
                  fmt::format("parameter {} came as {} {}, expected {} {}", spec.name,
                              tensor::Name(arrival.dtype), tensor::ShapeText(arrival.shape),
                              tensor::Name(spec.dtype), tensor::ShapeText(spec.shape)));
    }
    if (!seen.emplace(parameter, arrival.name).second) {
      return Fail(Code::kAlreadyExists, fmt::format("parameter {} came twice", spec.name));
    }
    claims.push_back({.kind = Claim::Kind::kParameter, .index = parameter});
  }
  return claims;
}

base::Error Intake::WhyUnknown(const Arrival& arrival) const {
  const auto match = plan_.Match(WithoutWrappers(arrival.name), arrival.dtype, arrival.shape);
  if (!match) return match.error();
  return {Code::kInternal, fmt::format("tensor {} is known", arrival.name)};
}

std::vector<std::size_t> Intake::Targets(std::span<const Claim> claims) const {
  std::vector<std::size_t> parameters;
  for (const Claim& claim : claims) {
    if (claim.kind == Claim::Kind::kParameter) parameters.push_back(claim.index);
    if (!IsTensor(claim)) continue;
    for (const Piece& piece : plan_.PiecesOf(claim.index)) parameters.push_back(piece.parameter);
  }
  std::ranges::sort(parameters);
  const auto rest = std::ranges::unique(parameters);
  parameters.erase(rest.begin(), rest.end());
  return parameters;
}

struct Intake::Job {
  std::size_t arrival = 0;
  // A part of it; without runs all of it.
  std::optional<Runs> runs;
  std::byte* to = nullptr;
};

// A large tensor is shared out.
void Intake::AddJobs(std::size_t number, const Arrival& arrival, const Claim& claim,
                     std::vector<Job>& jobs) const {
  if (claim.other_form || arrival.bytes.size() <= 2 * kWriteBytes) {
    jobs.push_back({.arrival = number, .runs = std::nullopt});
    return;
  }
  const auto add = [&](const Runs& runs, std::size_t parameter) {
    for (Runs& part : CutRuns(runs, kWriteBytes)) {
      jobs.push_back({number, std::move(part), parameters_[parameter].data()});
    }
  };
  if (claim.kind == Claim::Kind::kParameter) {
    return add({.run = arrival.bytes.size(), .loops = {}}, claim.index);
  }
  for (const Piece& piece : plan_.PiecesOf(claim.index)) {
    add(FindRuns(arrival.dtype, {arrival.shape, piece.source},
                 {plan_.parameters()[piece.parameter].shape, piece.destination}),
        piece.parameter);
  }
}

Status Intake::WriteOne(const Arrival& arrival, const Claim& claim) const {
  if (claim.kind == Claim::Kind::kParameter) {
    base::StreamCopy(parameters_[claim.index].data(), arrival.bytes.data(), arrival.bytes.size());
    return {};
  }
  if (!claim.other_form) {
    plan_.Scatter(claim.index, arrival.bytes, parameters_);
    return {};
  }
  SYNCLINE_ASSIGN(const std::vector<std::byte> bytes,
                  forms_->Convert(claim.index, arrival.dtype, arrival.shape, arrival.bytes));
  plan_.Scatter(claim.index, bytes, parameters_);
  return {};
}

Status Intake::CompareTwin(const Arrival& arrival, const Claim& claim) const {
  std::vector<std::byte> converted;
  base::ByteSpan bytes = arrival.bytes;
  if (claim.other_form) {
    SYNCLINE_ASSIGN(converted,
                    forms_->Convert(claim.index, arrival.dtype, arrival.shape, arrival.bytes));
    bytes = converted;
  }
  if (HoldsBytes(plan_, claim.index, bytes, {parameters_.begin(), parameters_.end()})) return {};
  return Fail(Code::kChecksumMismatch,
              fmt::format("{}: the model's configuration ties it to {}, but their bytes differ",
                          arrival.name, names_[claim.index]));
}

void Intake::Note(const Arrival& arrival, const Claim& claim) {
  ++report_.received;
  if (claim.other_form) ++report_.converted;
  if (claim.kind == Claim::Kind::kSkipped) ++report_.skipped;
  if (claim.kind == Claim::Kind::kUnknown) {
    ++report_.unknown;
    if (report_.unknowns.size() < kNamesShown) {
      report_.unknowns.push_back(ClippedName(arrival.name));
    }
  }
  const auto came = [&](std::size_t tensor, std::string_view name) {
    if (!names_[tensor].empty()) return;
    ++report_.written;
    report_.bytes += plan_.tensors()[tensor].bytes();
    names_[tensor] = name;
  };
  if (IsTensor(claim)) came(claim.index, arrival.name);
  if (claim.kind == Claim::Kind::kParameter) {
    // As if under their own names, so that they may come so again.
    for (const std::size_t tensor : tensors_of_[claim.index]) {
      came(tensor, plan_.tensors()[tensor].name);
    }
  }
}

void Intake::NoteAll() {
  for (std::size_t i = 0; i < names_.size(); ++i) names_[i] = plan_.tensors()[i].name;
}

// A tensor that has come under its other name is compared with that, the others are written.
Status Intake::Write(std::span<const Arrival> message, std::span<const Claim> claims,
                     base::ThreadPool& pool) {
  std::vector<Job> jobs;
  std::vector<std::size_t> twins;
  for (std::size_t i = 0; i < message.size(); ++i) {
    const Claim& claim = claims[i];
    const bool other_name =
        IsTensor(claim) && Came(claim.index) && names_[claim.index] != message[i].name;
    if (other_name) {
      twins.push_back(i);
    } else if (IsTensor(claim) || claim.kind == Claim::Kind::kParameter) {
      AddJobs(i, message[i], claim, jobs);
    }
    Note(message[i], claim);
  }
  SYNCLINE_TRY(pool.ParallelFor(jobs.size(), [&](std::size_t i) -> Status {
    const Job& job = jobs[i];
    const Arrival& arrival = message[job.arrival];
    if (!job.runs) return WriteOne(arrival, claims[job.arrival]);
    StreamRuns(*job.runs, arrival.bytes.data(), job.to);
    return {};
  }));
  for (const std::size_t i : twins) SYNCLINE_TRY(CompareTwin(message[i], claims[i]));
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
