#include "layout/load.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/pool.h"
#include "layout/known_names.h"
#include "layout/pieces.h"
#include "layout/runs.h"

namespace syncline::layout {
namespace {

using base::Code;
using checkpoint::Checkpoint;
using checkpoint::CheckpointTensor;

// Large enough that a read call's own cost does not count, small enough to share out a large
// tensor.
constexpr std::uint64_t kReadBytes = 4 << 20;

// The checkpoint tensors by the role that the plan gives them.
struct Roles {
  std::vector<const CheckpointTensor*> sources;  // for each tensor of the plan
  struct Twin {
    const CheckpointTensor* tensor;
    std::size_t target;  // must have the bytes of this tensor of the plan
  };
  std::vector<Twin> twins;
  std::uint64_t skipped = 0;
};

// Match, where another form is fine too.
base::Result<std::size_t> MatchForm(const CheckpointTensor& tensor, const Plan& plan,
                                    const Forms* forms) {
  auto match = plan.Match(tensor.name, tensor.dtype, tensor.shape);
  if (match || forms == nullptr) return match;
  std::size_t index = plan.FindTensor(tensor.name);
  if (index == Plan::npos) index = plan.FindAlias(tensor.name);
  if (!forms->Accepts(index, tensor.dtype, tensor.shape)) return match;
  return index;
}

base::Result<Roles> AssignRoles(const Checkpoint& checkpoint, const Plan& plan,
                                const LoadOptions& options) {
  Roles roles;
  roles.sources.resize(plan.tensors().size());
  std::vector<std::string> unclaimed;
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    if (plan.IsSkipped(tensor.name)) {
      ++roles.skipped;
      continue;
    }
    const bool is_twin = plan.FindAlias(tensor.name) != Plan::npos;
    if (!is_twin && plan.FindTensor(tensor.name) == Plan::npos) {
      if (!options.others || !options.others(tensor.name)) unclaimed.push_back(tensor.name);
      continue;
    }
    const auto match = MatchForm(tensor, plan, options.forms);
    if (!match) return base::Annotate(match.error(), checkpoint.FilePath(tensor.file));
    if (is_twin) {
      roles.twins.push_back({&tensor, *match});
    } else {
      roles.sources[*match] = &tensor;
    }
  }
  // A twin may stand in for the tensor itself.
  for (const Roles::Twin& twin : roles.twins) {
    if (roles.sources[twin.target] == nullptr) roles.sources[twin.target] = twin.tensor;
  }
  std::vector<std::string> missing;
  for (std::size_t i = 0; i < roles.sources.size(); ++i) {
    if (roles.sources[i] == nullptr) missing.push_back(plan.tensors()[i].name);
  }
  if (!missing.empty()) {
    return base::Fail(Code::kNotFound,
                      fmt::format("{}: {} of {} tensors are missing: {}", checkpoint.directory(),
                                  missing.size(), roles.sources.size(), FirstNamesText(missing)));
  }
  if (unclaimed.size() == 1) {
    // Match knows what the name may be meant for.
    const CheckpointTensor& tensor = *checkpoint.Find(unclaimed[0]);
    return base::Annotate(plan.Match(tensor.name, tensor.dtype, tensor.shape).error(),
                          checkpoint.directory());
  }
  if (!unclaimed.empty()) {
    return base::Fail(
        Code::kNotFound,
        fmt::format("{}: {} tensors belong to no parameter of the model: {}",
                    checkpoint.directory(), unclaimed.size(), FirstNamesText(unclaimed)));
  }
  return roles;
}

// Is the tensor in the form that the plan expects?
bool IsPlain(const CheckpointTensor& tensor, const TensorSpec& expected) {
  return tensor.dtype == expected.dtype && std::ranges::equal(tensor.shape, expected.shape);
}

// The bytes of a tensor as the plan expects them. The span holds until `buffer` or `converted` are
// touched.
base::Result<base::ByteSpan> ReadWhole(base::File& file, const CheckpointTensor& tensor,
                                       std::size_t index, const Plan& plan, const Forms* forms,
                                       base::Buffer& buffer, std::vector<std::byte>& converted) {
  const base::MutableByteSpan bytes = buffer.Get(tensor.bytes);
  SYNCLINE_TRY(base::ReadExactly(file, bytes, tensor.offset));
  if (IsPlain(tensor, plan.tensors()[index])) return bytes;
  SYNCLINE_ASSIGN(converted, forms->Convert(index, tensor.dtype, tensor.shape, bytes));
  if (converted.size() == plan.tensors()[index].bytes()) return base::ByteSpan(converted);
  return base::Fail(Code::kInternal, fmt::format("converted to {} bytes, expected {}",
                                                 converted.size(), plan.tensors()[index].bytes()));
}

// One thing to do for a thread: read bytes [begin, begin + bytes) of a tensor, straight into place
// (`into`) or to be scattered by `runs`, whose offsets count from `begin`. Where `into` is null:
// read the whole tensor, convert and scatter it.
struct Job {
  const CheckpointTensor* source = nullptr;
  std::size_t tensor = 0;  // of the plan, where it is converted
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
  std::byte* into = nullptr;  // of the bytes, or the parameter that the runs go to
  std::optional<Runs> runs;
};

// A run that lies in one piece in both places.
void AddReads(const CheckpointTensor& source, const Runs& runs, std::byte* parameter,
              std::vector<Job>& jobs) {
  for (std::uint64_t offset = 0; offset < runs.run; offset += kReadBytes) {
    jobs.push_back({.source = &source,
                    .begin = runs.from + offset,
                    .bytes = std::min(kReadBytes, runs.run - offset),
                    .into = parameter + runs.to + offset,
                    .runs = std::nullopt});
  }
}

// Runs that are scattered: shared out by the outermost loop. What lies between them in the file is
// read along.
void AddScatters(const CheckpointTensor& source, const Runs& runs, std::byte* parameter,
                 std::vector<Job>& jobs) {
  const Runs::Loop& outer = runs.loops.back();
  std::uint64_t extent = runs.run;  // of one iteration
  for (std::size_t i = 0; i + 1 < runs.loops.size(); ++i) {
    extent += (runs.loops[i].count - 1) * runs.loops[i].from_stride;
  }
  const std::uint64_t step =
      std::max<std::uint64_t>(1, kReadBytes / std::max<std::uint64_t>(1, outer.from_stride));
  for (std::uint64_t first = 0; first < outer.count; first += step) {
    const std::uint64_t count = std::min(step, outer.count - first);
    Runs part = runs;
    part.from = 0;
    part.to = runs.to + first * outer.to_stride;
    part.loops.back().count = count;
    jobs.push_back({.source = &source,
                    .begin = runs.from + first * outer.from_stride,
                    .bytes = (count - 1) * outer.from_stride + extent,
                    .into = parameter,
                    .runs = std::move(part)});
  }
}

std::vector<Job> MakeJobs(const Roles& roles, const Plan& plan,
                          std::span<const base::MutableByteSpan> parameters) {
  std::vector<Job> jobs;
  for (std::size_t i = 0; i < roles.sources.size(); ++i) {
    if (!IsPlain(*roles.sources[i], plan.tensors()[i])) {
      if (!plan.PiecesOf(i).empty()) jobs.push_back({.source = roles.sources[i], .tensor = i});
      continue;
    }
    for (const Piece& piece : plan.PiecesOf(i)) {
      const TensorSpec& parameter = plan.parameters()[piece.parameter];
      const Runs runs = FindRuns(parameter.dtype, {plan.tensors()[i].shape, piece.source},
                                 {parameter.shape, piece.destination});
      std::byte* into = parameters[piece.parameter].data();
      if (runs.loops.empty()) {
        AddReads(*roles.sources[i], runs, into, jobs);
      } else {
        AddScatters(*roles.sources[i], runs, into, jobs);
      }
    }
  }
  return jobs;
}

// What this rank holds of a tensor must be what the twin has there.
base::Status CompareTwin(base::File& file, const Roles::Twin& twin, const Plan& plan,
                         const Forms* forms, std::span<const base::MutableByteSpan> parameters) {
  base::Buffer found;
  std::vector<std::byte> converted;
  SYNCLINE_ASSIGN(const base::ByteSpan bytes,
                  ReadWhole(file, *twin.tensor, twin.target, plan, forms, found, converted));
  if (HoldsBytes(plan, twin.target, bytes, {parameters.begin(), parameters.end()})) return {};
  return base::Fail(Code::kChecksumMismatch,
                    fmt::format("{}: the model's configuration ties it to {}, but their bytes "
                                "differ",
                                twin.tensor->name, plan.tensors()[twin.target].name));
}

}  // namespace

