// Objects that are dear to make (they hold buffers), handed from one piece of work to the next.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace syncline::base {

// Thread-safe; must outlive its leases. T is default-constructible.
template <typename T>
class Pool {
 public:
  // One object for the time of a scope.
  class Lease {
   public:
    explicit Lease(Pool& pool) : pool_(pool), object_(pool.Take()) {}
    ~Lease() { pool_.Give(std::move(object_)); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    T& operator*() const { return *object_; }
    T* operator->() const { return object_.get(); }

   private:
    Pool& pool_;
    std::unique_ptr<T> object_;
  };

 private:
  std::unique_ptr<T> Take() {
    {
      const std::scoped_lock lock(mutex_);
      if (!free_.empty()) {
        auto object = std::move(free_.back());
        free_.pop_back();
        return object;
      }
    }
    return std::make_unique<T>();
  }
  void Give(std::unique_ptr<T> object) {
    const std::scoped_lock lock(mutex_);
    free_.push_back(std::move(object));
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<T>> free_;
};

// Memory that grows and is never cleared.
class Buffer {
 public:
  // `size` bytes of unknown content, until the next call.
  std::span<std::byte> Get(std::size_t size) {
    if (size > capacity_) {
      memory_ = std::make_unique_for_overwrite<std::byte[]>(size);
      capacity_ = size;
    }
    return {memory_.get(), size};
  }

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::size_t capacity_ = 0;
};

}  // namespace syncline::base
