// replica::Journal, of a whole file. The input is a byte of kind and a journal; with an odd kind
// its checksums are put right first, so that what stands behind them is reached.
//
// - Of an accepted journal every segment names a tensor of the head, and each record of a segment
//   that can be read lies inside its tensor. Its values go where they belong, and nowhere else.
// - A writer that is given the same head and records makes a journal that reads as the same one.
// - A file that is cut short after it was opened is an error.
// - Memory stays within a multiple of the file's size.
#include "replica/journal.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "base/temp_dir.h"
#include "delta/block_patch.h"
#include "support.h"

namespace syncline::fuzz {
namespace {

using base::ByteSpan;
using base::Load;
using base::Store;
using replica::Journal;
using replica::JournalHead;
using replica::JournalTensor;
using Buffer = std::vector<std::byte>;

std::uint64_t Checksum(ByteSpan bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

// Puts the checksums of head, segments and directory right, as far as the parts fit together.
void Mend(Buffer& file) {
  constexpr std::size_t kPreamble = 24;
  constexpr std::size_t kEntry = 24;
  constexpr std::size_t kTrailer = 40;
  if (file.size() < kPreamble + kTrailer) return;
  std::byte* trailer = file.data() + file.size() - kTrailer;
  const std::size_t body = file.size() - kTrailer;
  const std::size_t head = Load<std::uint32_t>(&file[8]);
  if (head > body - kPreamble) return;
  const std::uint64_t sum = Checksum(ByteSpan(file).subspan(kPreamble, head));
  Store(&file[16], sum);
  Store(trailer + 24, sum);
  const auto directory = Load<std::uint64_t>(trailer);
  if (directory > body) return;
  for (std::size_t at = directory; at + kEntry <= body; at += kEntry) {
    const auto offset = Load<std::uint64_t>(&file[at]);
    const auto bytes = Load<std::uint32_t>(&file[at + 8]);
    if (offset > file.size() || bytes > file.size() - offset) continue;
    Store(&file[at + 16], Checksum(ByteSpan(file).subspan(offset, bytes)));
  }
  Store(trailer + 16, Checksum(ByteSpan(file).subspan(directory, body - directory)));
}

void CheckRecord(const delta::BlockRecord& record, const JournalTensor& tensor) {
  Must(record.begin() <= record.end() && record.end() <= tensor.bytes,
       "a record lies inside its tensor");
  const std::size_t size = record.end() - record.begin();
  Must(size <= delta::kBlockBytes, "a record is of one block");
  // Written over two different grounds: what a record holds is the same in both, all else stays.
  Buffer zeros(size, std::byte{0});
  Buffer ones(size, std::byte{0xFF});
  for (const auto side : {delta::Side::kNew, delta::Side::kOld}) {
    record.Write(side, zeros);
    record.Write(side, ones);
  }
  for (std::size_t i = 0; i < size; ++i) {
    const bool ground = zeros[i] == std::byte{0} && ones[i] == std::byte{0xFF};
    Must(ground ? !record.whole() : zeros[i] == ones[i], "values go where they belong");
  }
}

// Head and segments as text, to compare journals by.
std::string Picture(const Journal& journal) {
  std::string picture = journal.head().boot_id;
  for (const auto& held : {journal.head().from, journal.head().to}) {
    picture += fmt::format("|{},{},{},{}", held.version, held.token, held.run, held.identity);
  }
  for (const JournalTensor& tensor : journal.head().tensors) {
    picture += fmt::format("|{},{},{},{},{},{}", tensor.name, tensor.file, tensor.offset,
                           tensor.bytes, tensor.before.hex, tensor.after.hex);
  }
  Buffer buffer;
  for (std::size_t i = 0; i < journal.segment_count(); ++i) {
    const auto records = journal.ReadSegment(i, buffer);
    if (!records) continue;
    picture += fmt::format("|{}:{}", journal.tensor_of(i), base::AsText(*records));
  }
  return picture;
}

void CheckWritten(const Journal& journal) {
  static const base::TempDir directory("/dev/shm");
  base::FileSystem& files = base::FileSystem::Posix();
  const std::string path = directory / "journal";
  const auto writer = replica::JournalWriter::Create(files, path, journal.head());
  Must(writer.has_value(), "a journal can be written");
  Buffer buffer;
  for (std::size_t i = 0; i < journal.segment_count(); ++i) {
    const auto records = journal.ReadSegment(i, buffer);
    if (records) Must((*writer)->Append(journal.tensor_of(i), *records).has_value(), "appended");
  }
  const auto size = (*writer)->Commit();
  Must(size.has_value(), "a journal can be ended");
  const auto again = Journal::Open(files, path);
  Must(again.has_value() && again->bytes() == *size, "a journal that was written can be read");
  Must(Picture(*again) == Picture(journal), "a journal survives writing");
}

void Check(ByteSpan file) {
  const MemoryWatch watch;
  const auto journal = Journal::Read(std::make_unique<MemoryFile>(file, file.size()));
  Must(watch.peak() <= 65536 + 400 * file.size(), "memory is bounded by the file");
  Must(!Journal::Read(std::make_unique<MemoryFile>(file, file.size() + 4096)),
       "a file that was cut is refused");
  if (!journal) {
    Must(journal.error().code == base::Code::kCorrupt &&
             journal.error().message.starts_with("memory: "),
         "a journal that is refused is corrupt");
    return;
  }
  Must(journal->bytes() == file.size(), "it knows its size");
  Buffer buffer;
  for (std::size_t i = 0; i < journal->segment_count(); ++i) {
    Must(journal->tensor_of(i) < journal->head().tensors.size(), "a segment is of a tensor");
    const auto records = journal->ReadSegment(i, buffer);
    if (!records) {
      Must(records.error().code == base::Code::kCorrupt, "a segment that is refused is corrupt");
      continue;
    }
    for (ByteSpan rest = *records; !rest.empty();) {
      const auto record = delta::BlockRecord::Read(rest);
      Must(record.has_value() && record->record_bytes() > 0, "a segment is all records");
      CheckRecord(*record, journal->head().tensors[journal->tensor_of(i)]);
      rest = rest.subspan(record->record_bytes());
    }
  }
  CheckWritten(*journal);
}

}  // namespace
}  // namespace syncline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace syncline;
  if (size < 1) return 0;
  const base::ByteSpan rest = fuzz::Bytes(data + 1, size - 1);
  std::vector<std::byte> file(rest.begin(), rest.end());
  if ((data[0] & 1) != 0) fuzz::Mend(file);
  fuzz::Check(file);
  return 0;
}
