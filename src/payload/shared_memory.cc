#include "payload/shared_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <optional>

#include "payload/classes.h"
#include "payload/watched_range.h"

namespace syncline::payload {
namespace {

using base::Code;
using base::Fail;

constexpr std::uint64_t kHeaderBytes = 64;

class SharedMemory final : public Memory {
 public:
  SharedMemory(std::string name, std::byte* start, std::size_t size)
      : name_(std::move(name)), start_(start), size_(size), watched_(std::in_place, start, size) {}
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  ~SharedMemory() override {
    if (CountDown()) ::shm_unlink(name_.c_str());
    watched_.reset();
    ::munmap(start_, size_);
  }

  base::ByteSpan bytes() const override {
    return base::ByteSpan(start_, size_).subspan(kHeaderBytes);
  }

  base::Status Intact() const override {
    if (!watched_->broken()) return {};
    return Fail(Code::kCorrupt,
                fmt::format("shared memory {} became smaller while it was read", name_));
  }

 private:
  // Did this take the last one away? Never below zero, whatever stands there.
  bool CountDown() const {
    std::atomic_ref<std::int32_t> count(*reinterpret_cast<std::int32_t*>(start_));
    std::int32_t now = count.load();
    while (now > 0 && !count.compare_exchange_weak(now, now - 1)) {
    }
    return now == 1;
  }

  std::string name_;
  std::byte* start_;
  std::size_t size_;
  std::optional<WatchedRange> watched_;
};

struct Descriptor {
  int number;
  ~Descriptor() {
    if (number >= 0) ::close(number);
  }
};

}  // namespace

bool IsSharedMemoryName(std::string_view name) {
  constexpr std::string_view kStart = "/torch";
  constexpr std::size_t kNumbers = 3;
  constexpr std::size_t kMaxDigits = 20;
  if (!name.starts_with(kStart)) return false;
  name.remove_prefix(kStart.size());
  for (std::size_t i = 0; i < kNumbers; ++i) {
    if (!name.starts_with('_')) return false;
    name.remove_prefix(1);
    const std::size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
    if (digits == 0 || digits > kMaxDigits) return false;
    name.remove_prefix(digits);
  }
  return name.empty();
}

base::Result<std::unique_ptr<Memory>> OpenSharedMemory(std::string_view text, std::uint64_t bytes) {
  if (!IsSharedMemoryName(text)) {
    return Fail(Code::kInvalidArgument,
                fmt::format("{} is not a name that torch gives to shared memory, expected "
                            "/torch_PID_RANDOM_N",
                            Quoted(text)));
  }
  std::string name(text);
  // Neither follows links nor leaves the folder of shared memory, and closes on exec.
  const Descriptor file{::shm_open(name.c_str(), O_RDWR, 0)};
  if (file.number < 0 && errno == ENOENT) {
    return Fail(Code::kNotFound,
                fmt::format("shared memory {} is not there: its sender ended, or the payload was "
                            "taken before, or the sender sees another /dev/shm",
                            name));
  }
  if (file.number < 0) return base::FailErrno(errno, fmt::format("shared memory {}", name));
  struct stat info{};
  if (::fstat(file.number, &info) != 0) {
    return base::FailErrno(errno, fmt::format("shared memory {}", name));
  }
  const auto size = static_cast<std::uint64_t>(info.st_size);
  if (!S_ISREG(info.st_mode) || size < kHeaderBytes || size - kHeaderBytes < bytes) {
    return Fail(Code::kInvalidArgument,
                fmt::format("shared memory {} has {} bytes, expected a header of {} and {}", name,
                            size, kHeaderBytes, bytes));
  }
  const std::size_t mapped = kHeaderBytes + bytes;
  void* start = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, file.number, 0);
  if (start == MAP_FAILED) {  // NOLINT: a macro of the system
    return base::FailErrno(errno, fmt::format("mapping shared memory {}", name));
  }
  return std::make_unique<SharedMemory>(std::move(name), static_cast<std::byte*>(start), mapped);
}

}  // namespace syncline::payload
