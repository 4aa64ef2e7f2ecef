#include "payload/torch_tensor.h"

#include <fmt/format.h>

#include <set>
#include <span>
#include <string>

namespace syncline::payload {
namespace {

using base::Code;
using base::Fail;
using base::Result;

using Arguments = std::span<const Ref>;

// The call's arguments if it is one of that function with so many of them, or more.
std::optional<Arguments> CallOf(const Value& value, Symbol symbol, std::size_t at_least) {
  const auto* object = value.As<Object>();
  if (object == nullptr || object->name->symbol != symbol) return std::nullopt;
  const Arguments arguments = object->arguments->items;
  if (arguments.size() < at_least) return std::nullopt;
  return arguments;
}

bool IsClass(const Value& value, Symbol symbol) {
  const auto* const* name = value.As<const PythonName*>();
  return name != nullptr && (*name)->symbol == symbol;
}

const ElementType* ElementOf(const Value& value) {
  const auto* const* name = value.As<const PythonName*>();
  return name == nullptr ? nullptr : (*name)->element;
}

std::optional<std::uint64_t> Count(const Value& value) {
  const auto* number = value.As<std::int64_t>();
  if (number == nullptr || *number < 0) return std::nullopt;
  return static_cast<std::uint64_t>(*number);
}

// rebuild_storage_filename(class, manager, name, size[, element type]): size in bytes, or in
// elements if their type is given.
struct SharedStorage {
  std::string_view name;
  std::uint64_t bytes;
};

std::optional<SharedStorage> ReadShared(Arguments arguments) {
  if (arguments.size() < 4 || arguments.size() > 5) return std::nullopt;
  const auto* name = arguments[2]->As<base::ByteSpan>();
  const std::optional<std::uint64_t> size = Count(*arguments[3]);
  if (name == nullptr || !size) return std::nullopt;
  SharedStorage shared{base::AsText(*name), *size};
  if (arguments.size() == 5) {
    const ElementType* element = ElementOf(*arguments[4]);
    if (element == nullptr || __builtin_mul_overflow(*size, element->bytes, &shared.bytes)) {
      return std::nullopt;
    }
  }
  return shared;
}

struct TypedStorage {
  const ElementType* element;
  base::ByteSpan bytes;
};

// A storage without its element type.
Result<base::ByteSpan> ReadUntyped(const Value& value, const Storages& storages) {
  if (CallOf(value, Symbol::kRebuildStorageEmpty, 1)) return base::ByteSpan{};
  const auto* object = value.As<Object>();
  const base::ByteSpan* bytes = object == nullptr ? nullptr : storages.Find(*object);
  if (bytes != nullptr) return *bytes;
  return Fail(Code::kInvalidArgument, fmt::format("{} stands for a storage", KindOf(value)));
}

Result<TypedStorage> ReadStorage(const Value& value, const Storages& storages) {
  std::optional<Arguments> call = CallOf(value, Symbol::kRebuildTypedStorage, 2);
  if (!call) call = CallOf(value, Symbol::kRebuildTypedStorageChild, 2);
  if (call) {
    const ElementType* element = ElementOf(*(*call)[1]);
    if (element == nullptr) {
      return Fail(Code::kInvalidArgument,
                  fmt::format("{} stands for an element type", KindOf(*(*call)[1])));
    }
    SYNCLINE_ASSIGN(const base::ByteSpan bytes, ReadUntyped(*(*call)[0], storages));
    return TypedStorage{element, bytes};
  }
  SYNCLINE_ASSIGN(const base::ByteSpan bytes, ReadUntyped(value, storages));
  const std::optional<Arguments> shared = CallOf(value, Symbol::kRebuildStorageFilename, 5);
  if (!shared) return Fail(Code::kInvalidArgument, "a storage without an element type");
  return TypedStorage{ElementOf(*(*shared)[4]), bytes};
}

Result<View> ReadView(const Value& storage, const Value& offset, const Value& size,
                      const Value& stride, const Storages& storages) {
  SYNCLINE_ASSIGN(const TypedStorage typed, ReadStorage(storage, storages));
  const std::optional<std::uint64_t> start = Count(offset);
  std::optional<std::vector<std::uint64_t>> shape = ReadSizes(size);
  std::optional<std::vector<std::uint64_t>> strides = ReadSizes(stride);
  if (!start || !shape || !strides) {
    return Fail(Code::kInvalidArgument,
                "offset, size or stride is not made of integers from 0 up, or of too many");
  }
  View view{.element = typed.element,
            .storage = typed.bytes,
            .offset = *start,
            .shape = *std::move(shape),
            .strides = *std::move(strides)};
  SYNCLINE_TRY(CheckView(view));
  return view;
}

// (class, size, stride, offset, storage class, element type, device, handle, …). It is only read
// for its device.
std::unexpected<base::Error> RefuseCuda(std::string_view name, Arguments arguments) {
  std::string device = "unknown";
  if (const auto* index = arguments[6]->As<std::int64_t>()) device = fmt::format("{}", *index);
  if (const auto* uuid = arguments[6]->As<String>()) device = Quoted(uuid->text);
  return Fail(
      Code::kInvalidArgument,
      fmt::format("tensor {} is on a CUDA device ({}); this engine runs on CPU: send a copy in CPU "
                  "memory with torch's sharing strategy \"file_system\", or as safetensors",
                  Quoted(name), device));
}

}  // namespace

Result<Storages> Storages::Open(const Pickle& pickle, const OpenMemory& open) {
  Storages storages;
  std::set<std::string_view> names;
  for (const Value& value : pickle.values()) {
    const auto* object = value.As<Object>();
    if (object == nullptr || object->name->symbol != Symbol::kRebuildStorageFilename) continue;
    const std::optional<SharedStorage> shared = ReadShared(object->arguments->items);
    if (!shared) {
      return Fail(Code::kInvalidArgument,
                  "rebuild_storage_filename without a name in bytes and a size");
    }
    SYNCLINE_ASSIGN(std::unique_ptr<Memory> memory, open(shared->name, shared->bytes));
    storages.spans_[object] = memory->bytes();
    if (names.insert(shared->name).second) storages.bytes_ += memory->bytes().size();
    storages.memories_.push_back(std::move(memory));
  }
  return storages;
}

const base::ByteSpan* Storages::Find(const Object& storage) const {
  const auto found = spans_.find(&storage);
  return found == spans_.end() ? nullptr : &found->second;
}

bool IsTensor(const Value& value) {
  const auto* object = value.As<Object>();
  if (object == nullptr) return false;
  switch (object->name->symbol) {
    case Symbol::kRebuildTensor:
    case Symbol::kRebuildTensorV2:
    case Symbol::kRebuildParameter:
    case Symbol::kRebuildCudaTensor:
      return true;
    default:
      return false;
  }
}

Result<View> ReadTensor(std::string_view name, const Value& tensor, const Storages& storages) {
  const Value* inner = &tensor;
  // _rebuild_parameter(data, requires_grad, hooks), whose data is no parameter again.
  if (const auto parameter = CallOf(tensor, Symbol::kRebuildParameter, 1)) inner = (*parameter)[0];
  if (const auto cuda = CallOf(*inner, Symbol::kRebuildCudaTensor, 15)) {
    return RefuseCuda(name, *cuda);
  }
  const auto read = [&]() -> Result<View> {
    // rebuild_tensor(class, storage, (offset, size, stride, requires_grad))
    if (const auto call = CallOf(*inner, Symbol::kRebuildTensor, 3)) {
      const auto* metadata = (*call)[2]->As<Tuple>();
      if (!IsClass(*(*call)[0], Symbol::kTensor) || metadata == nullptr ||
          metadata->items.size() != 4) {
        return Fail(Code::kInvalidArgument, "the arguments of rebuild_tensor are of another kind");
      }
      const std::vector<Ref>& items = metadata->items;
      return ReadView(*(*call)[1], *items[0], *items[1], *items[2], storages);
    }
    // _rebuild_tensor_v2(storage, offset, size, stride, …)
    if (const auto call = CallOf(*inner, Symbol::kRebuildTensorV2, 4)) {
      return ReadView(*(*call)[0], *(*call)[1], *(*call)[2], *(*call)[3], storages);
    }
    return Fail(Code::kInvalidArgument, fmt::format("expected a tensor, found {}", KindOf(*inner)));
  };
  Result<View> view = read();
  if (!view) return Annotate(std::move(view).error(), fmt::format("tensor {}", Quoted(name)));
  return view;
}

std::optional<std::vector<std::uint64_t>> ReadSizes(const Value& value) {
  const Value* sizes = &value;
  if (const auto size = CallOf(value, Symbol::kSize, 1)) sizes = (*size)[0];
  const std::vector<Ref>* items = nullptr;
  if (const auto* tuple = sizes->As<Tuple>()) items = &tuple->items;
  if (const auto* list = sizes->As<List>()) items = &list->items;
  if (items == nullptr || items->size() > kMaxDimensions) return std::nullopt;
  std::vector<std::uint64_t> counts;
  counts.reserve(items->size());
  for (const Ref item : *items) {
    const std::optional<std::uint64_t> count = Count(*item);
    if (!count) return std::nullopt;
    counts.push_back(*count);
  }
  return counts;
}

}  // namespace syncline::payload
