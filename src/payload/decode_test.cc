#include "payload/decode.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "base/result_matchers.h"
#include "checkpoint/safetensors.h"
#include "payload/pickle_builder.h"

namespace syncline::payload {
namespace {

using base::Code;
using base::Result;
using testing::ElementsAre;
using namespace std::string_literals;

// Shared memory of a sender: what lies under each name, and what is held of it now.
class Sender {
 public:
  std::string Add(std::string content) {
    const std::string name = fmt::format("/torch_7_8_{}", contents_.size());
    contents_[name] = std::move(content);
    return name;
  }
  // Bytes 0, 1, 2 …
  std::string AddBytes(std::size_t size) {
    std::string content;
    for (std::size_t i = 0; i < size; ++i) content += static_cast<char>(i);
    return Add(content);
  }

  OpenMemory Opener() {
    return [this](std::string_view name, std::uint64_t bytes) -> Result<std::unique_ptr<Memory>> {
      const auto found = contents_.find(std::string(name));
      if (found == contents_.end()) return base::Fail(Code::kNotFound, "gone");
      if (found->second.size() < bytes) return base::Fail(Code::kInvalidArgument, "too small");
      ++opened;
      ++held;
      return std::make_unique<Held>(*this, base::AsBytes(found->second).first(bytes));
    };
  }

  int opened = 0;
  int held = 0;

 private:
  class Held final : public Memory {
   public:
    Held(Sender& sender, base::ByteSpan bytes) : sender_(&sender), bytes_(bytes) {}
    ~Held() override { --sender_->held; }
    base::ByteSpan bytes() const override { return bytes_; }
    base::Status Intact() const override { return {}; }

   private:
    Sender* sender_;
    base::ByteSpan bytes_;
  };

  std::map<std::string, std::string> contents_;
};

class Decoding : public testing::Test {
 protected:
  Result<std::unique_ptr<Batch>> Decode(const PickleBuilder& builder, Format format,
                                        std::uint32_t rank = 0) {
    message_ = builder.Text();
    return DecodeWith(base::AsBytes(message_), format, rank, sender_.Opener());
  }
  Result<std::unique_ptr<Batch>> Plain(const PickleBuilder& builder, std::uint32_t rank = 0) {
    return Decode(builder, Format::kPlain, rank);
  }

  // What a batch holds: "name dtype [shape] bytes in hex".
  static std::vector<std::string> Lines(const Result<std::unique_ptr<Batch>>& batch) {
    if (!batch) return {"error: " + batch.error().message};
    std::vector<std::string> lines;
    for (const NamedTensor& tensor : (*batch)->tensors()) {
      const auto* bytes = reinterpret_cast<const std::uint8_t*>(tensor.bytes.data());
      lines.push_back(fmt::format("{} {} {} {}", tensor.name, Name(tensor.dtype),
                                  tensor::ShapeText(tensor.shape),
                                  base::ToHex({bytes, tensor.bytes.size()})));
    }
    return lines;
  }

