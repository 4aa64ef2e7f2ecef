// How a message becomes a batch:
//   1. The pickle is read whole, as data. Nothing outside of the message was touched so far.
//   2. Every shared memory that it names is opened; from here on their counts go down, whether the
//      message is taken or refused.
//   3. Tensors are read one after the other, and checked against their storage. The batch is
//      returned when all are good.
#include "payload/decode.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "checkpoint/safetensors.h"
#include "payload/flattened_bucket.h"
#include "payload/tensor_batch.h"

namespace syncline::payload {
namespace {

using base::Code;
using base::Fail;
using base::Result;
using base::Status;

struct Pair {
  std::string_view name;
  Ref value;
};

// The list of pairs, or the dict, that a plain payload is.
Result<std::vector<Pair>> ReadPairs(const Value& root) {
  std::vector<Pair> pairs;
  const auto add = [&](Ref name, Ref value) -> Status {
    const auto* text = name->As<String>();
    if (text == nullptr) {
      return Fail(Code::kInvalidArgument,
                  fmt::format("entry {}: expected a name, found {}", pairs.size(), KindOf(*name)));
    }
    pairs.push_back({text->text, value});
    return {};
  };
  if (const auto* dict = root.As<Dict>()) {
    for (const auto& [name, value] : dict->items) SYNCLINE_TRY(add(name, value));
    return pairs;
  }
  const std::vector<Ref>* entries = nullptr;
  if (const auto* list = root.As<List>()) entries = &list->items;
  if (const auto* tuple = root.As<Tuple>()) entries = &tuple->items;
  if (entries == nullptr) {
    return Fail(Code::kInvalidArgument,
                fmt::format("expected a list of (name, tensor) or a dict, found {}", KindOf(root)));
  }
  for (const Ref entry : *entries) {
    const auto* pair = entry->As<Tuple>();
    if (pair == nullptr || pair->items.size() != 2) {
      return Fail(Code::kInvalidArgument, fmt::format("entry {}: expected (name, tensor), found {}",
                                                      pairs.size(), KindOf(*entry)));
    }
    SYNCLINE_TRY(add(pair->items[0], pair->items[1]));
  }
  return pairs;
}

class Decoder {
 public:
  Decoder(base::ByteSpan message, std::uint32_t rank, const OpenMemory& open,
          std::uint64_t may_expand)
      : message_(message),
        rank_(rank),
        open_(open),
        inner_bytes_left_(message.size()),
        batch_(std::make_unique<TensorBatch>(may_expand)) {}

  Result<std::unique_ptr<Batch>> Plain() {
    SYNCLINE_ASSIGN(const Pickle pickle, Pickle::Read(message_));
    SYNCLINE_ASSIGN(Storages storages, Storages::Open(pickle, open_));
    batch_->Keep(storages);
    SYNCLINE_ASSIGN(const std::vector<Pair> pairs, ReadPairs(pickle.root()));
    for (const Pair& pair : pairs) {
      const auto* object = pair.value->As<Object>();
      if (object != nullptr && object->name->symbol == Symbol::kLocalSerializedTensor) {
        SYNCLINE_TRY(AddLocal(pair.name, *object));
        continue;
      }
      SYNCLINE_ASSIGN(const View view, ReadTensor(pair.name, *pair.value, storages));
      SYNCLINE_TRY(batch_->Add(pair.name, view));
    }
    return std::move(batch_);
  }

  Result<std::unique_ptr<Batch>> FlattenedBucket() {
    SYNCLINE_ASSIGN(const Pickle pickle, Pickle::Read(message_));
    SYNCLINE_ASSIGN(Storages storages, Storages::Open(pickle, open_));
    batch_->Keep(storages);
    SYNCLINE_TRY(AddBucket(pickle.root(), storages, *batch_));
    return std::move(batch_);
  }

