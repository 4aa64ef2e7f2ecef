#include "store/fetch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>

#include "base/pool.h"
#include "store/file_hash.h"

namespace syncline::store {
namespace {

using base::Code;
using base::Fail;
using base::FileSystem;
using base::Result;
using base::Status;

constexpr std::uint64_t kPieceBytes = 8 << 20;
constexpr std::size_t kMaxStateBytes = 4096;

// One file on its way.
class Download {
 public:
  Download(const FetchFile& wanted, FileSystem& files, const std::string& directory)
      : wanted_(wanted),
        files_(files),
        path_(base::JoinPath(directory, wanted.name)),
        pieces_((wanted.bytes + kPieceBytes - 1) / kPieceBytes) {}

  // Is it here already? Then nothing else is to be called.
  Result<bool> IsThere() const {
    const auto info = files_.Stat(path_);
    if (!info && info.error().code == Code::kNotFound) return false;
    if (!info) return std::unexpected(info.error());
    return info->size == wanted_.bytes;
  }

  // What an earlier call has left counts if the object is still the same.
  Status Open(objects::ObjectStore& store, const base::CancelToken* cancel) {
    SYNCLINE_ASSIGN(const objects::ObjectInfo info, store.Stat(wanted_.key, cancel));
    if (info.bytes != wanted_.bytes) {
      return Fail(Code::kCorrupt,
                  fmt::format("{} has {} bytes, expected {}",
                              base::JoinPath(store.url(), wanted_.key), info.bytes, wanted_.bytes));
    }
    tag_ = info.tag;
    const std::string state = fmt::format("{} {}\n", wanted_.bytes, tag_);
    if (state.size() > kMaxStateBytes) {
      return Fail(Code::kLimitExceeded,
                  fmt::format("{}: a tag of {} bytes", wanted_.key, tag_.size()));
    }
    state_bytes_ = state.size();
    const auto known = base::ReadText(files_, Done(), kMaxStateBytes + pieces_);
    if (known && known->size() == state.size() + pieces_ && known->starts_with(state)) {
      const auto held = files_.Stat(Part());
      if (held && held->size == wanted_.bytes) {
        done_text_ = known->substr(state.size());
        SYNCLINE_ASSIGN(part_, files_.Open(Part(), base::OpenMode::kReadWrite));
        SYNCLINE_ASSIGN(done_, files_.Open(Done(), base::OpenMode::kReadWrite));
        return {};
      }
    }
    done_text_.assign(pieces_, '0');
    SYNCLINE_TRY(files_.RemoveAll(Done()));
    SYNCLINE_ASSIGN(part_, files_.Open(Part(), base::OpenMode::kCreate));
    SYNCLINE_TRY(part_->Allocate(wanted_.bytes));
    SYNCLINE_ASSIGN(done_, files_.Open(Done(), base::OpenMode::kCreate));
    return done_->WriteAt(base::AsBytes(state + done_text_), 0);
  }

  const std::string& key() const { return wanted_.key; }
  std::uint64_t piece_count() const { return pieces_; }
  bool has_piece(std::uint64_t piece) const { return done_text_[piece] == '1'; }
  std::uint64_t piece_bytes(std::uint64_t piece) const {
    return std::min(kPieceBytes, wanted_.bytes - piece * kPieceBytes);
  }

  Status FetchPiece(objects::ObjectStore& store, std::uint64_t piece, base::Buffer& buffer,
                    base::Progress& progress, const base::CancelToken* cancel) {
    const base::MutableByteSpan bytes = buffer.Get(piece_bytes(piece));
    SYNCLINE_TRY(store.ReadAt(
        wanted_.key, bytes, piece * kPieceBytes, tag_,
        [&](std::uint64_t more) { progress.Add(more); }, cancel));
    SYNCLINE_TRY(part_->WriteAt(bytes, piece * kPieceBytes));
    return done_->WriteAt(base::AsBytes("1"), state_bytes_ + piece);
  }

