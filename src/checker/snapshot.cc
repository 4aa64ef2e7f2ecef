#include "checker/snapshot.h"

#include <fmt/core.h>
#include <sys/mman.h>

#include <charconv>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "base/file.h"

namespace syncline::checker {
namespace {

using base::Code;
using base::Fail;

constexpr std::uint64_t kAlignment = 64;

// What the kernel expects to be able to give without swapping; where it does not say, no limit.
std::uint64_t AvailableMemory() {
  constexpr std::string_view kKey = "MemAvailable:";
  const std::string text = base::ReadKernelText("/proc/meminfo");
  const std::size_t key = text.find(kKey);
  std::uint64_t kib = 0;
  if (key != std::string::npos) {
    const std::size_t digit = text.find_first_not_of(' ', key + kKey.size());
    const char* end = text.data() + text.size();
    if (digit != std::string::npos &&
        std::from_chars(text.data() + digit, end, kib).ec == std::errc()) {
      return kib << 10;
    }
  }
  return std::numeric_limits<std::uint64_t>::max();
}

}  // namespace

base::Result<Snapshot> Snapshot::Create(std::span<const base::MutableByteSpan> slots) {
  std::vector<std::uint64_t> offsets;
  std::uint64_t size = 0;
  for (const base::MutableByteSpan& slot : slots) {
    offsets.push_back(size);
    size += (slot.size() + kAlignment - 1) / kAlignment * kAlignment;
  }
  const auto too_large = [&](std::uint64_t available) {
    return Fail(Code::kLimitExceeded,
                fmt::format("a snapshot of the weights takes {}, available are {}",
                            base::HumanBytes(size), base::HumanBytes(available)));
  };
  const std::uint64_t available = AvailableMemory();
  if (size > available) return too_large(available);
  Snapshot snapshot;
  if (size > 0) {
    void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return too_large(available);
    snapshot.data_ = static_cast<std::byte*>(data);
    snapshot.size_ = size;
    madvise(data, size, MADV_HUGEPAGE);  // only faster, so it may fail
  }
  for (std::size_t i = 0; i < slots.size(); ++i) {
    // NOLINTNEXTLINE(clang-analyzer-core.NullPointerArithm): no data, no offsets beyond 0
    snapshot.slots_.emplace_back(snapshot.data_ + offsets[i], slots[i].size());
  }
  return snapshot;
}

Snapshot::Snapshot(Snapshot&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      slots_(std::exchange(other.slots_, {})) {}

Snapshot& Snapshot::operator=(Snapshot&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(slots_, other.slots_);
  return *this;
}

Snapshot::~Snapshot() {
  if (data_ != nullptr) munmap(data_, size_);
}

void Snapshot::Copy(std::span<const base::MutableByteSpan> slots) {
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].empty()) continue;
    std::byte* into = data_ + (slots_[i].data() - data_);
    std::memcpy(into, slots[i].data(), slots[i].size());
  }
}

}  // namespace syncline::checker
