#include "replica/fold_delta.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <span>
#include <string_view>
#include <vector>

#include "checkpoint/reader.h"
#include "replica/prepare.h"
#include "store/arrival.h"
#include "store/delta_writer.h"
#include "store/lease.h"
#include "store/tensor_set.h"
#include "store/version.h"

namespace syncline::replica {
namespace {

using base::Code;
using base::Fail;
using base::FileSystem;
using base::Result;
using base::Status;
using tensor::TensorView;

// What was read is what the ends are known to be: a tensor of the fold has the hash that it must
// become, any other the same hash at both ends.
Status CheckTensors(std::span<const store::ManifestTensor> fold, std::uint64_t version,
                    const FoldEnd& from, const FoldEnd& to, std::span<const TensorView> tensors) {
  std::map<std::string_view, const std::string*> changed;
  for (const store::ManifestTensor& tensor : fold) changed.emplace(tensor.name, &tensor.hash);
  for (const TensorView& tensor : tensors) {
    const auto known = to.hashes.find(tensor.name);
    if (known == to.hashes.end()) continue;
    const auto now = changed.find(tensor.name);
    const auto before = from.hashes.find(tensor.name);
    std::string found;
    if (now != changed.end()) {
      if (known->second.kind == tensor::HashKind::kXxh3) found = *now->second;
    } else if (before != from.hashes.end() && before->second.kind == known->second.kind) {
      found = before->second.hex;
    }
    if (found.empty() || found == known->second.hex) continue;
    return Fail(Code::kChecksumMismatch,
                fmt::format("tensor {} of version {} was read as one with the hash {}, expected {}",
                            tensor.name, version, found, known->second.hex));
  }
  return {};
}

}  // namespace

Result<WrittenFold> WriteFoldDelta(FileSystem& files, const FoldDelta& fold, const FoldEnd& from,
                                   const FoldEnd& to, const std::string& staged,
                                   base::ThreadPool& pool, base::Progress& progress,
                                   const base::CancelToken* cancel) {
  SYNCLINE_ASSIGN(const auto old_tensors, checkpoint::MappedCheckpoint::Open(files, from.path));
  SYNCLINE_ASSIGN(const auto new_tensors, checkpoint::CheckpointReader::Open(files, to.path));
  const std::vector<TensorView> old_views = old_tensors.Views();
  const std::vector<TensorView> new_views = new_tensors.Views();
  SYNCLINE_TRY(store::CheckSameTensors(old_views, new_views, fold.range.from));
  SYNCLINE_ASSIGN(const store::TensorTotals totals, store::Total(new_views));
  std::vector<delta::ChangedLines> lines;
  const store::DeltaInfo info{.version = fold.range.to,
                              .base_version = fold.range.from,
                              .encoding = fold.encoding.encoding};
  SYNCLINE_ASSIGN(
      store::DeltaCounts counts,
      store::WriteDelta(
          files, staged, old_views, new_views, info,
          {.prefix = {}, .durable = fold.durable, .loader = &new_tensors, .choice = fold.encoding},
          lines, pool, progress, cancel));
  store::Manifest manifest{.run = fold.run,
                           .version = fold.range.to,
                           .base_version = fold.range.from,
                           .parent = fold.base,
                           .created_ns = static_cast<std::uint64_t>(store::NowNs()),
                           .tensors_total = new_views.size(),
                           .elements = totals.elements,
                           .elements_changed = counts.elements_changed,
                           .full_bytes = totals.bytes,
                           .fold = store::ManifestFold{fold.base, fold.target},
                           .tensors_in_files = info.encoding == delta::Encoding::kCompact};
  SYNCLINE_TRY(CheckTensors(counts.tensors, fold.range.to, from, to, new_views));
  if (!manifest.tensors_in_files) manifest.tensors = std::move(counts.tensors);
  SYNCLINE_ASSIGN(manifest.files, store::ListFiles(files, staged, counts.files, pool, cancel));
  return WrittenFold{std::move(manifest), counts.tensors_changed};
}

Status CarryOutFold(FileSystem& files, const FoldDelta& fold, const FoldEnd& from,
                    const std::string& staged, const std::string& path, base::ThreadPool& pool,
                    base::Progress& progress, const base::CancelToken* cancel) {
  SYNCLINE_ASSIGN(const auto base, checkpoint::Checkpoint::Open(files, from.path));
  SYNCLINE_ASSIGN(const store::Version version,
                  store::ReadVersionIn(files, base::ParentOf(staged),
                                       std::string(base::BaseName(staged)), fold.range.to));
  Head held;
  held.hashes = from.hashes;
  const auto there = store::Arrival::Ended(files, base::ParentOf(staged), {});
  SYNCLINE_ASSIGN(const Prepared prepared,
                  Prepare(files, base, *there, {&version, 1}, held, VerifyBy::kHash, JournalHead{},
                          path, pool, progress, cancel));
  if (prepared.wrong.empty()) return {};
  return Fail(Code::kChecksumMismatch,
              fmt::format("the fold does not lead from version {} to {}: wrong are {}",
                          fold.range.from, fold.range.to, fmt::join(prepared.wrong, ", ")));
}

}  // namespace syncline::replica
