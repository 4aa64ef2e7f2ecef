#include "payload/announced.h"

#include <fmt/format.h>

#include <utility>

#include "payload/classes.h"

namespace syncline::payload {
namespace {

using base::Code;
using base::Fail;
using base::Result;

// The sum of all must not overflow either.
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 46;

class Announced : public Batch {
 public:
  Announced(std::vector<NamedTensor> tensors, std::shared_ptr<const void> owner)
      : tensors_(std::move(tensors)), owner_(std::move(owner)) {}
  const std::vector<NamedTensor>& tensors() const override { return tensors_; }
  base::Status Intact() const override { return {}; }

 private:
  std::vector<NamedTensor> tensors_;
  std::shared_ptr<const void> owner_;
};

Result<NamedTensor> OneTensor(const std::string& name, const std::string& dtype,
                              const std::vector<std::uint64_t>& shape) {
  const Result<const PythonName*> known = FindName("torch", dtype);
  if (!known || (*known)->symbol != Symbol::kElementType) {
    return Fail(Code::kInvalidArgument,
                fmt::format("{}: dtype {} is not one of torch's", Quoted(name), Quoted(dtype)));
  }
  NamedTensor tensor = {
      .name = name, .dtype = (*known)->element->dtype, .shape = shape, .bytes = {}};
  const std::uint8_t values = (*known)->element->values;
  if (values > 1 && !tensor.shape.empty()) tensor.shape.back() *= values;
  const Result<std::uint64_t> bytes = tensor::ByteCount(tensor.dtype, tensor.shape);
  if (!bytes || *bytes > kMostBytes) {
    return Fail(Code::kInvalidArgument,
                fmt::format("{}: shape {} is too large", Quoted(name), tensor::ShapeText(shape)));
  }
  return tensor;
}

}  // namespace

Result<std::vector<NamedTensor>> AnnouncedTensors(
    const std::vector<std::string>& names, const std::vector<std::string>& dtypes,
    const std::vector<std::vector<std::uint64_t>>& shapes) {
  if (names.size() != dtypes.size() || names.size() != shapes.size()) {
    return Fail(
        Code::kInvalidArgument,
        fmt::format("names, dtypes and shapes have {}, {} and {} elements, expected as many "
                    "of each",
                    names.size(), dtypes.size(), shapes.size()));
  }
  std::vector<NamedTensor> tensors;
  tensors.reserve(names.size());
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < names.size(); ++i) {
    SYNCLINE_ASSIGN(NamedTensor tensor, OneTensor(names[i], dtypes[i], shapes[i]));
    total += *tensor::ByteCount(tensor.dtype, tensor.shape);
    if (total > kMostBytes)
      return Fail(Code::kInvalidArgument, "the shapes are too large together");
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

std::vector<std::uint64_t> ByteCounts(std::span<const NamedTensor> announced) {
  std::vector<std::uint64_t> counts;
  counts.reserve(announced.size());
  for (const NamedTensor& tensor : announced) {
    counts.push_back(*tensor::ByteCount(tensor.dtype, tensor.shape));
  }
  return counts;
}

std::uint64_t TotalBytes(std::span<const NamedTensor> announced) {
  std::uint64_t total = 0;
  for (const std::uint64_t bytes : ByteCounts(announced)) total += bytes;
  return total;
}

std::unique_ptr<Batch> MakeBatch(std::vector<NamedTensor> announced, base::ByteSpan memory,
                                 std::shared_ptr<const void> owner) {
  std::size_t begin = 0;
  for (NamedTensor& tensor : announced) {
    tensor.bytes = memory.subspan(begin, *tensor::ByteCount(tensor.dtype, tensor.shape));
    begin += tensor.bytes.size();
  }
  return std::make_unique<Announced>(std::move(announced), std::move(owner));
}

}  // namespace syncline::payload