base::Status CheckNames(const Checkpoint& checkpoint, const Plan& plan,
                        const LoadOptions& options) {
  SYNCLINE_TRY(AssignRoles(checkpoint, plan, options));
  return {};
}

base::Result<LoadReport> LoadCheckpoint(base::FileSystem& files, const Checkpoint& checkpoint,
                                        const Plan& plan,
                                        std::span<const base::MutableByteSpan> parameters,
                                        base::ThreadPool& pool, const LoadOptions& options) {
  const Forms* const forms = options.forms;
  SYNCLINE_ASSIGN(const Roles roles, AssignRoles(checkpoint, plan, options));
  std::vector<std::unique_ptr<base::File>> opened;
  for (std::size_t i = 0; i < checkpoint.files().size(); ++i) {
    SYNCLINE_ASSIGN(auto file, files.Open(checkpoint.FilePath(i), base::OpenMode::kRead));
    opened.push_back(std::move(file));
  }
  const std::vector<Job> jobs = MakeJobs(roles, plan, parameters);
  base::Pool<base::Buffer> buffers;
  const auto run = [&](std::size_t i) -> base::Status {
    const Job& job = jobs[i];
    base::File& file = *opened[job.source->file];
    const std::uint64_t offset = job.source->offset + job.begin;
    base::Status done;
    if (job.into == nullptr) {
      const base::Pool<base::Buffer>::Lease buffer(buffers);
      std::vector<std::byte> converted;
      const auto bytes = ReadWhole(file, *job.source, job.tensor, plan, forms, *buffer, converted);
      if (!bytes) return base::Annotate(bytes.error(), job.source->name);
      plan.Scatter(job.tensor, *bytes, parameters);
    } else if (!job.runs) {
      done = base::ReadExactly(file, {job.into, job.bytes}, offset);
    } else {
      const base::Pool<base::Buffer>::Lease buffer(buffers);
      const base::MutableByteSpan bytes = buffer->Get(job.bytes);
      done = base::ReadExactly(file, bytes, offset);
      if (done) StreamRuns(*job.runs, bytes.data(), job.into);
    }
    if (!done) return base::Annotate(done.error(), job.source->name);
    return done;
  };
  SYNCLINE_TRY(pool.ParallelFor(jobs.size(), run, options.cancel));
  plan.ClearFills(parameters);
  for (const Roles::Twin& twin : roles.twins) {
    const base::Status same =
        CompareTwin(*opened[twin.tensor->file], twin, plan, forms, parameters);
    if (!same) return base::Annotate(same.error(), checkpoint.FilePath(twin.tensor->file));
  }
  LoadReport report = {.tensors = roles.sources.size(), .skipped = roles.skipped};
  for (std::size_t i = 0; i < roles.sources.size(); ++i) {
    for (const Piece& piece : plan.PiecesOf(i)) {
      report.bytes += PieceBytes(plan.tensors()[i].dtype, piece.source);
    }
  }
  return report;
}

}  // namespace syncline::layout