  Result<std::unique_ptr<Batch>> Safetensors() {
    Result<checkpoint::SafetensorsHeader> header = checkpoint::ReadSafetensorsHeader(message_);
    if (!header) {
      return Fail(Code::kInvalidArgument, fmt::format("safetensors: {}", header.error().message));
    }
    for (checkpoint::TensorInfo& info : header->tensors) {
      const base::ByteSpan bytes = message_.subspan(info.offset, info.bytes);
      SYNCLINE_TRY(batch_->Add({std::move(info.name), info.dtype, std::move(info.shape), bytes}));
    }
    return std::move(batch_);
  }

 private:
  // The tensor of this rank in LocalSerializedTensor{values: [pickle of each rank]}.
  Status AddLocal(std::string_view name, const Object& local) {
    const Ref field = local.state == nullptr ? nullptr : Find(*local.state, "values");
    const auto* values = field == nullptr ? nullptr : field->As<List>();
    if (values == nullptr) {
      return Fail(
          Code::kInvalidArgument,
          fmt::format("tensor {}: LocalSerializedTensor has no list \"values\"", Quoted(name)));
    }
    if (rank_ >= values->items.size()) {
      return Fail(Code::kInvalidArgument,
                  fmt::format("tensor {}: values for {} ranks, but this is rank {}", Quoted(name),
                              values->items.size(), rank_));
    }
    Result<base::ByteSpan> inner = InnerBytes(*values->items[rank_]);
    const auto add = [&]() -> Status {
      if (!inner) return std::unexpected(std::move(inner).error());
      SYNCLINE_ASSIGN(const Pickle pickle, Pickle::Read(*inner));
      SYNCLINE_ASSIGN(Storages storages, Storages::Open(pickle, open_));
      batch_->Keep(storages);
      SYNCLINE_ASSIGN(const View view, ReadTensor(name, pickle.root(), storages));
      return batch_->Add(name, view);
    };
    Status added = add();
    if (added) return added;
    return Annotate(std::move(added).error(),
                    fmt::format("tensor {}, value of rank {}", Quoted(name), rank_));
  }

  // The pickle inside: bytes, or a string of base64. All of them together are not more than the
  // message, unless one is used again and again to make work.
  Result<base::ByteSpan> InnerBytes(const Value& value) {
    base::ByteSpan inner;
    if (const auto* bytes = value.As<base::ByteSpan>()) {
      inner = *bytes;
    } else if (const auto* text = value.As<String>()) {
      inner = base::AsBytes(text->text);
    } else {
      return Fail(Code::kInvalidArgument, fmt::format("expected bytes, found {}", KindOf(value)));
    }
    if (inner.size() > inner_bytes_left_) {
      return Fail(Code::kLimitExceeded, "the values are larger than the message together");
    }
    inner_bytes_left_ -= inner.size();
    if (value.As<String>() == nullptr) return inner;
    SYNCLINE_ASSIGN(decoded_, DecodeBase64(base::AsText(inner)));
    return decoded_;
  }

  base::ByteSpan message_;
  std::uint32_t rank_;
  const OpenMemory& open_;
  std::uint64_t inner_bytes_left_;
  std::vector<std::byte> decoded_;  // of the tensor in work; views point to shared memory only
  std::unique_ptr<TensorBatch> batch_;
};

}  // namespace

Result<std::unique_ptr<Batch>> DecodeWith(base::ByteSpan message, Format format, std::uint32_t rank,
                                          const OpenMemory& open, std::uint64_t may_expand) {
  Decoder decoder(message, rank, open, may_expand);
  switch (format) {
    case Format::kPlain:
      return decoder.Plain();
    case Format::kFlattenedBucket:
      return decoder.FlattenedBucket();
    case Format::kSafetensors:
      return decoder.Safetensors();
  }
  return Fail(Code::kInternal, "no such format of payloads");
}

Result<std::unique_ptr<Batch>> Decode(base::ByteSpan message, Format format, std::uint32_t rank) {
  return DecodeWith(message, format, rank, OpenSharedMemory);
}

}  // namespace syncline::payload
