// Publishing version N:
// 1. Everything is written into .syncline/staging/weight_vN: files, then the manifest; each is
//    synced if `durable`.
// 2. The staging directory is synced, then renamed to weight_vN. The rename is the commit: readers
//    see all of a version or nothing of it.
// 3. The baseline moves, and the store directory is synced. If the process dies between 2 and 3 nothing is lost: the next publisher
//    takes N as its baseline. A publisher that finds staging left over removes it; the lock says
//    that nobody is writing there.
#include "store/publisher.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <numeric>

#include "checkpoint/writer.h"
#include "store/delta_writer.h"
#include "store/file_hash.h"
#include "store/manifest.h"

namespace syncline::store {
namespace {

using base::Code;
using base::Fail;
using base::FileSystem;
using base::Result;
using base::Status;
using tensor::TensorView;

constexpr std::uint64_t kCopyBytes = 4 << 20;  // a multiple of delta::kBlockBytes

class MemoryBaseline final : public Baseline {
 public:
  std::span<const TensorView> tensors() const override { return views_; }

  Status Advance(std::span<const TensorView> tensors, std::span<const delta::ChangedLines> lines,
                 base::ThreadPool& pool) override {
    if (lines.empty()) SYNCLINE_TRY(Allocate(tensors));
    struct Part {
      std::size_t tensor;
      std::uint64_t begin;
      std::uint64_t end;
    };
    std::vector<Part> parts;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::uint64_t bytes = tensors[i].bytes.size();
      for (std::uint64_t at = 0; at < bytes; at += kCopyBytes) {
        parts.push_back({i, at, std::min(bytes, at + kCopyBytes)});
      }
    }
    return pool.ParallelFor(parts.size(), [&](std::size_t i) -> Status {
      const auto& [tensor, begin, end] = parts[i];
      const std::span<std::byte> to(memory_.get() + offsets_[tensor], tensors[tensor].bytes.size());
      if (lines.empty()) {
        std::memcpy(&to[begin], &tensors[tensor].bytes[begin], end - begin);
      } else {
        lines[tensor].Copy(tensors[tensor].bytes, to, begin, end);
      }
      return {};
    });
  }

 private:
  // One block for all, in huge pages where the system has them: it is read from end to end at each
  // step.
  Status Allocate(std::span<const TensorView> tensors) {
    constexpr std::size_t kHugePage = 2 << 20;
    constexpr std::size_t kAlign = 64;
    std::size_t total = 0;
    for (const TensorView& view : tensors)
      total += (view.bytes.size() + kAlign - 1) / kAlign * kAlign;
    total = (total + kHugePage) / kHugePage * kHugePage;
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kHugePage, total)));
    if (memory_ == nullptr) {
      return Fail(Code::kLimitExceeded, fmt::format("no memory for a baseline of {} bytes", total));
    }
    (void)madvise(memory_.get(), total, MADV_HUGEPAGE);
    views_.assign(tensors.begin(), tensors.end());
    offsets_.clear();
    std::size_t offset = 0;
    for (TensorView& view : views_) {
      view.bytes = {memory_.get() + offset, view.bytes.size()};
      offsets_.push_back(offset);
      offset += (view.bytes.size() + kAlign - 1) / kAlign * kAlign;
    }
    return {};
  }

  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::vector<TensorView> views_;
  std::vector<std::size_t> offsets_;  // of each tensor in memory_
  std::unique_ptr<std::byte, Free> memory_;
};

class BorrowedBaseline final : public Baseline {
 public:
  explicit BorrowedBaseline(std::vector<TensorView> tensors) : tensors_(std::move(tensors)) {}
  std::span<const TensorView> tensors() const override { return tensors_; }
  Status Advance(std::span<const TensorView>, std::span<const delta::ChangedLines>,
                 base::ThreadPool&) override {
    return {};
  }

 private:
  std::vector<TensorView> tensors_;
};

Status CheckTensors(std::span<const TensorView> tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorView& view = tensors[i];
    if (i > 0 && tensors[i - 1].name == view.name) {
      return Fail(Code::kInvalidArgument, fmt::format("two tensors have the name {}", view.name));
    }
    SYNCLINE_ASSIGN(const std::uint64_t bytes, tensor::ByteCount(view.dtype, view.shape));
    if (bytes != view.bytes.size()) {
      return Fail(
          Code::kInvalidArgument,
          fmt::format("tensor {}: {} of shape {} takes {} bytes, given were {}", view.name,
                      Name(view.dtype), tensor::ShapeText(view.shape), bytes, view.bytes.size()));
    }
  }
  return {};
}

Status CopyCompanions(FileSystem& files, const std::string& from, const std::string& to,
                      bool durable, std::vector<std::string>& copied) {
  SYNCLINE_ASSIGN(const std::vector<std::string> names, files.List(from));
  for (const std::string& name : names) {
    SYNCLINE_ASSIGN(const base::FileInfo info, files.Stat(base::JoinPath(from, name)));
    if (info.kind != base::FileInfo::Kind::kFile || !IsCompanionFile(name)) continue;
    SYNCLINE_ASSIGN(const std::string text,
                    base::ReadText(files, base::JoinPath(from, name), std::uint64_t{1} << 30));
    SYNCLINE_TRY(base::WriteTextAtomically(files, base::JoinPath(to, name), text, durable));
    copied.push_back(name);
  }
  return {};
}

