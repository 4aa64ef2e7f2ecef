#include "replica/install.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "base/pool.h"

namespace syncline::replica {
namespace {

using base::ByteSpan;
using base::MutableByteSpan;
using base::Result;
using base::Status;
using delta::BlockRecord;

Status InstallRecord(base::File& file, const JournalTensor& tensor, const BlockRecord& record,
                     delta::Side side, Check check, base::Buffer& buffer) {
  const std::uint64_t size =
      std::min<std::uint64_t>(delta::kBlockBytes, tensor.bytes - record.block_offset());
  const std::uint64_t at = tensor.offset + record.block_offset();
  const MutableByteSpan block = buffer.Get(size);
  const MutableByteSpan part =
      block.subspan(record.begin() - record.block_offset(), record.end() - record.begin());
  if (!record.whole()) SYNCLINE_TRY(base::ReadExactly(file, block, at));
  record.Write(side, part);
  if (check == Check::kNewBlocks && !record.IsNewBlock(block)) {
    return base::Fail(base::Code::kChecksumMismatch,
                      fmt::format("{}: tensor {} has changed since it was hashed, or was read "
                                  "wrongly, at {}",
                                  file.path(), tensor.name, at));
  }
  return file.WriteAt(part, tensor.offset + record.begin());
}

}  // namespace

Status Install(base::FileSystem& files, const std::string& directory, const Journal& journal,
               delta::Side side, Check check, base::ThreadPool& pool, base::Progress& progress) {
  std::map<std::string, std::unique_ptr<base::File>> open;
  std::vector<base::File*> file_of;  // of each tensor
  for (const JournalTensor& tensor : journal.head().tensors) {
    std::unique_ptr<base::File>& file = open[tensor.file];
    if (file == nullptr) {
      SYNCLINE_ASSIGN(
          file, files.Open(base::JoinPath(directory, tensor.file), base::OpenMode::kReadWrite));
    }
    SYNCLINE_ASSIGN(const base::FileInfo info, file->Stat());
    if (tensor.offset + tensor.bytes > info.size) {
      return base::Fail(base::Code::kCorrupt,
                        fmt::format("{} has {} bytes, tensor {} ends at {}", file->path(),
                                    info.size, tensor.name, tensor.offset + tensor.bytes));
    }
    file_of.push_back(file.get());
  }
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < journal.segment_count(); ++i) total += journal.bytes_of(i);
  progress.Begin("write", total);
  base::Pool<base::Buffer> images;
  base::Pool<std::vector<std::byte>> segments;
  return pool.ParallelFor(journal.segment_count(), [&](std::size_t i) -> Status {
    const base::Pool<base::Buffer>::Lease image(images);
    const base::Pool<std::vector<std::byte>>::Lease buffer(segments);
    SYNCLINE_ASSIGN(ByteSpan records, journal.ReadSegment(i, *buffer));
    progress.Add(records.size());
    const std::uint32_t tensor = journal.tensor_of(i);
    while (!records.empty()) {
      SYNCLINE_ASSIGN(const BlockRecord record, BlockRecord::Read(records));
      SYNCLINE_TRY(InstallRecord(*file_of[tensor], journal.head().tensors[tensor], record, side,
                                 check, *image));
      records = records.subspan(record.record_bytes());
    }
    return {};
  });
}

Status SyncFiles(base::FileSystem& files, const std::string& directory,
                 const std::set<std::string>& names, base::ThreadPool& pool) {
  const std::vector<std::string> order(names.begin(), names.end());
  return pool.ParallelFor(order.size(), [&](std::size_t i) -> Status {
    SYNCLINE_ASSIGN(const auto file,
                    files.Open(base::JoinPath(directory, order[i]), base::OpenMode::kReadWrite));
    return file->Sync();
  });
}

}  // namespace syncline::replica
