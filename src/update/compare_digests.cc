#include "update/compare_digests.h"

#include <fmt/core.h>

#include <map>
#include <optional>

#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/digests.h"
#include "store/source.h"
#include "store/version_digests.h"

namespace syncline::update {
namespace {

using base::Result;

// Digests that a version should have, by name; of some they may not be known.
using Expected = std::map<std::string, std::optional<tensor::Digest>, std::less<>>;

// Adds the tensors of the checkpoint that no version has changed.
base::Status AddLaunch(base::FileSystem& files, const std::string& path,
                       const base::CancelToken& cancel, Expected& expected) {
  SYNCLINE_ASSIGN(const auto checkpoint, checkpoint::Checkpoint::Open(files, path));
  base::ThreadPool pool;
  SYNCLINE_ASSIGN(const auto digests,
                  checkpoint::DigestCheckpoint(files, checkpoint, pool, &cancel));
  for (std::size_t i = 0; i < digests.size(); ++i) {
    expected.try_emplace(checkpoint.tensors()[i].name, digests[i]);
  }
  return {};
}

}  // namespace

Result<DigestComparison> CompareDigests(base::FileSystem& files, const layout::Plan& plan,
                                        std::span<const DigestReport::Tensor> live,
                                        const std::string& source, std::uint64_t version,
                                        const std::string& launch_path,
                                        const base::CancelToken& cancel) {
  DigestComparison comparison = {.source = source, .version = version};
  SYNCLINE_ASSIGN(const auto opened, store::Source::Open(files, source, {.cancel = &cancel}));
  SYNCLINE_ASSIGN(const store::VersionDigests digests,
                  store::ReadVersionDigests(*opened, version, &cancel));
  comparison.identity = digests.identity;
  Expected expected;
  for (const store::TensorDigest& tensor : digests.tensors) {
    expected.try_emplace(tensor.name, tensor.digest);
  }
  if (!digests.complete) SYNCLINE_TRY(AddLaunch(files, launch_path, cancel, expected));

  std::vector<bool> seen(live.size());
  for (const auto& [name, digest] : expected) {
    if (plan.IsSkipped(name)) continue;
    std::size_t tensor = plan.FindTensor(name);
    if (tensor == layout::Plan::npos) tensor = plan.FindAlias(name);
    if (tensor == layout::Plan::npos) {
      comparison.different.push_back(name);
      continue;
    }
    seen[tensor] = true;
    if (!digest) {
      comparison.unknown.push_back(name);
    } else if (*digest == live[tensor].digest) {
      ++comparison.equal;
    } else {
      comparison.different.push_back(name);
    }
  }
  for (std::size_t i = 0; i < live.size(); ++i) {
    if (!seen[i]) comparison.different.push_back(live[i].name);
  }
  return comparison;
}

}  // namespace syncline::update
