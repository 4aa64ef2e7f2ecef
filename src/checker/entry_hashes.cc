#include "checker/entry_hashes.h"

#include <algorithm>
#include <iterator>

#include "base/pool.h"
#include "checker/device_hash.h"
#include "store/file_hash.h"

namespace syncline::checker {
namespace {

using base::ByteSpan;
using base::CancelToken;
using base::Result;
using base::Status;
using base::ThreadPool;
using Buffers = base::Pool<base::Buffer>;
using Entries = std::span<const Entry* const>;

// The bytes of a piece, made in `buffer` where they are not in a slot.
ByteSpan BytesOf(const Entry& entry, const Piece& piece, AllSlots slots, base::Buffer& buffer) {
  if (entry.unit != nullptr) return ValuesOf(entry, piece, slots, buffer);
  return slots[entry.weight()].subspan(piece.begin, piece.end - piece.begin);
}

Result<std::vector<std::string>> DeviceHashes(Entries entries, AllSlots slots, ThreadPool& pool,
                                              const CancelToken& cancel) {
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    std::ranges::move(PiecesOf(*entries[i], i), std::back_inserter(pieces));
  }
  std::vector<DeviceHash> by_piece;
  by_piece.reserve(pieces.size());
  for (const Piece& piece : pieces) by_piece.emplace_back(entries[piece.entry]->bytes);
  Buffers buffers;
  SYNCLINE_TRY(pool.ParallelFor(
      pieces.size(),
      [&](std::size_t i) -> Status {
        const Buffers::Lease buffer(buffers);
        const Entry& entry = *entries[pieces[i].entry];
        by_piece[i].Add(pieces[i].begin, BytesOf(entry, pieces[i], slots, *buffer));
        return {};
      },
      &cancel));
  std::vector<DeviceHash> by_entry;
  by_entry.reserve(entries.size());
  for (const Entry* entry : entries) by_entry.emplace_back(entry->bytes);
  for (std::size_t i = 0; i < pieces.size(); ++i) by_entry[pieces[i].entry].Merge(by_piece[i]);
  std::vector<std::string> hashes;
  std::ranges::transform(by_entry, std::back_inserter(hashes), &DeviceHash::Hex);
  return hashes;
}

Result<std::vector<std::string>> Sha256Hashes(Entries entries, AllSlots slots, ThreadPool& pool,
                                              const CancelToken& cancel) {
  std::vector<std::string> hashes(entries.size());
  Buffers buffers;
  SYNCLINE_TRY(pool.ParallelFor(
      entries.size(),
      [&](std::size_t i) -> Status {
        const Buffers::Lease buffer(buffers);
        store::Sha256 sha;
        for (const Piece& piece : PiecesOf(*entries[i], i)) {
          SYNCLINE_TRY(cancel.Check());
          sha.Update(BytesOf(*entries[i], piece, slots, *buffer));
        }
        hashes[i] = sha.Hex().substr(0, 16);
        if (!hashes[i].empty()) return {};
        return base::Fail(base::Code::kInternal, "cannot hash " + entries[i]->name);
      },
      &cancel));
  return hashes;
}

}  // namespace

Result<std::vector<std::string>> HashEntries(CheckHash kind, Entries entries, AllSlots slots,
                                             ThreadPool& pool, const CancelToken& cancel) {
  if (kind == CheckHash::kSha256) return Sha256Hashes(entries, slots, pool, cancel);
  return DeviceHashes(entries, slots, pool, cancel);
}

}  // namespace syncline::checker