  Result<bool> Finish(const base::CancelToken* cancel) {
    part_.reset();
    done_.reset();
    bool right = true;
    if (!wanted_.sha256.empty()) {
      SYNCLINE_ASSIGN(const FileHash hash, HashFile(files_, Part(), cancel));
      right = hash.sha256 == wanted_.sha256;
    }
    SYNCLINE_TRY(files_.RemoveAll(Done()));
    if (!right) {
      SYNCLINE_TRY(files_.RemoveAll(Part()));
      return false;
    }
    SYNCLINE_TRY(files_.Rename(Part(), path_));
    return true;
  }

 private:
  std::string Part() const { return path_ + ".part"; }
  std::string Done() const { return path_ + ".done"; }

  const FetchFile& wanted_;
  FileSystem& files_;
  std::string path_;
  std::uint64_t pieces_;
  std::string tag_;
  std::size_t state_bytes_ = 0;
  std::string done_text_;  // '1' for each piece that is there
  std::unique_ptr<base::File> part_;
  std::unique_ptr<base::File> done_;
};

}  // namespace

Status Fetch(objects::ObjectStore& store, const std::vector<FetchFile>& wanted, FileSystem& files,
             const std::string& directory, base::ThreadPool& pool, base::Progress& progress,
             const base::CancelToken* cancel) {
  SYNCLINE_TRY(files.MakeDirectories(directory));
  std::vector<std::unique_ptr<Download>> downloads;
  std::uint64_t bytes = 0;
  for (const FetchFile& file : wanted) {
    auto download = std::make_unique<Download>(file, files, directory);
    SYNCLINE_ASSIGN(const bool there, download->IsThere());
    if (there) continue;
    bytes += file.bytes;
    downloads.push_back(std::move(download));
    const std::size_t slash = file.name.rfind('/');
    if (slash == std::string::npos) continue;
    SYNCLINE_TRY(files.MakeDirectories(base::JoinPath(directory, file.name.substr(0, slash))));
  }
  SYNCLINE_ASSIGN(const std::uint64_t room, files.FreeBytes(directory));
  if (room < bytes) {
    return Fail(Code::kNoSpace, fmt::format("{}: fetching from {} needs {} bytes, {} are free",
                                            directory, store.url(), bytes, room));
  }
  struct Piece {
    Download* download;
    std::uint64_t number;
  };
  std::vector<Piece> pieces;
  std::uint64_t missing = 0;
  for (const auto& download : downloads) {
    SYNCLINE_TRY(download->Open(store, cancel));
    for (std::uint64_t i = 0; i < download->piece_count(); ++i) {
      if (download->has_piece(i)) continue;
      pieces.push_back({download.get(), i});
      missing += download->piece_bytes(i);
    }
  }
  progress.Begin("fetch", missing);
  base::Pool<base::Buffer> buffers;
  SYNCLINE_TRY(pool.ParallelFor(
      pieces.size(),
      [&](std::size_t i) -> Status {
        const base::Pool<base::Buffer>::Lease buffer(buffers);
        return pieces[i].download->FetchPiece(store, pieces[i].number, *buffer, progress, cancel);
      },
      cancel));
  std::vector<char> right(downloads.size());
  SYNCLINE_TRY(pool.ParallelFor(downloads.size(), [&](std::size_t i) -> Status {
    SYNCLINE_ASSIGN(const bool whole, downloads[i]->Finish(cancel));
    right[i] = whole ? 1 : 0;
    return {};
  }));
  std::vector<std::string> wrong;
  std::size_t at = 0;
  for (const auto& download : downloads) {
    if (right[at++] == 0) wrong.push_back(base::JoinPath(store.url(), download->key()));
  }
  if (wrong.empty()) return {};
  return Fail(Code::kChecksumMismatch,
              fmt::format("what came of {} does not have the SHA-256 of the manifest",
                          fmt::join(wrong, ", ")));
}

}  // namespace syncline::store
