// A sum of n elements over r ranks:
//   small, or of two ranks   everyone sends everything to everyone and adds up: one trip
//   else                     slice i goes to rank i, which adds it up and sends the sum to everyone:
//                            two trips, but 2 n (r - 1) / r elements sent instead of n (r - 1)
#include "model/mesh_collectives.h"

#include <ATen/ops/empty_like.h>
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>
#include <stdexcept>
#include <vector>

#include "base/bytes.h"
#include "model/collectives.h"
#include "ranks/mesh.h"

namespace syncline::model {
namespace {

// Bytes up to which a second trip costs more than sending more.
constexpr std::size_t kOneTrip = 32 << 10;

std::span<float> Values(const at::Tensor& x) {
  if (!x.is_cpu() || x.scalar_type() != at::kFloat || !x.is_contiguous()) {
    throw std::invalid_argument("sums over ranks are of contiguous fp32 tensors on CPU");
  }
  return {x.mutable_data_ptr<float>(), static_cast<std::size_t>(x.numel())};
}

class MeshCollectives : public Collectives {
 public:
  MeshCollectives(ranks::Mesh& mesh, std::uint32_t rank, std::uint32_t size)
      : mesh_(mesh), rank_(rank), size_(size), send_(size), receive_(size) {}

  void Sum(at::Tensor& x) override {
    const Stopwatch watch(seconds_);
    const std::span<float> values = Values(x);
    if (size_ == 2 || values.size_bytes() <= kOneTrip) {
      SumOfAll(values);
    } else {
      SumBySlices(values);
    }
  }

  std::vector<at::Tensor> Gather(const at::Tensor& x) override {
    const Stopwatch watch(seconds_);
    std::vector<at::Tensor> all;
    Clear();
    if (rank_ == 0) {
      for (std::uint32_t i = 0; i < size_; ++i) {
        all.push_back(i == 0 ? x : at::empty_like(x));
        receive_[i] = std::as_writable_bytes(Values(all[i]));
      }
    } else {
      send_[0] = std::as_bytes(Values(x));
    }
    Exchange();
    return all;
  }

  double seconds() const override { return seconds_; }

 private:
  // Adds the time of a scope.
  class Stopwatch {
   public:
    explicit Stopwatch(double& total) : total_(total) {}
    ~Stopwatch() {
      total_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    }
    Stopwatch(const Stopwatch&) = delete;
    Stopwatch& operator=(const Stopwatch&) = delete;

   private:
    double& total_;
    std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  };

  void Clear() {
    std::ranges::fill(send_, base::ByteSpan());
    std::ranges::fill(receive_, base::MutableByteSpan());
  }

  void Exchange() {
    const base::Status done = mesh_.Exchange(send_, receive_);
    if (!done) throw std::runtime_error(done.error().message);
  }

  // What rank i sent of `count` elements.
  std::span<float> Received(std::uint32_t i, std::size_t count) {
    return std::span(buffer_).subspan(i * count, count);
  }

  // Adds up what all ranks have of `own`, in the order of the ranks, into `own`.
  void AddUp(std::span<float> own) {
    const std::size_t count = own.size();
    const std::span<float> sum = Received(rank_, count);
    const auto part = [&](std::uint32_t i) {
      return i == rank_ ? std::span<const float>(own) : Received(i, count);
    };
    std::ranges::copy(part(0), sum.begin());
    for (std::uint32_t i = 1; i < size_; ++i) {
      const std::span<const float> more = part(i);
      for (std::size_t k = 0; k < count; ++k) sum[k] += more[k];
    }
    std::ranges::copy(sum, own.begin());
  }

  void SumOfAll(std::span<float> values) {
    buffer_.resize(size_ * values.size());
    for (std::uint32_t i = 0; i < size_; ++i) {
      send_[i] = std::as_bytes(values);
      receive_[i] = std::as_writable_bytes(Received(i, values.size()));
    }
    Exchange();
    AddUp(values);
  }

  void SumBySlices(std::span<float> values) {
    const auto slice = [&](std::uint32_t i) {
      const std::size_t begin = values.size() * i / size_;
      return values.subspan(begin, values.size() * (i + 1) / size_ - begin);
    };
    const std::span<float> own = slice(rank_);
    buffer_.resize(size_ * own.size());
    for (std::uint32_t i = 0; i < size_; ++i) {
      send_[i] = std::as_bytes(slice(i));
      receive_[i] = std::as_writable_bytes(Received(i, own.size()));
    }
    Exchange();
    AddUp(own);
    for (std::uint32_t i = 0; i < size_; ++i) {
      send_[i] = std::as_bytes(own);
      receive_[i] = std::as_writable_bytes(slice(i));
    }
    Exchange();
  }

  ranks::Mesh& mesh_;
  const std::uint32_t rank_;
  const std::uint32_t size_;
  std::vector<base::ByteSpan> send_;
  std::vector<base::MutableByteSpan> receive_;
  std::vector<float> buffer_;
  double seconds_ = 0;
};

}  // namespace

std::unique_ptr<Collectives> MakeMeshCollectives(ranks::Mesh& mesh, std::uint32_t rank,
                                                 std::uint32_t size) {
  return std::make_unique<MeshCollectives>(mesh, rank, size);
}

}  // namespace syncline::model
