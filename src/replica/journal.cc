#include "replica/journal.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/json.h"
#include "delta/block_patch.h"
#include "replica/checked_text.h"

namespace syncline::replica {
namespace {

using base::ByteSpan;
using base::Code;
using base::Fail;
using base::Json;
using base::Load;
using base::Result;
using base::Status;
using base::Store;

constexpr std::string_view kBegin = "SYNCJRN1";
constexpr std::string_view kEnd = "SYNCEND1";
constexpr std::size_t kPreambleBytes = 24;  // kBegin, u32 bytes of the head, u32 0, u64 checksum
constexpr std::size_t kEntryBytes = 24;     // u64 offset, u32 bytes, u32 tensor, u64 checksum
constexpr std::size_t kTrailerBytes = 40;   // u64 directory, u64 count, u64 its checksum, u64 the
                                            // head's checksum, kEnd
constexpr std::uint64_t kMaxHeadBytes = 256'000'000;
constexpr std::uint64_t kFormat = 1;

std::uint64_t Checksum(ByteSpan bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::string HeadText(const JournalHead& head) {
  Json::Array tensors;
  for (const JournalTensor& tensor : head.tensors) {
    tensors.emplace_back(Json::Array{tensor.name, EscapePath(tensor.file), tensor.offset,
                                     tensor.bytes, HashText(tensor.before),
                                     HashText(tensor.after)});
  }
  return ToText(Json(Json::Object{{"format", kFormat},
                                  {"boot_id", head.boot_id},
                                  {"from", HeldJson(head.from)},
                                  {"to", HeldJson(head.to)},
                                  {"tensors", std::move(tensors)}}));
}

std::optional<JournalTensor> ParseTensor(const Json& json) {
  const Json::Array* fields = json.array();
  if (fields == nullptr || fields->size() != 6) return std::nullopt;
  const std::string* name = (*fields)[0].string();
  const std::string* file = (*fields)[1].string();
  const std::uint64_t* offset = (*fields)[2].unsigned_integer();
  const std::uint64_t* bytes = (*fields)[3].unsigned_integer();
  const auto path = file == nullptr ? std::nullopt : UnescapePath(*file);
  const auto before = ParseHash((*fields)[4]);
  const auto after = ParseHash((*fields)[5]);
  if (name == nullptr || !path || offset == nullptr || bytes == nullptr || !before || !after ||
      !base::IsInsidePath(*path) || *offset + *bytes < *offset) {
    return std::nullopt;
  }
  return JournalTensor{*name, *path, *offset, *bytes, *before, *after};
}

std::optional<JournalHead> ParseHead(std::string_view text) {
  const Result<Json> json = base::ParseJson(text);
  if (!json) return std::nullopt;
  const Json* format = json->Find("format");
  const Json* boot_id = json->Find("boot_id");
  const auto from = ParseHeld(json->Find("from"));
  const auto to = ParseHeld(json->Find("to"));
  const Json* tensors = json->Find("tensors");
  if (format == nullptr || format->unsigned_integer() == nullptr ||
      *format->unsigned_integer() != kFormat || boot_id == nullptr ||
      boot_id->string() == nullptr || !from || !to || tensors == nullptr ||
      tensors->array() == nullptr) {
    return std::nullopt;
  }
  JournalHead head{.boot_id = *boot_id->string(), .from = *from, .to = *to};
  for (const Json& item : *tensors->array()) {
    auto tensor = ParseTensor(item);
    if (!tensor) return std::nullopt;
    head.tensors.push_back(*std::move(tensor));
  }
  return head;
}

}  // namespace

std::set<std::string> JournalHead::TensorNames() const {
  std::set<std::string> names;
  for (const JournalTensor& tensor : tensors) names.insert(tensor.name);
  return names;
}

std::set<std::string> JournalHead::FileNames() const {
  std::set<std::string> names;
  for (const JournalTensor& tensor : tensors) names.insert(tensor.file);
  return names;
}

Result<std::unique_ptr<JournalWriter>> JournalWriter::Create(base::FileSystem& files,
                                                             const std::string& path,
                                                             const JournalHead& head) {
  std::unique_ptr<JournalWriter> writer(new JournalWriter);
  SYNCLINE_ASSIGN(writer->file_, files.Open(path, base::OpenMode::kCreate));
  const std::string text = HeadText(head);
  if (text.size() > kMaxHeadBytes) {
    return Fail(Code::kLimitExceeded, fmt::format("{}: a head of {} bytes, at most {} are possible",
                                                  path, text.size(), kMaxHeadBytes));
  }
  writer->head_checksum_ = Checksum(base::AsBytes(text));
  std::vector<std::byte> start(kPreambleBytes + text.size());
  std::memcpy(start.data(), kBegin.data(), kBegin.size());
  Store(&start[8], static_cast<std::uint32_t>(text.size()));
  Store(&start[16], writer->head_checksum_);
  std::memcpy(&start[kPreambleBytes], text.data(), text.size());
  SYNCLINE_TRY(writer->file_->WriteAt(start, 0));
  writer->end_ = start.size();
  return writer;
}

Status JournalWriter::Append(std::uint32_t tensor, ByteSpan records) {
  if (records.empty()) return {};
  Segment segment{.bytes = static_cast<std::uint32_t>(records.size()),
                  .tensor = tensor,
                  .checksum = Checksum(records)};
  {
    const std::scoped_lock lock(mutex_);
    segment.offset = end_;
    end_ += records.size();
    segments_.push_back(segment);
  }
  return file_->WriteAt(records, segment.offset);
}

Result<std::uint64_t> JournalWriter::Commit() {
  const std::size_t directory_bytes = segments_.size() * kEntryBytes;
  std::vector<std::byte> tail(directory_bytes + kTrailerBytes);
  std::byte* out = tail.data();
  for (const Segment& segment : segments_) {
    Store(out, segment.offset);
    Store(out + 8, segment.bytes);
    Store(out + 12, segment.tensor);
    Store(out + 16, segment.checksum);
    out += kEntryBytes;
  }
  Store(out, end_);
  Store(out + 8, std::uint64_t{segments_.size()});
  Store(out + 16, Checksum(std::span(tail).first(directory_bytes)));
  Store(out + 24, head_checksum_);
  std::memcpy(out + 32, kEnd.data(), kEnd.size());
  SYNCLINE_TRY(file_->WriteAt(tail, end_));
  SYNCLINE_TRY(file_->Sync());
  return end_ + tail.size();
}

Result<Journal> Journal::Open(base::FileSystem& files, const std::string& path) {
  SYNCLINE_ASSIGN(auto file, files.Open(path, base::OpenMode::kRead));
  return Read(std::move(file));
}

Result<Journal> Journal::Read(std::unique_ptr<base::File> file) {
  const auto corrupt = [&](std::string_view what) {
    return Fail(Code::kCorrupt, fmt::format("{}: {}", file->path(), what));
  };
  Journal journal;
  SYNCLINE_ASSIGN(const base::FileInfo info, file->Stat());
  journal.bytes_ = info.size;
  if (info.size < kPreambleBytes + kTrailerBytes) return corrupt("the journal has no end");
  std::array<std::byte, kPreambleBytes> preamble = {};
  std::array<std::byte, kTrailerBytes> trailer = {};
  SYNCLINE_TRY(base::ReadExactly(*file, preamble, 0));
  SYNCLINE_TRY(base::ReadExactly(*file, trailer, info.size - kTrailerBytes));
  if (base::AsText(preamble).substr(0, 8) != kBegin) return corrupt("is no journal");
  if (base::AsText(trailer).substr(32) != kEnd) return corrupt("the journal has no end");

  const std::uint64_t head_bytes = Load<std::uint32_t>(&preamble[8]);
  const auto head_checksum = Load<std::uint64_t>(&preamble[16]);
  const auto directory = Load<std::uint64_t>(trailer.data());
  const auto count = Load<std::uint64_t>(&trailer[8]);
  const std::uint64_t body = info.size - kTrailerBytes;
  if (head_bytes > kMaxHeadBytes || head_bytes > body - kPreambleBytes ||
      directory < kPreambleBytes + head_bytes || directory > body ||
      (body - directory) % kEntryBytes != 0 || (body - directory) / kEntryBytes != count ||
      head_checksum != Load<std::uint64_t>(&trailer[24])) {
    return corrupt("the journal's parts do not fit together");
  }
  std::string text(head_bytes, '\0');
  SYNCLINE_TRY(base::ReadExactly(*file, std::as_writable_bytes(std::span(text)), kPreambleBytes));
  std::vector<std::byte> entries(count * kEntryBytes);
  SYNCLINE_TRY(base::ReadExactly(*file, entries, directory));
  if (Checksum(base::AsBytes(text)) != head_checksum ||
      Checksum(entries) != Load<std::uint64_t>(&trailer[16])) {
    return corrupt("the journal is damaged");
  }
  auto head = ParseHead(text);
  if (!head) return corrupt("the journal's head is damaged");
  journal.head_ = *std::move(head);
  for (std::size_t i = 0; i < count; ++i) {
    const std::byte* entry = &entries[i * kEntryBytes];
    const Segment segment{.offset = Load<std::uint64_t>(entry),
                          .bytes = Load<std::uint32_t>(entry + 8),
                          .tensor = Load<std::uint32_t>(entry + 12),
                          .checksum = Load<std::uint64_t>(entry + 16)};
    if (segment.bytes == 0 || segment.bytes > kMaxSegmentBytes ||
        segment.offset < kPreambleBytes + head_bytes || segment.offset > directory ||
        segment.bytes > directory - segment.offset ||
        segment.tensor >= journal.head_.tensors.size()) {
      return corrupt("the journal's directory is damaged");
    }
    journal.segments_.push_back(segment);
  }
  journal.file_ = std::move(file);
  return journal;
}

Result<ByteSpan> Journal::ReadSegment(std::size_t index, std::vector<std::byte>& buffer) const {
  const Segment& segment = segments_[index];
  const JournalTensor& tensor = head_.tensors[segment.tensor];
  buffer.resize(segment.bytes);
  SYNCLINE_TRY(base::ReadExactly(*file_, buffer, segment.offset));
  const auto corrupt = [&] {
    return Fail(Code::kCorrupt,
                fmt::format("{}: the journal of tensor {} is damaged", file_->path(), tensor.name));
  };
  if (Checksum(buffer) != segment.checksum) return corrupt();
  for (ByteSpan rest = buffer; !rest.empty();) {
    const auto record = delta::BlockRecord::Read(rest);
    if (!record || record->end() > tensor.bytes) return corrupt();
    rest = rest.subspan(record->record_bytes());
  }
  return ByteSpan(buffer);
}

}  // namespace syncline::replica
