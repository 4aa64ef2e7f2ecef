#include "checkpoint/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/json.h"

namespace syncline::checkpoint {
namespace {

using base::Code;
using base::Fail;
using base::Json;
using base::Result;
using base::Status;

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::string_view kMetadataKey = "__metadata__";

Result<std::vector<std::uint64_t>> ParseIntegers(const Json* json, std::string_view tensor,
                                                 std::string_view field) {
  const Json::Array* array = json == nullptr ? nullptr : json->array();
  if (array == nullptr) {
    return Fail(Code::kCorrupt, fmt::format("tensor {}: \"{}\" is not a list", tensor, field));
  }
  std::vector<std::uint64_t> numbers;
  numbers.reserve(array->size());
  for (const Json& item : *array) {
    const std::uint64_t* number = item.unsigned_integer();
    if (number == nullptr) {
      return Fail(Code::kCorrupt,
                  fmt::format("tensor {}: \"{}\" holds {}, which is not an unsigned integer",
                              tensor, field, ToText(item)));
    }
    numbers.push_back(*number);
  }
  return numbers;
}

// One member of the header; its offset counts from the start of the file.
Result<TensorInfo> ParseTensor(const Json::Member& member, std::uint64_t data_start) {
  TensorInfo info{.name = member.first};
  if (member.second.object() == nullptr) {
    return Fail(Code::kCorrupt, fmt::format("tensor {} is not an object", info.name));
  }
  const Json* dtype = member.second.Find("dtype");
  if (dtype == nullptr || dtype->string() == nullptr) {
    return Fail(Code::kCorrupt, fmt::format("tensor {} has no \"dtype\"", info.name));
  }
  const std::optional<tensor::Dtype> known = tensor::FindDtype(*dtype->string());
  if (!known) {
    return Fail(Code::kIncompatible,
                fmt::format("tensor {} has the unknown dtype {}", info.name, *dtype->string()));
  }
  info.dtype = *known;
  SYNCLINE_ASSIGN(info.shape, ParseIntegers(member.second.Find("shape"), info.name, "shape"));
  SYNCLINE_ASSIGN(const std::vector<std::uint64_t> range,
                  ParseIntegers(member.second.Find("data_offsets"), info.name, "data_offsets"));
  if (range.size() != 2 || range[0] > range[1]) {
    return Fail(Code::kCorrupt, fmt::format("tensor {}: \"data_offsets\" {} is not [begin, end]",
                                            info.name, tensor::ShapeText(range)));
  }
  Result<std::uint64_t> bytes = tensor::ByteCount(info.dtype, info.shape);
  if (!bytes) return Annotate(std::move(bytes).error(), fmt::format("tensor {}", info.name));
  info.bytes = range[1] - range[0];
  if (info.bytes != *bytes) {
    return Fail(
        Code::kCorrupt,
        fmt::format("tensor {}: {} of shape {} takes {} bytes, but its offsets hold {}", info.name,
                    Name(info.dtype), tensor::ShapeText(info.shape), *bytes, info.bytes));
  }
  if (__builtin_add_overflow(range[0], data_start, &info.offset)) {
    return Fail(Code::kCorrupt, fmt::format("tensor {}: offset {} overflows", info.name, range[0]));
  }
  return info;
}

Status ParseMetadata(const Json& json, Metadata& metadata) {
  if (json.is_null()) return {};
  if (json.object() == nullptr) return Fail(Code::kCorrupt, "__metadata__ is not an object");
  for (const auto& [key, value] : *json.object()) {
    if (value.string() == nullptr) {
      return Fail(Code::kCorrupt, fmt::format("__metadata__ \"{}\" is not a string", key));
    }
    metadata.emplace_back(key, *value.string());
  }
  return {};
}

// Tensors must follow each other from the start of the data to the end of the file.
Status CheckRanges(const std::vector<TensorInfo>& tensors, std::uint64_t data_start,
                   std::uint64_t file_bytes) {
  std::uint64_t expected = data_start;
  for (const TensorInfo& info : tensors) {
    if (info.offset != expected) {
      return Fail(Code::kCorrupt,
                  fmt::format("tensor {} {}: expected its data at {}, found {}", info.name,
                              info.offset < expected ? "overlaps the one before it"
                                                     : "leaves a gap before it",
                              expected - data_start, info.offset - data_start));
    }
    if (info.bytes > file_bytes - expected) {
      return Fail(Code::kCorrupt,
                  fmt::format("the file is truncated: tensor {} ends at byte {}, the file at {}",
                              info.name, expected + info.bytes, file_bytes));
    }
    expected += info.bytes;
  }
  if (expected != file_bytes) {
    return Fail(Code::kCorrupt, fmt::format("the header describes {} bytes, the file has {}",
                                            expected, file_bytes));
  }
  return {};
}

Status CheckFileBytes(std::uint64_t file_bytes) {
  if (file_bytes >= kLengthBytes) return {};
  return Fail(Code::kCorrupt, fmt::format("the file is truncated: expected at least {} bytes, "
                                          "found {}",
                                          kLengthBytes, file_bytes));
}

// The length of the header, which the file's first bytes hold.
Result<std::uint64_t> ReadLength(const std::byte* field, std::uint64_t file_bytes) {
  const auto length = base::Load<std::uint64_t>(field);
  if (length > kMaxHeaderBytes) {
    return Fail(Code::kCorrupt, fmt::format("the header length is {}, more than the limit of {}",
                                            length, kMaxHeaderBytes));
  }
  if (length > file_bytes - kLengthBytes) {
    return Fail(Code::kCorrupt,
                fmt::format("the file is truncated: the header ends at byte {}, the file at {}",
                            kLengthBytes + length, file_bytes));
  }
  return length;
}

}  // namespace

Result<SafetensorsHeader> ParseSafetensorsHeader(std::string_view text, std::uint64_t file_bytes) {
  const std::uint64_t data_start = kLengthBytes + text.size();
  if (!text.starts_with('{')) return Fail(Code::kCorrupt, "the header does not start with '{'");
  SYNCLINE_ASSIGN(const Json json, base::ParseJson(text));
  SafetensorsHeader header{.file_bytes = file_bytes};
  for (const Json::Member& member : *json.object()) {
    if (member.first == kMetadataKey) {
      SYNCLINE_TRY(ParseMetadata(member.second, header.metadata));
      continue;
    }
    SYNCLINE_ASSIGN(TensorInfo info, ParseTensor(member, data_start));
    header.tensors.push_back(std::move(info));
  }
  // Empty tensors share their offset with the one that follows, so size decides second.
  std::ranges::sort(header.tensors, {},
                    [](const TensorInfo& info) { return std::pair(info.offset, info.bytes); });
  SYNCLINE_TRY(CheckRanges(header.tensors, data_start, file_bytes));
  return header;
}

Result<SafetensorsHeader> ReadSafetensorsHeader(base::File& file) {
  const auto named = [&]<typename T>(Result<T> result) -> Result<T> {
    if (!result) return Annotate(std::move(result).error(), file.path());
    return result;
  };
  SYNCLINE_ASSIGN(const base::FileInfo stat, file.Stat());
  SYNCLINE_TRY(named(CheckFileBytes(stat.size)));
  std::array<std::byte, kLengthBytes> field;
  SYNCLINE_TRY(base::ReadExactly(file, field, 0));
  SYNCLINE_ASSIGN(const std::uint64_t length, named(ReadLength(field.data(), stat.size)));
  std::string text(length, '\0');
  SYNCLINE_TRY(base::ReadExactly(file, std::as_writable_bytes(std::span(text)), kLengthBytes));
  return named(ParseSafetensorsHeader(text, stat.size));
}

Result<SafetensorsHeader> ReadSafetensorsHeader(base::ByteSpan file) {
  SYNCLINE_TRY(CheckFileBytes(file.size()));
  SYNCLINE_ASSIGN(const std::uint64_t length, ReadLength(file.data(), file.size()));
  return ParseSafetensorsHeader(base::AsText(file.subspan(kLengthBytes, length)), file.size());
}

std::uint64_t HeaderBytesBound(const std::string& name, std::size_t rank) {
  constexpr std::uint64_t kEscaped = 6;   // bytes of a character as \u0000
  constexpr std::uint64_t kFixed = 120;   // names of the members, dtype, offsets
  constexpr std::uint64_t kInteger = 21;  // and a comma
  return kEscaped * name.size() + kFixed + kInteger * rank;
}

std::uint64_t MetadataBytesBound(std::string_view key, std::string_view value) {
  constexpr std::uint64_t kEscaped = 6;
  constexpr std::uint64_t kQuotes = 6;
  return kEscaped * (key.size() + value.size()) + kQuotes;
}

Result<SafetensorsLayout> LayOutSafetensors(std::vector<TensorSpec> specs, const Metadata& metadata,
                                            std::size_t alignment) {
  std::ranges::sort(specs, [](const TensorSpec& a, const TensorSpec& b) {
    if (Bits(a.dtype) != Bits(b.dtype)) return Bits(a.dtype) > Bits(b.dtype);
    return a.name < b.name;
  });
  Json::Object members;
  if (!metadata.empty()) {
    Json::Object object;
    for (const auto& [key, value] : metadata) object.emplace_back(key, value);
    members.emplace_back(kMetadataKey, std::move(object));
  }
  SafetensorsLayout layout;
  std::uint64_t offset = 0;
  for (TensorSpec& spec : specs) {
    if (spec.name == kMetadataKey) {
      return Fail(Code::kInvalidArgument, "a tensor must not have the name __metadata__");
    }
    SYNCLINE_ASSIGN(const std::uint64_t bytes, tensor::ByteCount(spec.dtype, spec.shape));
    Json::Array shape(spec.shape.begin(), spec.shape.end());
    members.emplace_back(spec.name,
                         Json::Object{{"dtype", Name(spec.dtype)},
                                      {"shape", std::move(shape)},
                                      {"data_offsets", Json::Array{offset, offset + bytes}}});
    layout.header.tensors.push_back({.name = std::move(spec.name),
                                     .dtype = spec.dtype,
                                     .shape = std::move(spec.shape),
                                     .offset = offset,
                                     .bytes = bytes});
    offset += bytes;
  }
  std::vector<std::string_view> names;
  names.reserve(layout.header.tensors.size());
  for (const TensorInfo& info : layout.header.tensors) names.emplace_back(info.name);
  std::ranges::sort(names);
  if (const auto twice = std::ranges::adjacent_find(names); twice != names.end()) {
    return Fail(Code::kInvalidArgument, fmt::format("two tensors have the name {}", *twice));
  }
  std::string text = ToText(Json(std::move(members)));
  text.append(alignment - 1 - (kLengthBytes + text.size() + alignment - 1) % alignment, ' ');
  if (text.size() > kMaxHeaderBytes) {
    return Fail(Code::kLimitExceeded,
                fmt::format("a safetensors header of {} bytes, more than the limit of {}; use more "
                            "and smaller files",
                            text.size(), kMaxHeaderBytes));
  }
  layout.head.resize(kLengthBytes);
  base::Store(reinterpret_cast<std::byte*>(layout.head.data()), std::uint64_t{text.size()});
  layout.head += text;
  for (TensorInfo& info : layout.header.tensors) info.offset += layout.head.size();
  layout.header.metadata = metadata;
  layout.header.file_bytes = layout.head.size() + offset;
  return layout;
}

Result<SafetensorsWriter> SafetensorsWriter::Create(base::FileSystem& files,
                                                    const std::string& path,
                                                    SafetensorsLayout layout) {
  SafetensorsWriter writer;
  writer.files_ = &files;
  writer.path_ = path;
  writer.header_ = std::move(layout.header);
  SYNCLINE_ASSIGN(writer.file_, files.Open(path + ".tmp", base::OpenMode::kCreate));
  SYNCLINE_TRY(writer.file_->Allocate(writer.header_.file_bytes));
  SYNCLINE_TRY(writer.file_->WriteAt(base::AsBytes(layout.head), 0));
  return writer;
}

SafetensorsWriter::~SafetensorsWriter() {
  if (file_ != nullptr) (void)files_->Remove(path_ + ".tmp");
}

Status SafetensorsWriter::WriteAt(base::ByteSpan bytes, std::uint64_t offset) {
  return file_->WriteAt(bytes, offset);
}

Status SafetensorsWriter::Commit(bool durable) {
  if (durable) SYNCLINE_TRY(file_->Sync());
  SYNCLINE_TRY(files_->Rename(path_ + ".tmp", path_));
  file_.reset();
  return {};
}

}  // namespace syncline::checkpoint