// The hash of each tensor; one tensor a thread, large ones first.
Result<std::vector<ManifestTensor>> HashAll(std::span<const TensorView> tensors,
                                            base::ThreadPool& pool,
                                            const base::CancelToken* cancel) {
  std::vector<ManifestTensor> hashed;
  for (const TensorView& view : tensors) {
    hashed.push_back({.name = view.name, .dtype = view.dtype, .shape = view.shape, .hash = {}});
  }
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::ranges::greater(),
                           [&](std::size_t i) { return tensors[i].bytes.size(); });
  SYNCLINE_TRY(pool.ParallelFor(
      order.size(),
      [&](std::size_t i) -> Status {
        hashed[order[i]].hash = tensor::HashHex(tensor::HashKind::kXxh3, tensors[order[i]].bytes);
        return {};
      },
      cancel));
  return hashed;
}

std::uint64_t NowNs() {
  return static_cast<std::uint64_t>(
      std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count());
}

}  // namespace

std::unique_ptr<Baseline> MakeMemoryBaseline() { return std::make_unique<MemoryBaseline>(); }

std::unique_ptr<Baseline> MakeBorrowedBaseline(std::vector<TensorView> tensors) {
  return std::make_unique<BorrowedBaseline>(std::move(tensors));
}

std::string OwnDirectory(const std::string& store) { return base::JoinPath(store, ".syncline"); }

Result<Publisher> Publisher::Open(FileSystem& files, const std::string& store,
                                  std::unique_ptr<Baseline> baseline, bool based_at_zero,
                                  PublisherOptions options) {
  Publisher publisher;
  publisher.files_ = &files;
  publisher.store_ = store;
  const std::string own = OwnDirectory(store);
  SYNCLINE_TRY(files.MakeDirectories(own));
  auto lock = files.Lock(base::JoinPath(own, "publisher.lock"), base::LockMode::kExclusive, false);
  if (!lock) return Annotate(std::move(lock).error(), "another publisher is at work");
  publisher.lock_ = *std::move(lock);
  SYNCLINE_TRY(files.RemoveAll(base::JoinPath(own, "staging")));
  SYNCLINE_ASSIGN(const std::vector<std::uint64_t> versions, ListVersions(files, store));
  publisher.run_ = DrawRun();
  if (!versions.empty()) {
    publisher.last_version_ = versions.back();
    // A foreign version has no manifest: a new run begins.
    SYNCLINE_ASSIGN(const auto last,
                    ReadManifest(files, base::JoinPath(store, VersionName(versions.back()))));
    if (last) {
      publisher.run_ = last->manifest.run;
      publisher.parent_ = last->identity;
    }
  } else if (based_at_zero) {
    publisher.last_version_ = 0;
  }
  publisher.baseline_ = std::move(baseline);
  publisher.options_ = std::move(options);
  publisher.pool_ = std::make_unique<base::ThreadPool>(publisher.options_.threads);
  return publisher;
}

Result<std::uint64_t> Publisher::ChooseVersion(std::optional<std::uint64_t> asked,
                                               bool full) const {
  const std::uint64_t next = last_version_ ? *last_version_ + 1 : 0;
  const std::uint64_t version = asked.value_or(next);
  if (last_version_ && version <= *last_version_) {
    return Fail(Code::kAlreadyExists, fmt::format("version {} is not newer than version {}, the "
                                                  "last one of {}",
                                                  version, *last_version_, store_));
  }
  if (!full && version != next) {
    return Fail(
        Code::kOutOfOrder,
        fmt::format("a delta must be the next version: expected {}, asked for {}", next, version));
  }
  return version;
}

Status Publisher::CheckSameTensors(std::span<const TensorView> tensors) const {
  const std::span<const TensorView> held = baseline_->tensors();
  std::vector<std::string_view> names;
  std::vector<std::string_view> held_names;
  for (const TensorView& view : tensors) names.emplace_back(view.name);
  for (const TensorView& view : held) held_names.emplace_back(view.name);
  std::vector<std::string_view> missing;
  std::vector<std::string_view> unknown;
  std::ranges::set_difference(held_names, names, std::back_inserter(missing));
  std::ranges::set_difference(names, held_names, std::back_inserter(unknown));
  if (!missing.empty() || !unknown.empty()) {
    return Fail(Code::kInvalidArgument,
                fmt::format("the tensors are not those of version {}: missing [{}], unknown [{}]; "
                            "publish a full version to change them",
                            *last_version_, fmt::join(missing, ", "), fmt::join(unknown, ", ")));
  }
  for (std::size_t i = 0; i < held.size(); ++i) {
    if (tensors[i].dtype == held[i].dtype && tensors[i].shape == held[i].shape) continue;
    return Fail(
        Code::kInvalidArgument,
        fmt::format("tensor {}: expected {} {} as in version {}, given {} {}; publish a "
                    "full version to change it",
                    held[i].name, Name(held[i].dtype), tensor::ShapeText(held[i].shape),
                    *last_version_, Name(tensors[i].dtype), tensor::ShapeText(tensors[i].shape)));
  }
  return {};
}