  Sender sender_;
  std::string message_;
};

using PlainPayload = Decoding;

TEST_F(PlainPayload, IsAListOfNamesAndTensors) {
  const std::string one = sender_.AddBytes(8);
  const std::string two = sender_.AddBytes(4);
  const auto batch = Plain(PickleBuilder()
                               .Raw("](")
                               .String("a")
                               .Tensor(one, 8, "bfloat16", 0, {2, 2}, {2, 1})
                               .Raw("\x86")
                               .String("b")
                               .Tensor(two, 4, "bool", 1, {3}, {1})
                               .Raw("\x86"
                                    "e"));
  EXPECT_THAT(Lines(batch), ElementsAre("a BF16 [2, 2] 0001020304050607", "b BOOL [3] 010203"));
  EXPECT_EQ(sender_.held, 2);
}

TEST_F(PlainPayload, MayBeADict) {
  const std::string name = sender_.AddBytes(4);
  const auto batch =
      Plain(PickleBuilder().Raw("}").String("a").Tensor(name, 4, "float32", 0, {}, {}).Raw("s"));
  EXPECT_THAT(Lines(batch), ElementsAre("a F32 [] 00010203"));
}

TEST_F(PlainPayload, MayBeEmpty) {
  EXPECT_THAT(Lines(Plain(PickleBuilder().Raw("]"))), ElementsAre());
  EXPECT_THAT(Lines(Plain(PickleBuilder().Raw("}"))), ElementsAre());
}

TEST_F(PlainPayload, Br40_ViewsArePacked) {
  const std::string name = sender_.AddBytes(6);
  const auto view = [&](std::int32_t offset, std::vector<std::int64_t> size,
                        std::vector<std::int64_t> stride) {
    return Lines(Plain(PickleBuilder()
                           .Raw("}")
                           .String("a")
                           .Tensor(name, 6, "uint8", offset, size, stride)
                           .Raw("s")));
  };
  EXPECT_THAT(view(0, {2, 3}, {1, 2}), ElementsAre("a U8 [2, 3] 000204010305"));
  EXPECT_THAT(view(1, {2, 2}, {3, 1}), ElementsAre("a U8 [2, 2] 01020405"));
  EXPECT_THAT(view(5, {2, 2}, {0, 0}), ElementsAre("a U8 [2, 2] 05050505"));
  EXPECT_THAT(view(0, {0, 3}, {3, 1}), ElementsAre("a U8 [0, 3] "));
  EXPECT_THAT(view(1, {2, 3}, {3, 1}).at(0), testing::HasSubstr("beyond its storage of 6 bytes"));
}

TEST_F(PlainPayload, TensorsMayShareAStorage) {
  const std::string name = sender_.AddBytes(4);
  const auto tensor = [](PickleBuilder& builder, std::string_view key, std::int32_t offset) {
    builder.String(key).Reduction("rebuild_tensor").Class("torch", "Tensor");
    builder.Raw("h\x00"s).View(offset, {2}, {1}).Raw("\x87Rs");
  };
  PickleBuilder inside;
  inside.Raw("}").String("a").Reduction("rebuild_tensor").Class("torch", "Tensor");
  inside.Reduction("rebuild_typed_storage").Storage(name, 4).Typed("uint8").Raw("\x94");
  inside.View(0, {2}, {1}).Raw("\x87Rs");
  tensor(inside, "b", 2);
  EXPECT_THAT(Lines(Plain(inside)), ElementsAre("a U8 [2] 0001", "b U8 [2] 0203"));
  EXPECT_EQ(sender_.opened, 1);
}

TEST_F(PlainPayload, OtherWaysToPickleATensor) {
  const std::string name = sender_.AddBytes(8);
  const auto dict = [&](const auto& tensor) {
    PickleBuilder builder;
    builder.Raw("}").String("a");
    tensor(builder);
    return Lines(Plain(builder.Raw("s")));
  };
  const std::string expected = "a I16 [2] 02030405";
  // A parameter's class, a storage of a class of its own, and one with its type in the call.
  EXPECT_THAT(dict([&](PickleBuilder& builder) {
                builder.Reduction("rebuild_tensor").Class("torch.nn.parameter", "Parameter");
                builder.Reduction("rebuild_typed_storage_child").Storage(name, 8);
                builder.Class("torch", "ShortStorage").Raw("\x86R").View(1, {2}, {1}).Raw("\x87R");
              }),
              ElementsAre(expected));
  EXPECT_THAT(dict([&](PickleBuilder& builder) {
                builder.Class("torch._utils", "_rebuild_tensor_v2").Raw("(");
                builder.Reduction("rebuild_storage_filename").Raw("(");
                builder.Class("torch.storage", "TypedStorage").Bytes("").Bytes(name).Int(4);
                builder.Class("torch", "int16").Raw("tR").Int(1).Ints({2}).Ints({1});
                builder.Raw("\x89").Class("collections", "OrderedDict").Raw(")RtR");
              }),
              ElementsAre(expected));
  EXPECT_THAT(dict([&](PickleBuilder& builder) {
                builder.Class("torch._utils", "_rebuild_parameter");
                builder.Tensor(name, 8, "int16", 1, {2}, {1}).Raw("\x88)\x87R");
              }),
              ElementsAre(expected));
  // torch's default strategy has empty storages without shared memory.
  EXPECT_THAT(dict([&](PickleBuilder& builder) {
                builder.Reduction("rebuild_tensor").Class("torch", "Tensor");
                builder.Reduction("rebuild_typed_storage").Reduction("rebuild_storage_empty");
                builder.Class("torch.storage", "UntypedStorage").Raw("\x85R").Typed("int16");
                builder.View(0, {0}, {1}).Raw("\x87R");
              }),
              ElementsAre("a I16 [0] "));
  // One element of it is two of ours.
  EXPECT_THAT(dict([&](PickleBuilder& builder) {
                builder.Tensor(name, 8, "float4_e2m1fn_x2", 2, {2, 3}, {3, 1});
              }),
              ElementsAre("a F4 [2, 6] 020304050607"));
}

TEST_F(PlainPayload, ErrorsNameTheTensor) {
  const std::string name = sender_.AddBytes(8);
  const auto error = [&](PickleBuilder& builder) { return Lines(Plain(builder)).at(0); };
  PickleBuilder twice;
  for (int i = 0; i < 2; ++i) {
    twice.Raw(i == 0 ? "](" : "").String("w").Tensor(name, 8, "uint8", 0, {8}, {1}).Raw("\x86");
  }
  EXPECT_EQ(error(twice.Raw("e")), "error: tensor w comes twice in one message");
  PickleBuilder none;
  EXPECT_EQ(error(none.Raw("}").String("w").Raw("Ns")),
            "error: tensor w: expected a tensor, found None");
  PickleBuilder negative;
  negative.Raw("}").String("w").Tensor(name, 8, "uint8", 0, {-1}, {1}).Raw("s");
  EXPECT_THAT(error(negative), testing::HasSubstr("tensor w: offset, size or stride"));
  PickleBuilder backwards;
  backwards.Raw("}").String("w").Tensor(name, 8, "uint8", 7, {2}, {-1}).Raw("s");
  EXPECT_THAT(error(backwards), testing::HasSubstr("tensor w: offset, size or stride"));
  PickleBuilder number;
  EXPECT_EQ(error(number.Raw("K\x01")),
            "error: expected a list of (name, tensor) or a dict, found an integer");
  PickleBuilder pair;
  EXPECT_EQ(error(pair.Raw("]N\x85"
                           "a")),
            "error: entry 0: expected (name, tensor), found a tuple");
  for (const std::string_view bad : {"", "a\nb", "\xff", "\xc0\x80", "\xed\xa0\x80", "a\x7f"}) {
    PickleBuilder named;
    named.Raw("}").String(bad).Tensor(name, 8, "uint8", 0, {8}, {1}).Raw("s");
    EXPECT_THAT(error(named), testing::HasSubstr("is no name of a tensor"));
  }
  PickleBuilder good;
  good.Raw("}").String("модель.вес 🙂").Tensor(name, 8, "uint8", 0, {1}, {1}).Raw("s");
  EXPECT_EQ(error(good), "модель.вес 🙂 U8 [1] 00");
}

TEST_F(PlainPayload, MemoryOfTheSenderIsLetGoInAnyCase) {
  const std::string name = sender_.AddBytes(8);
  PickleBuilder builder;
  builder.Raw("}").String("a").Tensor(name, 8, "uint8", 0, {8}, {1}).Raw("s");
  {
    const auto batch = Plain(builder);
    ASSERT_OK(batch);
    EXPECT_EQ(sender_.held, 1);
  }
  EXPECT_EQ(sender_.held, 0);
  builder.String("b").Raw("Ns");
  EXPECT_FALSE(Plain(builder).has_value());
  EXPECT_EQ(sender_.opened, 2);
  EXPECT_EQ(sender_.held, 0);
  PickleBuilder gone;
  gone.Raw("}").String("a").Tensor("/torch_0_0_0", 8, "uint8", 0, {8}, {1}).Raw("s");
  EXPECT_ERROR(Plain(gone), Code::kNotFound, "gone");
}

// A byte can be expanded to any size.
TEST_F(PlainPayload, Br46_WhatIsPackedIsBounded) {
  const std::string name = sender_.AddBytes(1);
  PickleBuilder huge;
  huge.Raw("}").String("a").Tensor(name, 1, "uint8", 0, {std::int64_t{1} << 50}, {0}).Raw("s");
  EXPECT_ERROR(Plain(huge), Code::kLimitExceeded, "tensor a: 1125899906842624 bytes when packed");
  PickleBuilder many;
  many.Raw("}");
  for (int i = 0; i < 3; ++i) {
    many.String(std::to_string(i)).Tensor(name, 1, "uint8", 0, {100'000'000}, {0}).Raw("s");
  }
  EXPECT_ERROR(Plain(many), Code::kLimitExceeded, "tensor 2: 100000000 bytes when packed");
}

TEST_F(PlainPayload, DeviceMemoryIsRefusedByName) {
  const auto cuda = [](std::string_view module, std::string_view function,
                       const PickleBuilder& device) {
    PickleBuilder builder;
    builder.Raw("}").String("w").Class(module, function).Raw("(");
    builder.Class("torch", "Tensor").Ints({2}).Ints({1}).Int(0);
    builder.Class("torch.storage", "UntypedStorage").Class("torch", "float32");
    const std::string pickled = device.Text();
    builder.Raw(std::string_view(pickled).substr(2, pickled.size() - 3));
    builder.Bytes("handle").Int(8).Int(0).Raw("\x89").Bytes("counter").Int(0).Bytes("event");
    return builder.Raw("\x88tRs");
  };
  EXPECT_ERROR(Plain(cuda("torch.multiprocessing.reductions", "rebuild_cuda_tensor",
                          PickleBuilder().Int(3))),
               Code::kInvalidArgument, "tensor w is on a CUDA device (3); this engine runs on CPU");
  EXPECT_ERROR(Plain(cuda("sglang.srt.utils.patch_torch", "_rebuild_cuda_tensor_modified",
                          PickleBuilder().String("4f3a-uuid"))),
               Code::kInvalidArgument, "(4f3a-uuid)");
  EXPECT_ERROR(Plain(PickleBuilder().Raw("}").String("w").Reduction("rebuild_storage_fd")),
               Code::kInvalidArgument, "set_sharing_strategy(\"file_system\")");
}

class Bucket : public Decoding {
 protected:
  static constexpr std::string_view kModule = "sglang.srt.weight_sync.tensor_bucket";

