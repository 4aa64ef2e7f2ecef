#include "payload/checkpoint_message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/result_matchers.h"
#include "payload/memory_sender.h"
#include "payload/pickle_builder.h"

namespace syncline::payload {
namespace {

using base::Code;
using base::Result;
using testing::HasSubstr;

Result<CheckpointMessage> Read(const PickleBuilder& builder, std::string_view buffer = "") {
  const std::string text = builder.Text();
  return ReadCheckpointMessage(base::AsBytes(text), base::AsBytes(buffer));
}

// The error's text, which must be of that code.
std::string Refusal(const PickleBuilder& builder, std::string_view buffer = "",
                    Code code = Code::kInvalidArgument) {
  const auto message = Read(builder, buffer);
  if (message) return "no error";
  EXPECT_EQ(message.error().code, code);
  return message.error().message;
}

PickleBuilder Entry(std::string_view element, const std::vector<std::int64_t>& size,
                    std::int64_t offset) {
  return PickleBuilder().Raw("]").Entry("w", element, size, offset).Raw("a");
}

TEST(CheckpointMessage, TheBufferIsMappedAndCountedDown) {
  const MemorySender sender(2, "weights!");
  {
    const auto message = Read(PickleBuilder().Handle(sender.name(), 8));
    ASSERT_OK(message);
    const auto& buffer = std::get<SharedBuffer>(*message);
    EXPECT_EQ(base::AsText(buffer.bytes), "weights!");
    EXPECT_EQ(sender.count(), 2);
  }
  EXPECT_EQ(sender.count(), 1);
}

TEST(CheckpointMessage, TheTensorItselfStandsForItsHandle) {
  const MemorySender sender(2, "weights!");
  const auto message = Read(PickleBuilder().Tensor(sender.name(), 8, "uint8", 3, {4}, {1}));
  ASSERT_OK(message);
  EXPECT_EQ(base::AsText(std::get<SharedBuffer>(*message).bytes), "ghts");
}

TEST(CheckpointMessage, BuffersOfOtherKindsAreRefused) {
  const MemorySender sender(9, "weights!");
  EXPECT_THAT(Refusal(PickleBuilder().Handle(sender.name(), 8, "int8")), HasSubstr("torch.int8"));
  EXPECT_THAT(Refusal(PickleBuilder().Tensor(sender.name(), 8, "uint8", 0, {2, 4}, {4, 1})),
              HasSubstr("[2, 4]"));
  EXPECT_THAT(Refusal(PickleBuilder().Tensor(sender.name(), 8, "uint8", 0, {4}, {2})),
              HasSubstr("one run"));
  EXPECT_EQ(sender.count(), 6) << "what was opened is given back";
  EXPECT_THAT(Refusal(PickleBuilder().Handle(sender.name(), 9)), HasSubstr("72 bytes"));
  EXPECT_THAT(Refusal(PickleBuilder().Handle("/torch_1_2_3", 8), "", Code::kNotFound),
              HasSubstr("/torch_1_2_3"));
  EXPECT_THAT(Refusal(PickleBuilder().Class("torch.storage", "_load_from_bytes")),
              HasSubstr("ForkingPickler"));
}

TEST(CheckpointMessage, ABufferOnADeviceIsToldToComeOnCpu) {
  PickleBuilder cuda;
  cuda.Reduction("rebuild_cuda_tensor").Raw("(").Class("torch", "Tensor").Ints({8}).Ints({1});
  cuda.Int(0).Class("torch.storage", "TypedStorage").Class("torch", "uint8").Int(0);
  cuda.Bytes("handle").Int(16).Int(0).Raw("\x89").Bytes("counter").Int(0).Bytes("event");
  cuda.Raw("\x89t\x86");
  EXPECT_THAT(Refusal(cuda), HasSubstr("CUDA device (0); this engine runs on CPU"));
}

TEST(CheckpointMessage, TensorsLieInTheBuffer) {
  PickleBuilder list;
  list.Raw("](").Entry("a", "bfloat16", {2, 1}, 4).Entry("b", "uint8", {}, 9);
  list.Entry("none", "float32", {0, 5}, 10).Raw("e");
  const std::string_view bytes = "0123456789";
  const auto message = Read(list, bytes);
  ASSERT_OK(message);
  const auto& tensors = std::get<std::unique_ptr<Batch>>(*message)->tensors();
  ASSERT_EQ(tensors.size(), 3U);
  EXPECT_EQ(tensors[0].name, "a");
  EXPECT_EQ(tensors[0].dtype, tensor::Dtype::kBF16);
  EXPECT_EQ(tensors[0].shape, (std::vector<std::uint64_t>{2, 1}));
  EXPECT_EQ(base::AsText(tensors[0].bytes), "4567");
  EXPECT_EQ(tensors[0].bytes.data(), base::AsBytes(bytes).data() + 4) << "not a copy";
  EXPECT_EQ(base::AsText(tensors[1].bytes), "9");
  EXPECT_TRUE(tensors[2].bytes.empty());
}

TEST(CheckpointMessage, TensorsOutsideOfTheBufferAreRefused) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 62;
  for (const auto& [element, size, offset] :
       std::vector<std::tuple<const char*, std::vector<std::int64_t>, std::int64_t>>{
           {"uint8", {11}, 0},
           {"uint8", {1}, 10},
           {"uint8", {0}, 11},
           {"float32", {2}, 3},
           {"uint8", {1}, kHuge},
           {"float64", {kHuge}, 0},
           {"uint8", {kHuge, kHuge}, 0}}) {
    EXPECT_THAT(Refusal(Entry(element, size, offset), "0123456789"),
                HasSubstr("tensor w: torch." + std::string(element)));
  }
  EXPECT_OK(Read(Entry("uint8", {10}, 0), "0123456789"));
  EXPECT_OK(Read(Entry("uint8", {0}, 10), "0123456789"));
}

TEST(CheckpointMessage, WrongEntriesAreNamed) {
  const std::string_view bytes = "0123456789";
  EXPECT_THAT(Refusal(Entry("uint8", {-1}, 0), bytes), HasSubstr("shape"));
  EXPECT_THAT(Refusal(Entry("uint8", {1}, -1), bytes), HasSubstr("offset"));
  EXPECT_THAT(Refusal(Entry("Size", {1}, 0), bytes), HasSubstr("dtype"));
  EXPECT_THAT(Refusal(PickleBuilder().Raw("]Na")), HasSubstr("entry 0: expected a dict"));
  EXPECT_THAT(Refusal(PickleBuilder().Raw("]}a")), HasSubstr("no field \"name\""));
  PickleBuilder twice;
  twice.Raw("](").Entry("w", "uint8", {1}, 0).Entry("w", "uint8", {1}, 1).Raw("e");
  EXPECT_THAT(Refusal(twice, bytes), HasSubstr("entry 1: tensor w comes twice"));
}

TEST(CheckpointMessage, NoneAndExceptions) {
  const auto none = Read(PickleBuilder().Raw("N"));
  ASSERT_OK(none);
  EXPECT_TRUE(std::holds_alternative<Nothing>(*none));
  PickleBuilder exception;
  exception.Class("builtins", "FileNotFoundError").Raw("(").Int(2).String("no\nfile").Raw("tR");
  exception.Raw("}b");  // with notes
  const auto abort = Read(exception);
  ASSERT_OK(abort);
  EXPECT_EQ(std::get<Abort>(*abort).text, "FileNotFoundError: no?file");
}

TEST(CheckpointMessage, AnythingElseIsRefused) {
  EXPECT_THAT(Refusal(PickleBuilder().Int(7)), HasSubstr("found an integer"));
  EXPECT_THAT(Refusal(PickleBuilder().Class("builtins", "RuntimeError")),
              HasSubstr("found builtins.RuntimeError"));
  EXPECT_THAT(Refusal(PickleBuilder().Class("os", "system").String("true").Raw("\x85R")),
              HasSubstr("os.system"));
  EXPECT_THAT(Refusal(PickleBuilder().Class("builtins", "eval")), HasSubstr("builtins.eval"));
}

}  // namespace
}  // namespace syncline::payload
