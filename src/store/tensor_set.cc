#include "store/tensor_set.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string_view>

#include "tensor/tensor_sums.h"

namespace syncline::store {
namespace {

using base::Code;
using base::Fail;
using base::Result;
using base::Status;
using tensor::TensorView;

constexpr std::uint64_t kLoadBytes = 1 << 20;

Status CheckSize(const TensorView& view) {
  Result<std::uint64_t> bytes = tensor::ByteCount(view.dtype, view.shape);
  if (!bytes) {
    return Fail(Code::kInvalidArgument,
                fmt::format("tensor {}: {}", view.name, bytes.error().message));
  }
  if (*bytes == view.bytes.size()) return {};
  return Fail(
      Code::kInvalidArgument,
      fmt::format("tensor {}: {} of shape {} takes {} bytes, given were {}", view.name,
                  Name(view.dtype), tensor::ShapeText(view.shape), *bytes, view.bytes.size()));
}

bool SameBytes(base::ByteSpan a, base::ByteSpan b) {
  return a.size() == b.size() &&
         (a.data() == b.data() || a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

}  // namespace

Status OrderTensors(std::vector<TensorView>& tensors, base::ThreadPool& pool,
                    const base::CancelToken* cancel) {
  std::ranges::stable_sort(tensors, {}, &TensorView::name);
  std::vector<std::size_t> twice;  // the tensor before has the same name
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    SYNCLINE_TRY(CheckSize(tensors[i]));
    if (i > 0 && tensors[i - 1].name == tensors[i].name) twice.push_back(i);
  }
  if (twice.empty()) return {};
  SYNCLINE_TRY(pool.ParallelFor(
      twice.size(),
      [&](std::size_t i) -> Status {
        const TensorView& a = tensors[twice[i] - 1];
        const TensorView& b = tensors[twice[i]];
        if (a.dtype == b.dtype && a.shape == b.shape && SameBytes(a.bytes, b.bytes)) return {};
        return Fail(Code::kInvalidArgument,
                    fmt::format("tensor {} was given twice with different content: {} {} and {} {}",
                                a.name, Name(a.dtype), tensor::ShapeText(a.shape), Name(b.dtype),
                                tensor::ShapeText(b.shape)));
      },
      cancel));
  const auto tail = std::ranges::unique(tensors, {}, &TensorView::name);
  tensors.erase(tail.begin(), tail.end());
  return {};
}

Status CheckSameTensors(std::span<const TensorView> held, std::span<const TensorView> given,
                        std::uint64_t version) {
  std::vector<std::string_view> names;
  std::vector<std::string_view> held_names;
  for (const TensorView& view : given) names.emplace_back(view.name);
  for (const TensorView& view : held) held_names.emplace_back(view.name);
  std::vector<std::string_view> missing;
  std::vector<std::string_view> unknown;
  std::ranges::set_difference(held_names, names, std::back_inserter(missing));
  std::ranges::set_difference(names, held_names, std::back_inserter(unknown));
  if (!missing.empty() || !unknown.empty()) {
    return Fail(Code::kInvalidArgument,
                fmt::format("the tensors are not those of version {}: missing [{}], unknown [{}]; "
                            "publish a full version to change them",
                            version, fmt::join(missing, ", "), fmt::join(unknown, ", ")));
  }
  for (std::size_t i = 0; i < held.size(); ++i) {
    if (given[i].dtype == held[i].dtype && given[i].shape == held[i].shape) continue;
    return Fail(Code::kInvalidArgument,
                fmt::format("tensor {}: expected {} {} as in version {}, given {} {}; publish a "
                            "full version to change it",
                            held[i].name, Name(held[i].dtype), tensor::ShapeText(held[i].shape),
                            version, Name(given[i].dtype), tensor::ShapeText(given[i].shape)));
  }
  return {};
}

Result<TensorTotals> Total(std::span<const TensorView> tensors) {
  TensorTotals totals;
  for (const TensorView& view : tensors) {
    SYNCLINE_ASSIGN(const std::uint64_t elements, tensor::ElementCount(view.shape));
    if (__builtin_add_overflow(totals.elements, elements, &totals.elements)) {
      return Fail(Code::kInvalidArgument,
                  fmt::format("tensor {} makes the model too large", view.name));
    }
    totals.bytes += view.bytes.size();
  }
  return totals;
}

Result<std::vector<ManifestTensor>> HashTensors(std::span<const TensorView> tensors,
                                                const tensor::Loader* loader,
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
        const TensorView& view = tensors[order[i]];
        tensor::TensorSums sums(tensor::HashKind::kXxh3, view.dtype);
        std::vector<std::byte> buffer;
        for (std::uint64_t at = 0; at < view.bytes.size(); at += kLoadBytes) {
          const std::uint64_t size = std::min<std::uint64_t>(kLoadBytes, view.bytes.size() - at);
          base::ByteSpan bytes = view.bytes.subspan(at, size);
          if (loader != nullptr) {
            SYNCLINE_ASSIGN(bytes, loader->Load(order[i], at, size, buffer));
          }
          sums.Update(bytes);
        }
        hashed[order[i]].hash = sums.hash();
        hashed[order[i]].digest = sums.digest();
        return {};
      },
      cancel));
  return hashed;
}

}  // namespace syncline::store
