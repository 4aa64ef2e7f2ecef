#include "orders/payloads.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "payload/pickle_builder.h"
#include "update/messages.h"

namespace syncline::orders {

using payload::PickleBuilder;
using tensor::Dtype;
using tensor::TensorView;

namespace {

std::string_view TorchName(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBF16:
      return "bfloat16";
    case Dtype::kF32:
      return "float32";
    case Dtype::kF8E4M3:
      return "float8_e4m3fn";
    default:
      std::abort();  // no model here has others
  }
}

std::vector<std::int64_t> SizeOf(const TensorView& tensor) {
  return {tensor.shape.begin(), tensor.shape.end()};
}

std::vector<std::int64_t> StrideOf(const TensorView& tensor) {
  std::vector<std::int64_t> strides(tensor.shape.size());
  std::int64_t stride = 1;
  for (std::size_t i = strides.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= static_cast<std::int64_t>(tensor.shape[i]);
  }
  return strides;
}

}  // namespace

std::string ToBase64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - i);
    std::uint32_t bits = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      bits = bits << 8 | (k < count ? static_cast<std::uint8_t>(bytes[i + k]) : 0U);
    }
    for (std::size_t k = 0; k < 4; ++k) {
      text += k <= count ? kDigits[bits >> (18 - 6 * k) & 63] : '=';
    }
  }
  return text;
}

std::string SafetensorsOf(std::span<const TensorView> tensors) {
  const std::vector<std::byte> bytes = update::MessageOf(tensors);
  return std::string(base::AsText(bytes));
}

SharedMemories::~SharedMemories() {
  for (const std::string& name : names_) ::shm_unlink(name.c_str());
}

std::string SharedMemories::Add(std::string_view content) {
  static std::atomic<std::uint64_t> next = 0;
  constexpr std::size_t kHeaderBytes = 64;
  std::string all(kHeaderBytes, '\0');
  const std::int32_t receivers = 1;
  std::memcpy(all.data(), &receivers, sizeof(receivers));
  all += content;
  names_.push_back(fmt::format("/torch_{}_77_{}", ::getpid(), next++));
  const int file = ::shm_open(names_.back().c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  if (file < 0 || ::write(file, all.data(), all.size()) != static_cast<ssize_t>(all.size())) {
    std::abort();
  }
  ::close(file);
  return names_.back();
}

std::string PickleOf(std::span<const TensorView> tensors, SharedMemories& memories) {
  PickleBuilder builder;
  builder.Raw("](");
  for (const TensorView& tensor : tensors) {
    const std::string name = memories.Add(base::AsText(tensor.bytes));
    builder.String(tensor.name);
    builder.Tensor(name, static_cast<std::int32_t>(tensor.bytes.size()), TorchName(tensor.dtype), 0,
                   SizeOf(tensor), StrideOf(tensor));
    builder.Raw("\x86");
  }
  return builder.Raw("e").Text();
}

std::string BucketOf(std::span<const TensorView> tensors, SharedMemories& memories) {
  std::string flat;
  for (const TensorView& tensor : tensors) flat += base::AsText(tensor.bytes);
  const auto size = static_cast<std::int32_t>(flat.size());
  PickleBuilder builder;
  builder.Raw("}(").String("flattened_tensor");
  builder.Tensor(memories.Add(flat), size, "uint8", 0, {size}, {1}).String("metadata").Raw("]");
  std::int32_t begin = 0;
  for (const TensorView& tensor : tensors) {
    const auto bytes = static_cast<std::int32_t>(tensor.bytes.size());
    builder.Class("sglang.srt.weight_sync.tensor_bucket", "FlattenedTensorMetadata");
    builder.Raw(")\x81}(").String("name").String(tensor.name);
    builder.String("shape").Class("torch", "Size").Ints(SizeOf(tensor)).Raw("\x85R");
    builder.String("dtype").Class("torch", TorchName(tensor.dtype));
    builder.String("start_idx").Int(begin).String("end_idx").Int(begin + bytes);
    builder.String("numel").Int(bytes).Raw("uba");
    begin += bytes;
  }
  return builder.Raw("u").Text();
}

std::string WrongPickle(Dice& dice) {
  switch (dice.Below(5)) {
    case 0: {
      std::string noise(dice.Below(200), '\0');
      for (char& c : noise) c = static_cast<char>(dice.Below(256));
      return noise;
    }
    case 1:
      return PickleBuilder().Raw("](").String("w").Text().substr(0, 4 + dice.Below(6));
    case 2:  // 4 GiB of bytes that are not there
      return PickleBuilder().Number("B", ~std::uint32_t{0}).Text();
    case 3:
      return PickleBuilder().Raw(std::string(100000, '(')).Text();
    default:
      return PickleBuilder().Class("os", "system").String("true").Raw("\x85R").Text();
  }
}

std::string WrongSafetensors(std::string good, Dice& dice) {
  switch (dice.Below(4)) {
    case 0:
      good.resize(dice.Below(good.size()));
      return good;
    case 1:  // a header of 2^64 - 1 bytes
      std::memset(good.data(), 0xff, 8);
      return good;
    case 2:
      good[8] = '[';
      return good;
    default:
      return good + "more";
  }
}

}  // namespace syncline::orders
