#include "store/baseline.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

namespace syncline::store {
namespace {

using base::Code;
using base::Fail;
using base::Status;
using tensor::TensorView;

constexpr std::uint64_t kCopyBytes = 4 << 20;  // a multiple of delta::kBlockBytes

class MemoryBaseline final : public Baseline {
 public:
  std::span<const TensorView> tensors() const override { return views_; }

  Status Advance(std::uint64_t, std::span<const TensorView> tensors,
                 std::span<const delta::ChangedLines> lines, base::ThreadPool& pool) override {
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

  Status AdvanceBy(std::uint64_t, DeltaReader& files, base::ThreadPool& pool) override {
    return pool.ParallelFor(files.runs().size(), [&](std::size_t run) -> Status {
      std::vector<std::span<std::byte>> images;
      std::vector<DeltaReader::Target> targets;
      for (const std::size_t tensor : files.runs()[run]) {
        const std::string& name = files.version().tensors[tensor].name;
        const auto view = std::ranges::lower_bound(views_, name, {}, &TensorView::name);
        const auto index = static_cast<std::size_t>(view - views_.begin());
        images.emplace_back(memory_.get() + offsets_[index], view->bytes.size());
        targets.push_back({view->bytes.size(), view->dtype});
      }
      SYNCLINE_ASSIGN(const auto patch, files.OpenRun(run, targets));
      delta::BlockPatch block = patch->MakeBlock();
      for (const std::span<std::byte> image : images) {
        for (std::size_t at = 0; at < image.size(); at += delta::kBlockBytes) {
          const auto part = image.subspan(at, std::min(delta::kBlockBytes, image.size() - at));
          SYNCLINE_TRY(patch->Next(part, block));
          block.Put(part);
        }
        SYNCLINE_TRY(patch->Finish());
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
  bool needs_bytes() const override { return false; }
  Status Advance(std::uint64_t, std::span<const TensorView>, std::span<const delta::ChangedLines>,
                 base::ThreadPool&) override {
    return {};
  }

 private:
  std::vector<TensorView> tensors_;
};

}  // namespace

std::unique_ptr<Baseline> MakeMemoryBaseline() { return std::make_unique<MemoryBaseline>(); }

std::unique_ptr<Baseline> MakeBorrowedBaseline(std::vector<TensorView> tensors) {
  return std::make_unique<BorrowedBaseline>(std::move(tensors));
}

std::unique_ptr<Baseline> MakeNoBaseline() { return MakeBorrowedBaseline({}); }

}  // namespace syncline::store
