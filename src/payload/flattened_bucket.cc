#include "payload/flattened_bucket.h"

#include <fmt/format.h>

namespace syncline::payload {
namespace {

using base::Code;
using base::Fail;
using base::Result;
using base::Status;

// The one tensor's bytes. Indices count units of it.
struct Flat {
  base::ByteSpan bytes;
  std::uint64_t unit;
};

struct Metadata {
  std::string_view name;
  std::vector<std::uint64_t> shape;
  const ElementType* element = nullptr;
  std::uint64_t start = 0;
  std::uint64_t end = 0;
};

std::unexpected<base::Error> RefuseField(std::string_view name, std::string_view field, Ref found) {
  return Fail(Code::kInvalidArgument,
              fmt::format("tensor {}: \"{}\" of its metadata is {}", Quoted(name), field,
                          found == nullptr ? "not there" : KindOf(*found)));
}

Result<std::uint64_t> ReadIndex(const Dict& fields, std::string_view name, std::string_view field) {
  const Ref found = Find(fields, field);
  const auto* index = found == nullptr ? nullptr : found->As<std::int64_t>();
  if (index == nullptr) return RefuseField(name, field, found);
  if (*index < 0) {
    return Fail(Code::kInvalidArgument,
                fmt::format("tensor {}: \"{}\" is {}", Quoted(name), field, *index));
  }
  return static_cast<std::uint64_t>(*index);
}

Result<Metadata> ReadMetadata(const Value& value) {
  const auto* object = value.As<Object>();
  if (object == nullptr || object->name->symbol != Symbol::kTensorMetadata ||
      object->state == nullptr) {
    return Fail(Code::kInvalidArgument,
                fmt::format("expected FlattenedTensorMetadata, found {}", KindOf(value)));
  }
  const Dict& fields = *object->state;
  Metadata metadata;
  const Ref name = Find(fields, "name");
  const auto* text = name == nullptr ? nullptr : name->As<String>();
  if (text == nullptr) return RefuseField("without a name", "name", name);
  metadata.name = text->text;
  const Ref shape = Find(fields, "shape");
  auto sizes = shape == nullptr ? std::nullopt : ReadSizes(*shape);
  if (!sizes) return RefuseField(metadata.name, "shape", shape);
  metadata.shape = *std::move(sizes);
  const Ref dtype = Find(fields, "dtype");
  const auto* const* element = dtype == nullptr ? nullptr : dtype->As<const PythonName*>();
  if (element == nullptr || (*element)->symbol != Symbol::kElementType) {
    return RefuseField(metadata.name, "dtype", dtype);
  }
  metadata.element = (*element)->element;
  SYNCLINE_ASSIGN(metadata.start, ReadIndex(fields, metadata.name, "start_idx"));
  SYNCLINE_ASSIGN(metadata.end, ReadIndex(fields, metadata.name, "end_idx"));
  SYNCLINE_ASSIGN(const std::uint64_t count, ReadIndex(fields, metadata.name, "numel"));
  if (metadata.start > metadata.end || count != metadata.end - metadata.start) {
    return Fail(Code::kInvalidArgument,
                fmt::format("tensor {}: start_idx {}, end_idx {} and numel {} do not agree",
                            Quoted(metadata.name), metadata.start, metadata.end, count));
  }
  return metadata;
}

// Indices count bytes where the flat tensor is made of bytes, else elements of its type: the older
// of two generations of the format.
Result<Flat> ReadFlat(const Value& value, const Storages& storages, TensorBatch& batch) {
  constexpr std::string_view kName = "flattened_tensor";
  SYNCLINE_ASSIGN(const View view, ReadTensor(kName, value, storages));
  if (view.shape.size() != 1) {
    return Fail(Code::kInvalidArgument,
                fmt::format("flattened_tensor has shape {}, expected one dimension",
                            tensor::ShapeText(view.shape)));
  }
  SYNCLINE_ASSIGN(const base::ByteSpan bytes, batch.Packed(kName, view));
  return Flat{bytes, view.element->bytes};
}

}  // namespace

Status AddBucket(const Value& root, const Storages& storages, TensorBatch& batch) {
  const auto* dict = root.As<Dict>();
  const Ref tensor = dict == nullptr ? nullptr : Find(*dict, "flattened_tensor");
  const Ref list = dict == nullptr ? nullptr : Find(*dict, "metadata");
  const auto* entries = list == nullptr ? nullptr : list->As<List>();
  if (tensor == nullptr || entries == nullptr) {
    return Fail(Code::kInvalidArgument,
                fmt::format("expected a dict of \"flattened_tensor\" and a list \"metadata\", "
                            "found {}{}",
                            KindOf(root), dict == nullptr ? "" : " without them"));
  }
  SYNCLINE_ASSIGN(const Flat flat, ReadFlat(*tensor, storages, batch));
  const std::uint64_t size = flat.bytes.size() / flat.unit;
  for (const Ref entry : entries->items) {
    SYNCLINE_ASSIGN(Metadata metadata, ReadMetadata(*entry));
    if (metadata.end > size) {
      return Fail(Code::kInvalidArgument,
                  fmt::format("tensor {}: end_idx {}, but the flattened tensor ends at {}",
                              Quoted(metadata.name), metadata.end, size));
    }
    const base::ByteSpan bytes =
        flat.bytes.subspan(metadata.start * flat.unit, (metadata.end - metadata.start) * flat.unit);
    SYNCLINE_TRY(batch.Add(metadata.name, *metadata.element, std::move(metadata.shape), bytes));
  }
  return {};
}

}  // namespace syncline::payload
