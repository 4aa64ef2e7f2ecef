#include "support.h"

#ifdef SYNCLINE_FUZZ
#include <sanitizer/allocator_interface.h>
#else
#include <malloc.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::size_t> held_bytes = 0;
std::atomic<std::size_t> peak_bytes = 0;

void Count(std::size_t bytes) {
  const std::size_t held = held_bytes += bytes;
  if (held > peak_bytes) peak_bytes = held;
}

}  // namespace

#ifdef SYNCLINE_FUZZ  // the sanitizer's allocator tells of everything

namespace {

const int hooked = __sanitizer_install_malloc_and_free_hooks(
    [](const volatile void* memory, std::size_t) { Count(__sanitizer_get_allocated_size(memory)); },
    [](const volatile void* memory) { held_bytes -= __sanitizer_get_allocated_size(memory); });

}  // namespace

#else  // replaced for the whole program, so that every container is counted

void* operator new(std::size_t size) {
  void* memory = std::malloc(std::max<std::size_t>(size, 1));
  if (memory == nullptr) throw std::bad_alloc();
  Count(malloc_usable_size(memory));
  return memory;
}
void operator delete(void* memory) noexcept {
  if (memory != nullptr) held_bytes -= malloc_usable_size(memory);
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept { operator delete(memory); }

#endif

namespace syncline::fuzz {

using base::Code;
using base::Fail;
using base::Result;

Result<std::size_t> MemoryFile::ReadAt(base::MutableByteSpan into, std::uint64_t offset) {
  if (offset >= content_.size()) return 0;
  const base::ByteSpan rest = content_.subspan(offset);
  const std::size_t size = std::min(rest.size(), into.size());
  std::ranges::copy(rest.first(size), into.begin());
  return size;
}

Result<base::Mapping> MemoryFile::Map(bool) {
  return Fail(Code::kIncompatible, "a file in memory is not mapped");
}

MemoryWatch::MemoryWatch() : before_(held_bytes) { peak_bytes = before_; }

std::size_t MemoryWatch::peak() const { return peak_bytes - before_; }

}  // namespace syncline::fuzz
