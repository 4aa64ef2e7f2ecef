#include "support.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::size_t> held_bytes = 0;
std::atomic<std::size_t> peak_bytes = 0;

}  // namespace

// Replaced for the whole program, so that every container is counted.
void* operator new(std::size_t size) {
  void* memory = std::malloc(std::max<std::size_t>(size, 1));
  if (memory == nullptr) throw std::bad_alloc();
  const std::size_t held = held_bytes += malloc_usable_size(memory);
  if (held > peak_bytes) peak_bytes = held;
  return memory;
}
void operator delete(void* memory) noexcept {
  if (memory != nullptr) held_bytes -= malloc_usable_size(memory);
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept { operator delete(memory); }

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