  // One entry of the metadata.
  struct Entry {
    std::string name;
    std::vector<std::int64_t> shape;
    std::string dtype;
    std::int32_t start;
    std::int32_t end;
    std::int32_t count;
  };

  static PickleBuilder Make(const std::string& storage, std::int32_t bytes,
                            std::string_view flat_type, std::int64_t flat_size,
                            const std::vector<Entry>& entries, std::string_view module = kModule) {
    PickleBuilder builder;
    builder.Raw("}(").String("flattened_tensor");
    builder.Tensor(storage, bytes, flat_type, 0, {flat_size}, {1}).String("metadata").Raw("]");
    for (const Entry& entry : entries) {
      builder.Class(module, "FlattenedTensorMetadata").Raw(")\x81}(");
      builder.String("name").String(entry.name);
      builder.String("shape").Class("torch", "Size").Ints(entry.shape).Raw("\x85R");
      builder.String("dtype").Class("torch", entry.dtype);
      builder.String("start_idx").Int(entry.start).String("end_idx").Int(entry.end);
      builder.String("numel").Int(entry.count).Raw("uba");
    }
    return builder.Raw("u");
  }

  std::vector<std::string> Read(const PickleBuilder& builder) {
    return Lines(Decode(builder, Format::kFlattenedBucket));
  }
};

TEST_F(Bucket, IndicesAreBytesOfAFlatTensorOfBytes) {
  const std::string name = sender_.AddBytes(9);
  EXPECT_THAT(Read(Make(name, 9, "uint8", 9,
                        {{"a", {3}, "bool", 0, 3, 3}, {"b", {1, 3}, "bfloat16", 3, 9, 6}})),
              ElementsAre("a BOOL [3] 000102", "b BF16 [1, 3] 030405060708"));
}

TEST_F(Bucket, IndicesAreElementsOfAnotherFlatTensor) {
  const std::string name = sender_.AddBytes(8);
  EXPECT_THAT(Read(Make(name, 8, "bfloat16", 4,
                        {{"a", {}, "bfloat16", 0, 1, 1}, {"b", {3}, "bfloat16", 1, 4, 3}},
                        "sglang.srt.model_executor.model_runner")),
              ElementsAre("a BF16 [] 0001", "b BF16 [3] 020304050607"));
}

TEST_F(Bucket, MayBeEmpty) {
  const std::string name = sender_.AddBytes(0);
  EXPECT_THAT(Read(Make(name, 0, "uint8", 0, {})), ElementsAre());
  EXPECT_THAT(Read(Make(name, 0, "uint8", 0, {{"a", {0, 4}, "float32", 0, 0, 0}})),
              ElementsAre("a F32 [0, 4] "));
}

TEST_F(Bucket, ErrorsNameTheTensor) {
  const std::string name = sender_.AddBytes(8);
  const auto error = [&](const Entry& entry) {
    return Read(Make(name, 8, "uint8", 8, {entry})).at(0);
  };
  EXPECT_EQ(error({"w", {9}, "uint8", 0, 9, 9}),
            "error: tensor w: end_idx 9, but the flattened tensor ends at 8");
  EXPECT_EQ(error({"w", {2}, "uint8", 3, 1, -2}), "error: tensor w: \"numel\" is -2");
  EXPECT_EQ(error({"w", {2}, "uint8", 3, 1, 2}),
            "error: tensor w: start_idx 3, end_idx 1 and numel 2 do not agree");
  EXPECT_EQ(error({"w", {2}, "uint8", -1, 1, 2}), "error: tensor w: \"start_idx\" is -1");
  EXPECT_EQ(error({"w", {2}, "uint8", 0, 2, 3}),
            "error: tensor w: start_idx 0, end_idx 2 and numel 3 do not agree");
  EXPECT_EQ(error({"w", {3}, "bfloat16", 0, 4, 4}),
            "error: tensor w: expected 6 bytes, found 4; it is torch.bfloat16 of shape [3]");
  EXPECT_EQ(error({"w", {-2}, "uint8", 0, 2, 2}),
            "error: tensor w: \"shape\" of its metadata is an object of torch.Size");
  EXPECT_EQ(error({"w", {2}, "Size", 0, 2, 2}),
            "error: tensor w: \"dtype\" of its metadata is torch.Size");
  EXPECT_EQ(error({"w", {std::int64_t{1} << 62, 8}, "uint8", 0, 2, 2}),
            "error: tensor w: the sizes overflow 64 bits; it is torch.uint8 of shape "
            "[4611686018427387904, 8]");
  EXPECT_EQ(
      Read(Make(name, 8, "uint8", 8, {{"w", {1}, "uint8", 0, 1, 1}, {"w", {1}, "uint8", 1, 2, 1}}))
          .at(0),
      "error: tensor w comes twice in one message");
  EXPECT_THAT(Read(PickleBuilder().Raw("}")).at(0), testing::HasSubstr("a dict without them"));
  EXPECT_THAT(Read(PickleBuilder().Raw("]")).at(0), testing::HasSubstr("found a list"));
}

class Local : public Decoding {
 protected:
  // A list of one tensor, with what is in each rank's place.
  static PickleBuilder Make(
      const PickleBuilder& values,
      std::string_view module =
          "sglang.srt.model_executor.model_runner_components.weight_updater") {
    PickleBuilder builder;
    const std::string pickled = values.Text();
    builder.Raw("](").String("w").Class(module, "LocalSerializedTensor").Raw(")\x81}");
    builder.String("values").Raw("](").Raw(std::string_view(pickled).substr(2, pickled.size() - 3));
    return builder.Raw(
        "esb\x86"
        "e");
  }
};

TEST_F(Local, EachRankTakesItsOwnBytes) {
  const std::string one = sender_.AddBytes(2);
  const std::string two = sender_.AddBytes(4);
  PickleBuilder values;
  values.Bytes(PickleBuilder().Tensor(one, 2, "uint8", 0, {2}, {1}).Text());
  values.Bytes(PickleBuilder().Tensor(two, 4, "uint8", 2, {2}, {1}).Text());
  EXPECT_THAT(Lines(Plain(Make(values), 0)), ElementsAre("w U8 [2] 0001"));
  EXPECT_EQ(sender_.opened, 1);
  EXPECT_THAT(Lines(Plain(Make(values, "sglang.srt.model_executor.model_runner"), 1)),
              ElementsAre("w U8 [2] 0203"));
  EXPECT_ERROR(Plain(Make(values), 2), Code::kInvalidArgument,
               "tensor w: values for 2 ranks, but this is rank 2");
  EXPECT_EQ(sender_.held, 0);
}

TEST_F(Local, ValuesAreReadAsStrictly) {
  const auto error = [&](const PickleBuilder& values) { return Lines(Plain(Make(values))).at(0); };
  EXPECT_EQ(error(PickleBuilder().Bytes("\x80\x04N.")),
            "error: tensor w, value of rank 0: tensor w: expected a tensor, found None");
  EXPECT_THAT(error(PickleBuilder().Bytes("\x80\x04"
                                          "cos\nsystem\n.")),
              testing::HasSubstr("os.system is not one of"));
  EXPECT_EQ(error(PickleBuilder().Int(1)),
            "error: tensor w, value of rank 0: expected bytes, found an integer");
  EXPECT_THAT(error(PickleBuilder().String("!!!!")), testing::HasSubstr("base64: character 0"));
  EXPECT_EQ(error(PickleBuilder().String("gAROLg==")),
            "error: tensor w, value of rank 0: tensor w: expected a tensor, found None");
}

// One value under many names would be read again for each.
TEST_F(Local, Br46_AValueIsNotReadAgainAndAgain) {
  const std::string storage = sender_.AddBytes(2);
  const std::string inner = PickleBuilder().Tensor(storage, 2, "uint8", 0, {2}, {1}).Text();
  PickleBuilder builder;
  builder.Class("sglang.srt.model_executor.model_runner", "LocalSerializedTensor").Raw(")\x81}");
  builder.String("values").Raw("]").Bytes(inner).Raw("asb\x94");
  PickleBuilder list;
  list.Raw("](").String("0");
  const std::string object = builder.Text();
  list.Raw(std::string_view(object).substr(2, object.size() - 3)).Raw("\x86");
  for (int i = 1; i < 100; ++i) list.String(std::to_string(i)).Raw("h\x00\x86"s);
  EXPECT_ERROR(Plain(list.Raw("e")), Code::kLimitExceeded, "larger than the message together");
  EXPECT_LT(sender_.opened, 10);
}

TEST_F(Decoding, SafetensorsPointIntoTheMessage) {
  const auto layout = checkpoint::LayOutSafetensors(
      {{"a", tensor::Dtype::kBF16, {2}}, {"b", tensor::Dtype::kU8, {3}}}, {});
  ASSERT_OK(layout);
  message_ = layout->head + "\1\2\3\4\5\6\7";
  const auto batch = DecodeWith(base::AsBytes(message_), Format::kSafetensors, 0, sender_.Opener());
  EXPECT_THAT(Lines(batch), ElementsAre("a BF16 [2] 01020304", "b U8 [3] 050607"));
  EXPECT_EQ((*batch)->tensors()[0].bytes.data(),
            base::AsBytes(message_).data() + layout->head.size());
  for (std::size_t size = 0; size < message_.size(); ++size) {
    const auto cut =
        DecodeWith(base::AsBytes(message_).first(size), Format::kSafetensors, 0, sender_.Opener());
    EXPECT_ERROR(cut, Code::kInvalidArgument, "safetensors: the ");
  }
  message_.replace(0, 8, 8, '\xff');
  EXPECT_ERROR(DecodeWith(base::AsBytes(message_), Format::kSafetensors, 0, sender_.Opener()),
               Code::kInvalidArgument, "the header length is");
}

TEST_F(Decoding, FormatsAreNotTakenForEachOther) {
  EXPECT_FALSE(Decode(PickleBuilder().Raw("]"), Format::kSafetensors).has_value());
  EXPECT_FALSE(Decode(PickleBuilder().Raw("]"), Format::kFlattenedBucket).has_value());
  EXPECT_ERROR(payload::Decode(base::AsBytes("{}"), Format::kPlain, 0), Code::kInvalidArgument,
               "not a pickle");
}

}  // namespace
}  // namespace syncline::payload
