#include "update/weights_backup.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace syncline::update {

using base::Result;
using base::Status;

namespace {

// Between two looks at whether it is cancelled.
constexpr std::size_t kPiece = std::size_t{64} << 20;

// `move(piece, offset)` of all pieces, in the order of the file.
template <typename Span, typename Move>
Status ForPieces(std::span<const Span> weights, const base::CancelToken& cancel, const Move& move) {
  std::uint64_t offset = 0;
  for (const Span& of_runner : weights) {
    for (std::size_t begin = 0; begin < of_runner.size(); begin += kPiece) {
      SYNCLINE_TRY(cancel.Check());
      const Span piece = of_runner.subspan(begin, std::min(kPiece, of_runner.size() - begin));
      SYNCLINE_TRY(move(piece, offset));
      offset += piece.size();
    }
  }
  return {};
}

Status WriteAll(base::File& file, std::span<const base::ByteSpan> weights,
                const base::CancelToken& cancel) {
  std::uint64_t size = 0;
  for (const base::ByteSpan of_runner : weights) size += of_runner.size();
  SYNCLINE_TRY(file.Allocate(size));
  return ForPieces(weights, cancel, [&](base::ByteSpan piece, std::uint64_t offset) {
    return file.WriteAt(piece, offset);
  });
}

}  // namespace

Result<std::unique_ptr<WeightsBackup>> WeightsBackup::Write(base::FileSystem& files,
                                                            const std::string& directory,
                                                            std::uint32_t rank,
                                                            std::span<const base::ByteSpan> weights,
                                                            const base::CancelToken& cancel) {
  const std::string path =
      base::JoinPath(directory, fmt::format("syncline-weights-{}-rank-{}", getpid(), rank));
  SYNCLINE_ASSIGN(std::unique_ptr<base::File> file,
                  files.Open(path, base::OpenMode::kCreatePrivate));
  // It lives as long as it is open.
  SYNCLINE_TRY(files.Remove(path));
  SYNCLINE_TRY(WriteAll(*file, weights, cancel));
  return std::unique_ptr<WeightsBackup>(new WeightsBackup(std::move(file)));
}

Status WeightsBackup::Read(std::span<const base::MutableByteSpan> weights,
                           const base::CancelToken& cancel) const {
  return ForPieces(weights, cancel, [&](base::MutableByteSpan piece, std::uint64_t offset) {
    return base::ReadExactly(*file_, piece, offset);
  });
}

}  // namespace syncline::update
