// payload::DecodeWith of a message, with memory under every name that torch could give.
//
// The input is a byte of the format and the rank, and the message.
//
// - What is accepted has names that differ, and bytes of the size that type and shape ask for, all
//   of which can be read.
// - A message that was accepted is refused when its last byte is missing.
// - All memory of a sender is let go again.
// - Memory stays within a multiple of the message's size.
#include "payload/payload.h"

#include <algorithm>
#include <array>
#include <set>

#include "payload/decode.h"
#include "support.h"

namespace syncline::fuzz {
namespace {

using base::Result;
using payload::Format;
using payload::Memory;

constexpr std::size_t kMemoryBytes = 256;
constexpr std::uint64_t kMayExpand = 4096;

class Sender {
 public:
  payload::OpenMemory Opener() {
    return [this](std::string_view name, std::uint64_t bytes) -> Result<std::unique_ptr<Memory>> {
      if (!payload::IsSharedMemoryName(name) || bytes > kMemoryBytes) {
        return base::Fail(base::Code::kInvalidArgument, "no such memory");
      }
      return std::make_unique<Held>(*this, bytes);
    };
  }
  int held() const { return held_; }

 private:
  class Held final : public Memory {
   public:
    Held(Sender& sender, std::uint64_t bytes) : sender_(sender), bytes_(bytes) { ++sender_.held_; }
    ~Held() override { --sender_.held_; }
    base::ByteSpan bytes() const override { return base::ByteSpan(sender_.content_).first(bytes_); }
    base::Status Intact() const override { return {}; }

   private:
    Sender& sender_;
    std::uint64_t bytes_;
  };

  std::array<std::byte, kMemoryBytes> content_{};
  int held_ = 0;
};

void CheckTensors(const payload::Batch& batch) {
  std::set<std::string> names;
  for (const payload::NamedTensor& tensor : batch.tensors()) {
    Must(names.insert(tensor.name).second, "names differ");
    const auto bytes = tensor::ByteCount(tensor.dtype, tensor.shape);
    Must(bytes.has_value() && *bytes == tensor.bytes.size(), "a tensor has the size of its shape");
    const auto sum = std::ranges::count(tensor.bytes, std::byte{0});
    Must(sum <= static_cast<std::ptrdiff_t>(tensor.bytes.size()), "its bytes can be read");
  }
}

void Check(base::ByteSpan input) {
  if (input.empty()) return;
  const auto first = std::to_integer<std::uint32_t>(input[0]);
  const auto format = static_cast<Format>(first % 3);
  const std::uint32_t rank = first / 3 % 4;
  const base::ByteSpan message = input.subspan(1);
  Sender sender;
  const MemoryWatch watch;
  {
    const auto batch = payload::DecodeWith(message, format, rank, sender.Opener(), kMayExpand);
    Must(watch.peak() <= 65536 + 400 * message.size(), "memory is bounded by the message");
    if (batch) {
      CheckTensors(**batch);
    } else {
      Must(!batch.error().message.empty(), "an error says something");
      Must(batch.error().message.size() < 8192, "an error is short");
      Must(sender.held() == 0, "nothing is held of what was refused");
      return;
    }
  }
  Must(sender.held() == 0, "nothing is held in the end");
  const auto cut = payload::DecodeWith(message.first(message.size() - 1), format, rank,
                                       sender.Opener(), kMayExpand);
  Must(!cut.has_value(), "a message that was cut is refused");
}

}  // namespace
}  // namespace syncline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  syncline::fuzz::Check(syncline::fuzz::Bytes(data, size));
  return 0;
}
