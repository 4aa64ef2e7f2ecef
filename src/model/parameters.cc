#include "model/parameters.h"

#include <algorithm>

#include "base/stream_copy.h"

namespace syncline::model {
namespace {

std::uint64_t AlignUp(std::uint64_t bytes) {
  return (bytes + Parameters::kAlignment - 1) / Parameters::kAlignment * Parameters::kAlignment;
}

using Slots = std::span<const base::MutableByteSpan>;

void CopySlots(std::span<const std::size_t> parameters, Slots from, Slots to,
               base::ThreadPool& pool) {
  // Pieces that keep all threads busy to the end.
  constexpr std::size_t kPiece = 1 << 20;
  struct Piece {
    base::MutableByteSpan to;
    const std::byte* from;
  };
  std::vector<Piece> pieces;
  for (const std::size_t parameter : parameters) {
    const base::MutableByteSpan slot = to[parameter];
    for (std::size_t begin = 0; begin < slot.size(); begin += kPiece) {
      pieces.push_back({slot.subspan(begin, std::min(kPiece, slot.size() - begin)),
                        from[parameter].data() + begin});
    }
  }
  // The loop's body returns no error, so neither does the loop.
  static_cast<void>(pool.ParallelFor(pieces.size(), [&](std::size_t i) -> base::Status {
    base::StreamCopy(pieces[i].to.data(), pieces[i].from, pieces[i].to.size());
    return {};
  }));
}

}  // namespace

base::Result<Parameters> Parameters::Create(const layout::Plan& plan, const quant::Units& units) {
  std::vector<std::uint64_t> sizes = quant::Units::SlotBytes(plan, units);
  std::uint64_t total = 0;
  for (const std::uint64_t size : sizes) total += AlignUp(size);
  SYNCLINE_ASSIGN(base::Arena live, base::Arena::Create("syncline-weights", total));
  Parameters parameters(std::move(live));
  parameters.sizes_ = std::move(sizes);
  parameters.live_ = parameters.Slots(parameters.live_arena_);
  return parameters;
}

std::vector<base::MutableByteSpan> Parameters::Slots(const base::Arena& arena) const {
  std::vector<base::MutableByteSpan> slots;
  std::uint64_t offset = 0;
  for (const std::uint64_t size : sizes_) {
    slots.push_back(arena.bytes().subspan(offset, size));
    offset += AlignUp(size);
  }
  return slots;
}

base::Result<std::span<const base::MutableByteSpan>> Parameters::Staging() {
  if (!staging_arena_) {
    SYNCLINE_ASSIGN(staging_arena_,
                    base::Arena::CreateEmpty("syncline-staging", live_arena_.bytes().size()));
    staging_ = Slots(*staging_arena_);
    reserved_.assign(staging_.size(), false);
  }
  return staging_;
}

base::Status Parameters::ReserveStaging(std::size_t parameter) {
  if (reserved_[parameter] || staging_[parameter].empty()) return {};
  const base::MutableByteSpan slot = staging_[parameter];
  SYNCLINE_TRY(staging_arena_->Reserve(
      static_cast<std::uint64_t>(slot.data() - staging_arena_->bytes().data()), slot.size()));
  reserved_[parameter] = true;
  return {};
}

void Parameters::ReleaseStaging(std::size_t parameter) {
  if (!reserved_[parameter]) return;
  const base::MutableByteSpan slot = staging_[parameter];
  staging_arena_->Release(static_cast<std::uint64_t>(slot.data() - staging_arena_->bytes().data()),
                          slot.size());
  reserved_[parameter] = false;
}

void Parameters::Release() {
  live_arena_.Release(0, live_arena_.bytes().size());
  for (std::size_t i = 0; i < staging_.size(); ++i) ReleaseStaging(i);
  if (staging_arena_) staging_arena_->Release(0, staging_arena_->bytes().size());
}

base::Status Parameters::Resume() {
  base::Status reserved = live_arena_.Reserve(0, live_arena_.bytes().size());
  if (!reserved) live_arena_.Release(0, live_arena_.bytes().size());
  return reserved;
}

void Parameters::Commit(std::span<const std::size_t> parameters, base::ThreadPool& pool) {
  CopySlots(parameters, staging_, live_, pool);
}

void Parameters::CopyToStaging(std::span<const std::size_t> parameters, base::ThreadPool& pool) {
  CopySlots(parameters, live_, staging_, pool);
}

}  // namespace syncline::model
