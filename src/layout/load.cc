#include "layout/load.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/pool.h"

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
};

base::Result<Roles> AssignRoles(const Checkpoint& checkpoint, const Plan& plan) {
  Roles roles;
  roles.sources.resize(plan.tensors().size());
  std::vector<std::string> unclaimed;
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    if (plan.IsSkipped(tensor.name)) continue;
    const bool is_twin = plan.FindAlias(tensor.name) != Plan::npos;
    if (!is_twin && plan.FindTensor(tensor.name) == Plan::npos) {
      unclaimed.push_back(tensor.name);
      continue;
    }
    const auto match = plan.Match(tensor.name, tensor.dtype, tensor.shape);
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
  const auto list = [](const std::vector<std::string>& names) {
    const auto shown = std::min<std::ptrdiff_t>(std::ssize(names), 5);
    std::string text = fmt::format("{}", fmt::join(names.begin(), names.begin() + shown, ", "));
    if (std::ssize(names) > shown) {
      text += fmt::format(" (and {} more)", std::ssize(names) - shown);
    }
    return text;
  };
  if (!missing.empty()) {
    return base::Fail(Code::kNotFound,
                      fmt::format("{}: {} of {} tensors are missing: {}", checkpoint.directory(),
                                  missing.size(), roles.sources.size(), list(missing)));
  }
  if (unclaimed.size() == 1) {
    // Match knows what the name may be meant for.
    const CheckpointTensor& tensor = *checkpoint.Find(unclaimed[0]);
    return base::Annotate(plan.Match(tensor.name, tensor.dtype, tensor.shape).error(),
                          checkpoint.directory());
  }
  if (!unclaimed.empty()) {
    return base::Fail(Code::kNotFound,
                      fmt::format("{}: {} tensors belong to no parameter of the model: {}",
                                  checkpoint.directory(), unclaimed.size(), list(unclaimed)));
  }
  return roles;
}

// One thing to do for a thread: read a piece straight into place, or read a tensor and scatter it.
struct Job {
  const CheckpointTensor* source = nullptr;
  std::uint64_t offset = 0;  // in the tensor
  base::MutableByteSpan into;
  std::size_t scatter = Plan::npos;  // tensor of the plan
};

std::vector<Job> MakeJobs(const Roles& roles, const Plan& plan,
                          std::span<const base::MutableByteSpan> parameters) {
  std::vector<Job> jobs;
  for (std::size_t i = 0; i < roles.sources.size(); ++i) {
    const CheckpointTensor& source = *roles.sources[i];
    Plan::Range range;
    if (!plan.ContiguousRange(i, range)) {
      jobs.push_back({.source = &source, .scatter = i});
      continue;
    }
    const base::MutableByteSpan whole =
        parameters[range.parameter].subspan(range.offset, range.bytes);
    for (std::uint64_t offset = 0; offset < range.bytes; offset += kReadBytes) {
      const std::uint64_t size = std::min(kReadBytes, range.bytes - offset);
      jobs.push_back({.source = &source, .offset = offset, .into = whole.subspan(offset, size)});
    }
  }
  return jobs;
}

base::Status CompareTwin(base::File& file, const Roles::Twin& twin, const Plan& plan,
                         std::span<const base::MutableByteSpan> parameters) {
  base::Buffer found;
  base::Buffer expected;
  const base::MutableByteSpan bytes = found.Get(twin.tensor->bytes);
  SYNCLINE_TRY(base::ReadExactly(file, bytes, twin.tensor->offset));
  const base::MutableByteSpan own = expected.Get(twin.tensor->bytes);
  const std::vector<base::ByteSpan> views(parameters.begin(), parameters.end());
  plan.Gather(twin.target, views, own);
  if (std::ranges::equal(bytes, own)) return {};
  return base::Fail(Code::kChecksumMismatch,
                    fmt::format("{}: the model's configuration ties it to {}, but their bytes "
                                "differ",
                                twin.tensor->name, plan.tensors()[twin.target].name));
}

}  // namespace

base::Status CheckNames(const Checkpoint& checkpoint, const Plan& plan) {
  SYNCLINE_TRY(AssignRoles(checkpoint, plan));
  return {};
}

base::Result<LoadReport> LoadCheckpoint(base::FileSystem& files, const Checkpoint& checkpoint,
                                        const Plan& plan,
                                        std::span<const base::MutableByteSpan> parameters,
                                        base::ThreadPool& pool, const base::CancelToken* cancel) {
  SYNCLINE_ASSIGN(const Roles roles, AssignRoles(checkpoint, plan));
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
    base::Status done;
    if (job.scatter == Plan::npos) {
      done = base::ReadExactly(file, job.into, job.source->offset + job.offset);
    } else {
      const base::Pool<base::Buffer>::Lease buffer(buffers);
      const base::MutableByteSpan bytes = buffer->Get(job.source->bytes);
      done = base::ReadExactly(file, bytes, job.source->offset);
      if (done) plan.Scatter(job.scatter, bytes, parameters);
    }
    if (!done) return base::Annotate(done.error(), job.source->name);
    return done;
  };
  SYNCLINE_TRY(pool.ParallelFor(jobs.size(), run, cancel));
  for (const Roles::Twin& twin : roles.twins) {
    const base::Status same = CompareTwin(*opened[twin.tensor->file], twin, plan, parameters);
    if (!same) return base::Annotate(same.error(), checkpoint.FilePath(twin.tensor->file));
  }
  LoadReport report = {.tensors = roles.sources.size()};
  for (const CheckpointTensor* source : roles.sources) report.bytes += source->bytes;
  return report;
}

}  // namespace syncline::layout