Status Publisher::WriteFullFiles(const std::string& directory, std::span<const TensorView> tensors,
                                 std::vector<std::string>& written, base::Progress& progress,
                                 const base::CancelToken* cancel) {
  SYNCLINE_TRY(checkpoint::WriteCheckpoint(
      *files_, directory, tensors, {.durable = options_.durable}, *pool_, progress, cancel));
  SYNCLINE_ASSIGN(const std::vector<std::string> names, files_->List(directory));
  written.insert(written.end(), names.begin(), names.end());
  if (options_.companions_from.empty()) return {};
  return CopyCompanions(*files_, options_.companions_from, directory, options_.durable, written);
}

Result<std::vector<ManifestFile>> Publisher::HashWritten(const std::string& directory,
                                                         std::vector<std::string> names,
                                                         const base::CancelToken* cancel) {
  std::ranges::sort(names);
  std::vector<std::string> paths;
  for (const std::string& name : names) paths.push_back(base::JoinPath(directory, name));
  SYNCLINE_ASSIGN(std::vector<FileHash> hashes, HashFiles(*files_, paths, *pool_, cancel));
  std::vector<ManifestFile> listed;
  for (std::size_t i = 0; i < names.size(); ++i) {
    listed.push_back({std::move(names[i]), hashes[i].bytes, std::move(hashes[i].sha256)});
  }
  return listed;
}

Result<PublishReport> Publisher::Publish(std::optional<std::uint64_t> asked,
                                         std::vector<TensorView> tensors, bool full,
                                         base::Progress& progress,
                                         const base::CancelToken* cancel) {
  const auto begin = std::chrono::steady_clock::now();
  full = full || baseline_->tensors().empty();
  SYNCLINE_ASSIGN(const std::uint64_t version, ChooseVersion(asked, full));
  std::ranges::sort(tensors, {}, &TensorView::name);
  SYNCLINE_TRY(CheckTensors(tensors));
  if (!full) SYNCLINE_TRY(CheckSameTensors(tensors));

  PublishReport report{.version = version, .tensors = tensors.size()};
  if (!full) report.base_version = last_version_;
  for (const TensorView& view : tensors) {
    SYNCLINE_ASSIGN(const std::uint64_t elements, tensor::ElementCount(view.shape));
    report.elements += elements;
    report.full_bytes += view.bytes.size();
  }

  const std::string staging = base::JoinPath(OwnDirectory(store_), "staging");
  const std::string directory = base::JoinPath(staging, VersionName(version));
  SYNCLINE_TRY(files_->RemoveAll(staging));
  SYNCLINE_TRY(files_->MakeDirectories(directory));
  Manifest manifest = {.run = run_,
                       .version = version,
                       .base_version = report.base_version,
                       .parent = parent_,
                       .created_ns = NowNs(),
                       .tensors_total = report.tensors,
                       .elements = report.elements,
                       .full_bytes = report.full_bytes};
  std::vector<std::string> written;
  std::vector<delta::ChangedLines> lines;
  if (full) {
    SYNCLINE_TRY(WriteFullFiles(directory, tensors, written, progress, cancel));
    SYNCLINE_ASSIGN(manifest.tensors, HashAll(tensors, *pool_, cancel));
    report.tensors_changed = report.tensors;
    report.elements_changed = report.elements;
  } else {
    const DeltaInfo info{
        .version = version, .base_version = *last_version_, .encoding = options_.encoding};
    SYNCLINE_ASSIGN(DeltaCounts counts,
                    WriteDelta(*files_, directory, baseline_->tensors(), tensors, info,
                               options_.durable, lines, *pool_, progress, cancel));
    report.tensors_changed = counts.tensors_changed;
    report.elements_changed = counts.elements_changed;
    manifest.tensors = std::move(counts.tensors);
    written = std::move(counts.files);
  }
  manifest.elements_changed = report.elements_changed;
  SYNCLINE_ASSIGN(manifest.files, HashWritten(directory, std::move(written), cancel));
  const std::string text = ManifestText(manifest);
  if (text.size() > kMaxManifestBytes) {
    return Fail(Code::kLimitExceeded, fmt::format("a manifest of {} bytes, the limit is {}",
                                                  text.size(), kMaxManifestBytes));
  }
  SYNCLINE_TRY(base::WriteTextAtomically(*files_, base::JoinPath(directory, kManifestName), text,
                                         options_.durable));
  report.bytes = text.size();
  for (const ManifestFile& file : manifest.files) report.bytes += file.bytes;

  SYNCLINE_TRY(files_->Rename(directory, base::JoinPath(store_, VersionName(version))));
  // From here on the version stands, whatever else fails.
  last_version_ = version;
  parent_ = Identity(text);
  SYNCLINE_TRY(baseline_->Advance(tensors, lines, *pool_));
  if (options_.durable) SYNCLINE_TRY(files_->SyncDirectory(store_));
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return report;
}

}  // namespace syncline::store
