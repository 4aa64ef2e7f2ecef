// 1. Open: PATH.done tells what an earlier fetch has left. It counts if it was made for an object
//    of this size and tag. Otherwise both files are made anew, PATH.done after the space is
//    reserved.
// 2. FetchPiece: the bytes go to PATH.part, and after them the piece's mark to PATH.done. A process
//    that is killed in between fetches the piece again.
// 3. HashPiece, Finish: what is hashed is read from PATH.part, so that the file that gets the name
//    is the one that was proven. PATH.done goes before the rename: a PATH.part alone counts for
//    nothing.
#include "store/download.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace syncline::store {
namespace {

using base::Code;
using base::Fail;
using base::FileSystem;
using base::OpenMode;
using base::Result;
using base::Status;

constexpr std::size_t kMaxHeaderBytes = 4096;

}  // namespace

Download::Download(FetchFile wanted, FileSystem& files)
    : wanted_(std::move(wanted)),
      files_(files),
      pieces_(wanted_.bytes / kPieceBytes + (wanted_.bytes % kPieceBytes != 0 ? 1 : 0)) {}

std::uint64_t Download::PieceBytes(std::uint64_t piece) const {
  return std::min(kPieceBytes, wanted_.bytes - piece * kPieceBytes);
}

Result<bool> Download::IsThere() const {
  const auto info = files_.Stat(wanted_.path);
  if (!info && info.error().code == Code::kNotFound) return false;
  if (!info) return std::unexpected(info.error());
  return info->size == wanted_.bytes;
}

Result<std::string> Download::Open(objects::ObjectStore& store, const base::CancelToken* cancel) {
  sha256_ = Sha256();
  SYNCLINE_ASSIGN(const objects::ObjectInfo info, store.Stat(wanted_.key, cancel));
  if (info.bytes != wanted_.bytes) {
    return Fail(Code::kCorrupt,
                fmt::format("{} has {} bytes, expected {}",
                            base::JoinPath(store.url(), wanted_.key), info.bytes, wanted_.bytes));
  }
  tag_ = info.tag;
  const std::string header = fmt::format("{} {}\n", wanted_.bytes, tag_);
  if (header.size() > kMaxHeaderBytes) {
    return Fail(Code::kLimitExceeded,
                fmt::format("{}: a tag of {} bytes", wanted_.key, tag_.size()));
  }
  header_bytes_ = header.size();
  const auto known = base::ReadText(files_, DonePath(), kMaxHeaderBytes + pieces_);
  if (known && known->size() == header.size() + pieces_ && known->starts_with(header)) {
    const auto held = files_.Stat(PartPath());
    if (held && held->size == wanted_.bytes) return known->substr(header.size());
  }
  std::string marks(pieces_, '0');
  SYNCLINE_TRY(files_.RemoveAll(DonePath()));
  SYNCLINE_ASSIGN(const auto part, files_.Open(PartPath(), OpenMode::kCreate));
  SYNCLINE_TRY(part->Allocate(wanted_.bytes));
  SYNCLINE_ASSIGN(const auto done, files_.Open(DonePath(), OpenMode::kCreate));
  SYNCLINE_TRY(done->WriteAt(base::AsBytes(header + marks), 0));
  return marks;
}

Status Download::FetchPiece(objects::ObjectStore& store, std::uint64_t piece, base::Buffer& buffer,
                            base::Progress& progress, const base::CancelToken* cancel) const {
  const base::MutableByteSpan bytes = buffer.Get(PieceBytes(piece));
  SYNCLINE_TRY(store.ReadAt(
      wanted_.key, bytes, piece * kPieceBytes, tag_,
      [&](std::uint64_t more) { progress.Add(more); }, cancel));
  SYNCLINE_ASSIGN(const auto part, files_.Open(PartPath(), OpenMode::kReadWrite));
  SYNCLINE_TRY(part->WriteAt(bytes, piece * kPieceBytes));
  SYNCLINE_ASSIGN(const auto done, files_.Open(DonePath(), OpenMode::kReadWrite));
  return done->WriteAt(base::AsBytes("1"), header_bytes_ + piece);
}

Status Download::HashPiece(std::uint64_t piece, base::Buffer& buffer) {
  if (wanted_.sha256.empty()) return {};
  const base::MutableByteSpan bytes = buffer.Get(PieceBytes(piece));
  SYNCLINE_ASSIGN(const auto part, files_.Open(PartPath(), OpenMode::kRead));
  SYNCLINE_TRY(base::ReadExactly(*part, bytes, piece * kPieceBytes));
  sha256_.Update(bytes);
  return {};
}

Status Download::Finish(const objects::ObjectStore& store) {
  const std::string sha256 = wanted_.sha256.empty() ? "" : sha256_.Hex();
  if (sha256.empty() && !wanted_.sha256.empty()) {
    return Fail(Code::kInternal, "cannot hash " + PartPath());
  }
  SYNCLINE_TRY(files_.RemoveAll(DonePath()));
  if (sha256 == wanted_.sha256) return files_.Rename(PartPath(), wanted_.path);
  SYNCLINE_TRY(files_.RemoveAll(PartPath()));
  return Fail(Code::kChecksumMismatch,
              fmt::format("what came of {} has the SHA-256 {}, the manifest says {}",
                          base::JoinPath(store.url(), wanted_.key), sha256, wanted_.sha256));
}

Result<std::unique_ptr<base::File>> Download::OpenContent(bool finished) const {
  if (!finished) {
    auto part = files_.Open(PartPath(), OpenMode::kRead);
    if (part || part.error().code != Code::kNotFound) return part;
  }
  return files_.Open(wanted_.path, OpenMode::kRead);
}

}  // namespace syncline::store
