#include "payload/checkpoint_message.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "payload/pickle.h"
#include "payload/tensor_batch.h"

namespace syncline::payload {
namespace {

using base::Code;
using base::Fail;
using base::Result;
using base::Status;

constexpr std::size_t kMaxAbortBytes = 1000;

// The call that (function, arguments) stands for.
std::optional<Object> CallIn(const Value& root) {
  const auto* pair = root.As<Tuple>();
  if (pair == nullptr || pair->items.size() != 2) return std::nullopt;
  const auto* const* function = pair->items[0]->As<const PythonName*>();
  const auto* arguments = pair->items[1]->As<Tuple>();
  if (function == nullptr || arguments == nullptr) return std::nullopt;
  return Object{.name = *function, .arguments = arguments};
}

Result<CheckpointMessage> ReadBuffer(const Pickle& pickle, const Object& call,
                                     const OpenMemory& open) {
  SYNCLINE_ASSIGN(Storages storages, Storages::Open(pickle, open));
  SYNCLINE_ASSIGN(const View view, ReadTensor("of the buffer", Value{call}, storages));
  std::vector<std::unique_ptr<Memory>> memories = storages.Take();
  if (view.element->dtype != tensor::Dtype::kU8 || view.shape.size() != 1 || !IsPacked(view) ||
      memories.size() != 1) {
    return Fail(
        Code::kInvalidArgument,
        fmt::format("the buffer is torch.{} of shape {}, expected one run of torch.uint8 in "
                    "one shared memory",
                    view.element->name, tensor::ShapeText(view.shape)));
  }
  return SharedBuffer{.memory = std::move(memories[0]), .bytes = Run(view)};
}

// Where the tensor of `entry` lies in the buffer.
Status AddEntry(const Value& entry, base::ByteSpan buffer, TensorBatch& batch) {
  const auto refuse = [](std::string what) {
    return Fail(Code::kInvalidArgument, std::move(what));
  };
  const auto* fields = entry.As<Dict>();
  if (fields == nullptr) return refuse(fmt::format("expected a dict, found {}", KindOf(entry)));
  const auto field = [&](std::string_view key) { return Find(*fields, key); };
  for (const char* key : {"name", "shape", "dtype", "offset"}) {
    if (field(key) == nullptr) return refuse(fmt::format("no field \"{}\"", key));
  }
  const auto* name = field("name")->As<String>();
  if (name == nullptr) return refuse(fmt::format("name is {}", KindOf(*field("name"))));
  const auto bad = [&](std::string_view key, std::string_view expected) {
    return refuse(fmt::format("tensor {}: {} is {}, expected {}", Quoted(name->text), key,
                              KindOf(*field(key)), expected));
  };
  std::optional<std::vector<std::uint64_t>> shape = ReadSizes(*field("shape"));
  if (!shape) return bad("shape", "integers from 0 up");
  const auto* const* type = field("dtype")->As<const PythonName*>();
  if (type == nullptr || (*type)->symbol != Symbol::kElementType) {
    return bad("dtype", "an element type of torch");
  }
  const auto* offset = field("offset")->As<std::int64_t>();
  if (offset == nullptr || *offset < 0) return bad("offset", "an integer from 0 up");
  const ElementType& element = *(*type)->element;
  const Result<std::uint64_t> count = tensor::ElementCount(*shape);
  const auto start = static_cast<std::uint64_t>(*offset);
  std::uint64_t bytes = 0;
  if (!count || __builtin_mul_overflow(*count, element.bytes, &bytes) || start > buffer.size() ||
      bytes > buffer.size() - start) {
    return refuse(fmt::format(
        "tensor {}: torch.{} of shape {} at offset {} is not inside of the buffer of {} bytes",
        Quoted(name->text), element.name, tensor::ShapeText(*shape), start, buffer.size()));
  }
  return batch.Add(name->text, element, *std::move(shape), buffer.subspan(start, bytes));
}

Result<CheckpointMessage> ReadEntries(const List& list, base::ByteSpan buffer) {
  auto batch = std::make_unique<TensorBatch>(0);
  for (std::size_t i = 0; i < list.items.size(); ++i) {
    Status added = AddEntry(*list.items[i], buffer, *batch);
    if (!added) return Annotate(std::move(added).error(), fmt::format("entry {}", i));
  }
  return batch;
}

Abort ReadAbort(const Object& exception) {
  Abort abort{std::string(exception.name->name)};
  for (const Ref argument : exception.arguments->items) {
    const auto* text = argument->As<String>();
    if (text != nullptr) abort.text += fmt::format(": {}", Quoted(text->text, kMaxAbortBytes));
    if (abort.text.size() > kMaxAbortBytes) break;
  }
  return abort;
}

}  // namespace

Result<CheckpointMessage> ReadCheckpointMessage(base::ByteSpan message, base::ByteSpan buffer,
                                                const OpenMemory& open) {
  SYNCLINE_ASSIGN(const Pickle pickle, Pickle::Read(message));
  const Value& root = pickle.root();
  if (root.As<std::monostate>() != nullptr) return Nothing{};
  if (const auto* list = root.As<List>()) return ReadEntries(*list, buffer);
  if (const std::optional<Object> call = CallIn(root)) return ReadBuffer(pickle, *call, open);
  const auto* object = root.As<Object>();
  if (object != nullptr && object->name->symbol == Symbol::kException) return ReadAbort(*object);
  // The tensor itself, instead of what reduce_tensor gives of it.
  if (object != nullptr && IsTensor(root)) return ReadBuffer(pickle, *object, open);
  return Fail(Code::kInvalidArgument,
              fmt::format("expected the handle of a buffer, a list of tensors, None or an "
                          "exception, found {}",
                          KindOf(root)));
}

}  // namespace syncline::payload
