#include "payload/pickle.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "base/result_matchers.h"
#include "payload/pickle_builder.h"

namespace syncline::payload {
namespace {

using base::Code;
using namespace std::string_literals;

// The pickle as text; values that are used twice are written twice.
std::string Written(const Value& value, int depth = 0) {
  if (depth > 20) return "…";
  const auto all = [&](const std::vector<Ref>& items) {
    std::string text;
    for (const Ref item : items) text += Written(*item, depth + 1) + ",";
    return text;
  };
  if (const auto* boolean = value.As<bool>()) return *boolean ? "True" : "False";
  if (const auto* number = value.As<std::int64_t>()) return std::to_string(*number);
  if (const auto* number = value.As<double>()) return std::to_string(*number);
  if (const auto* text = value.As<String>()) return "'" + std::string(text->text) + "'";
  if (const auto* bytes = value.As<base::ByteSpan>()) {
    return "b'" + std::string(base::AsText(*bytes)) + "'";
  }
  if (const auto* tuple = value.As<Tuple>()) return "(" + all(tuple->items) + ")";
  if (const auto* list = value.As<List>()) return "[" + all(list->items) + "]";
  if (const auto* dict = value.As<Dict>()) {
    std::string text;
    for (const auto& [key, item] : dict->items) {
      text += Written(*key, depth + 1) + ":" + Written(*item, depth + 1) + ",";
    }
    return "{" + text + "}";
  }
  if (const auto* const* name = value.As<const PythonName*>()) return Text(**name);
  if (const auto* object = value.As<Object>()) {
    std::string text = Text(*object->name) + "(" + all(object->arguments->items) + ")";
    if (object->state != nullptr) text += " with " + std::to_string(object->state->items.size());
    return text;
  }
  return "None";
}

base::Result<Pickle> Read(std::string_view text) { return Pickle::Read(base::AsBytes(text)); }

std::string ReadText(const PickleBuilder& builder) {
  const std::string text = builder.Text();
  const auto pickle = Read(text);
  return pickle ? Written(pickle->root()) : "error: " + pickle.error().message;
}

PickleBuilder Build(std::string_view opcodes) { return PickleBuilder().Raw(opcodes); }

TEST(Pickle, ReadsNumbers) {
  EXPECT_EQ(ReadText(Build("N")), "None");
  EXPECT_EQ(ReadText(Build("\x88")), "True");
  EXPECT_EQ(ReadText(Build("\x89")), "False");
  EXPECT_EQ(ReadText(Build("K\xff")), "255");
  EXPECT_EQ(ReadText(Build("M\x01\xff")), "65281");
  EXPECT_EQ(ReadText(Build("J\xfe\xff\xff\xff")), "-2");
  EXPECT_EQ(ReadText(Build("\x8a\x00"s)), "0");
  EXPECT_EQ(ReadText(Build("\x8a\x01\x80")), "-128");
  EXPECT_EQ(ReadText(Build("\x8a\x05\x00\x00\x00\x00\x01"s)), "4294967296");
  EXPECT_EQ(ReadText(Build("\x8a\x08").Raw("\xff\xff\xff\xff\xff\xff\xff\x7f")),
            std::to_string(std::numeric_limits<std::int64_t>::max()));
  EXPECT_EQ(ReadText(Build("G\x3f\xf8\x00\x00\x00\x00\x00\x00"s)), "1.500000");
}

TEST(Pickle, ReadsTextsAndBytesOfEveryLength) {
  EXPECT_EQ(ReadText(Build("\x8c\x02hi")), "'hi'");
  EXPECT_EQ(ReadText(PickleBuilder().String("hi")), "'hi'");
  EXPECT_EQ(ReadText(PickleBuilder().Number("\x8d", std::uint64_t{2}).Raw("hi")), "'hi'");
  EXPECT_EQ(ReadText(Build("C\x02hi")), "b'hi'");
  EXPECT_EQ(ReadText(PickleBuilder().Bytes("hi")), "b'hi'");
  EXPECT_EQ(ReadText(PickleBuilder().Number("\x8e", std::uint64_t{2}).Raw("hi")), "b'hi'");
}

TEST(Pickle, ReadsContainers) {
  EXPECT_EQ(ReadText(Build(")")), "()");
  EXPECT_EQ(ReadText(Build("N\x85")), "(None,)");
  EXPECT_EQ(ReadText(Build("K\x01K\x02\x86")), "(1,2,)");
  EXPECT_EQ(ReadText(Build("K\x01K\x02K\x03\x87")), "(1,2,3,)");
  EXPECT_EQ(ReadText(Build("(K\x01K\x02K\x03K\x04t")), "(1,2,3,4,)");
  EXPECT_EQ(ReadText(Build("]K\x01"s + "a(K\x02K\x03"s + "e"s)), "[1,2,3,]");
  EXPECT_EQ(ReadText(Build("}K\x01NsK\x02(K\x03\x88uK\x04Ns")),
            "error: pickle, byte 13: no dict to set items of");
  EXPECT_EQ(ReadText(Build("}K\x01Ns(K\x02\x88K\x03\x89u")), "{1:None,2:True,3:False,}");
}

TEST(Pickle, UsesWhatItRemembers) {
  EXPECT_EQ(ReadText(Build("]\x94(K\x07\x94h\x01h\x01"s + "e"s)), "[7,7,7,]");
  EXPECT_EQ(ReadText(Build("]q\x00K\x07r\x01\x00\x00\x00"s + "ah\x00\x86j\x01\x00\x00\x00\x86"s)),
            "(([7,],[7,],),7,)");
  EXPECT_EQ(ReadText(Build("]q\x00K\x07r\x01\x00\x00\x00"s + "aj\x01\x00\x00\x00\x86"s)),
            "([7,],7,)");
  // A list that holds itself is read; who walks it knows how deep it must be.
  EXPECT_EQ(ReadText(Build("]\x94h\x00"s + "a")).substr(0, 3), "[[[");
  EXPECT_EQ(ReadText(Build("h\x00"s)), "error: pickle, byte 2: memo 0 is not set, 0 are");
  EXPECT_EQ(ReadText(Build("Nq\x01")), "error: pickle, byte 3: memo 1, expected at most 0");
  EXPECT_EQ(ReadText(Build("(\x94")), "error: pickle, byte 3: no value to remember");
}

TEST(Pickle, ReadsObjectsAsData) {
  EXPECT_EQ(ReadText(Build("ctorch\nbfloat16\n")), "torch.bfloat16");
  EXPECT_EQ(ReadText(PickleBuilder().Class("torch", "Size").Ints({3, 4}).Raw("\x85R")),
            "torch.Size((3,4,),)");
  EXPECT_EQ(ReadText(PickleBuilder().Class("collections", "OrderedDict").Raw(")RK\x01Ns")),
            "{1:None,}");
  EXPECT_EQ(ReadText(PickleBuilder().Class("collections", "OrderedDict").Raw(")RK\x01Ns}Nb")),
            "error: pickle, byte 43: an object is built from None");
  EXPECT_EQ(ReadText(PickleBuilder().Class("collections", "OrderedDict").Raw(")RK\x01Ns}b")),
            "{1:None,}");
  const auto metadata = [] {
    return PickleBuilder().Class("sglang.srt.weight_sync.tensor_bucket", "FlattenedTensorMetadata");
  };
  EXPECT_EQ(ReadText(metadata().Raw(")\x81}K\x01Nsb")),
            "sglang.srt.weight_sync.tensor_bucket.FlattenedTensorMetadata() with 1");
  EXPECT_THAT(ReadText(metadata().Raw(")R")), testing::HasSubstr("is not called in payloads"));
  EXPECT_THAT(ReadText(metadata().Raw("N\x85\x81")), testing::HasSubstr("is not made so"));
  EXPECT_THAT(ReadText(metadata().Raw(")\x81}b}b")), testing::HasSubstr("is not built"));
  EXPECT_THAT(ReadText(PickleBuilder().Class("torch", "Tensor").Raw(")\x81")),
              testing::HasSubstr("torch.Tensor is not made so"));
  EXPECT_THAT(ReadText(Build("NN\x81")), testing::HasSubstr("a call of None with None"));
}

TEST(Pickle, ChecksItsFrame) {
  EXPECT_EQ(ReadText(PickleBuilder().Number("\x95", std::uint64_t{2}).Raw("N")), "None");
  EXPECT_EQ(ReadText(PickleBuilder().Number("\x95", std::uint64_t{3}).Raw("N")),
            "error: pickle, byte 2: a frame of 3 bytes is announced, 2 are left");
  EXPECT_ERROR(Read("\x80\x06N."), Code::kInvalidArgument, "protocol 6, expected 2 to 5");
  EXPECT_ERROR(Read("\x80\x01N."), Code::kInvalidArgument, "protocol 1, expected 2 to 5");
  EXPECT_OK(Read("\x80\x02N."));
  EXPECT_OK(Read("\x80\x05N."));
  EXPECT_ERROR(Read(""), Code::kInvalidArgument, "not a pickle");
  EXPECT_ERROR(Read("N."), Code::kInvalidArgument, "not a pickle");
  EXPECT_ERROR(Read("\x80\x04N.N"), Code::kInvalidArgument, "1 bytes behind its end");
  EXPECT_ERROR(Read("\x80\x04NN."), Code::kInvalidArgument, "2 values and 0 marks are left");
  EXPECT_ERROR(Read("\x80\x04N(."), Code::kInvalidArgument, "1 values and 1 marks are left");
  EXPECT_ERROR(Read("\x80\x04."), Code::kInvalidArgument, "0 values and 0 marks are left");
}

TEST(Pickle, NeverTakesValuesBelowAMark) {
  for (const std::string_view opcodes :
       {"N(\x85", "NN(\x86", "NN(\x87", "](Na", "N(R", "}(NNs", "N(\x81", "N(b", "NN(\x93"}) {
    const std::string text = Build(opcodes).Text();
    EXPECT_ERROR(Read(text), Code::kInvalidArgument, "pickle, byte");
  }
  EXPECT_ERROR(Read("\x80\x04Nt."), Code::kInvalidArgument, "no mark is there");
}

TEST(Br46, CodeIsNamedAndNotRun) {
  EXPECT_EQ(ReadText(Build("cos\nsystem\n(\x8c\x02ls\x85R")),
            "error: pickle, byte 2: os.system is not one of the classes that a payload may hold");
  for (const auto& [module, name] : {std::pair{"builtins", "eval"},
                                     {"builtins", "getattr"},
                                     {"torch", "load"},
                                     {"torch", "__builtins__"},
                                     {"functools", "partial"},
                                     {"collections", "OrderedDict.__init__"},
                                     {"sglang.srt.weight_sync.tensor_bucket", "os"}}) {
    EXPECT_EQ(ReadText(PickleBuilder().Class(module, name).Raw(")R")),
              "error: pickle, byte " +
                  std::to_string(12 + std::string(module).size() + std::string(name).size()) +
                  ": " + module + "." + name +
                  " is not one of the classes that a payload may hold");
  }
  const std::string long_name(100000, 'x');
  const std::string error = ReadText(PickleBuilder().Class("os\n\x01", long_name));
  EXPECT_LT(error.size(), 400U);
  EXPECT_THAT(error, testing::HasSubstr("os??.xxx"));
}

TEST(Br46, OpcodesOutsideOfTheSubsetAreRefused) {
  // PERSID, BINPERSID, EXT1, EXT2, EXT4, INST, OBJ, NEWOBJ_EX, BYTEARRAY8, NEXT_BUFFER,
  // READONLY_BUFFER, LONG4, text forms, sets, POP, DUP.
  for (const char opcode :
       "PQ\x82\x83\x84io\x92\x96\x97\x98\x8bIFLSVUTgpl d\x8f\x90\x91\x30\x31\x32"s) {
    const std::string text = "\x80\x04NNN"s + opcode + std::string(16, '\0');
    EXPECT_ERROR(Read(text), Code::kInvalidArgument, "pickle, byte 5: opcode 0x");
  }
}

TEST(Br46, LengthsOfGigabytesAreCheckedAgainstWhatIsThere) {
  for (const std::string_view opcode : {"X", "B"}) {
    const std::string text = PickleBuilder().Number(opcode, ~std::uint32_t{0}).Raw("abc").Text();
    EXPECT_ERROR(Read(text), Code::kInvalidArgument, "4294967295 bytes are announced, 4 are left");
  }
  for (const std::string_view opcode : {"\x8d", "\x8e"}) {
    for (const std::uint64_t length :
         {~std::uint64_t{0}, std::uint64_t{1} << 63, std::uint64_t{5}}) {
      const std::string text = PickleBuilder().Number(opcode, length).Raw("abc").Text();
      EXPECT_ERROR(Read(text), Code::kInvalidArgument, "bytes are announced, 4 are left");
    }
  }
  EXPECT_ERROR(Read("\x80\x04\x8a\xffN."), Code::kInvalidArgument, "255 bytes are announced");
  EXPECT_ERROR(Read("\x80\x04\x8a\x09"
                    "012345678."),
               Code::kInvalidArgument, "9 bytes, expected");
  EXPECT_ERROR(Read("\x80\x04Nr\xff\xff\xff\xff."), Code::kInvalidArgument, "memo 4294967295");
}

TEST(Br46, NestingCostsNoRecursionAndIsBounded) {
  const std::string tuples = Build("N").Raw(std::string(100'000, '\x85')).Text();
  const auto deep = Read(tuples);
  EXPECT_ERROR(deep, Code::kLimitExceeded, "more than 50066 values");
  const std::string padded =
      PickleBuilder().Bytes(std::string(200'000, 'x')).Raw("0" + tuples).Text();
  EXPECT_ERROR(Read(padded), Code::kInvalidArgument, "opcode 0x30");
  std::string pairs = "N";
  for (int i = 0; i < 100'000; ++i) pairs += "K\x01\x86";
  EXPECT_ERROR(Read(Build(pairs).Text()), Code::kLimitExceeded, "more than 150066 values");
  std::string shared = "N\x94";
  for (int i = 0; i < 100'000; ++i) shared += "h\x00\x86"s;
  EXPECT_OK(Read(Build(shared).Text()));  // 100,000 levels deep
  EXPECT_ERROR(Read(Build(std::string(100'000, '(')).Text()), Code::kLimitExceeded, "64 levels");
  EXPECT_ERROR(Read(Build(std::string(100'000, 'N')).Text()), Code::kLimitExceeded,
               "nested deeper than 65536 values");
}

TEST(Br46, ValuesUsedAgainAreNotCopied) {
  // Ten tuples of ten of the one before, and so on: 10^50 values if they were copied.
  std::string laughs = "(N\x94";
  for (char level = 0; level < 50; ++level) {
    laughs += "(";
    for (int i = 0; i < 10; ++i) laughs += "h"s + level;
    laughs += "t\x94";
  }
  const std::string text = Build(laughs).Raw("t").Text();
  const auto pickle = Read(text);
  ASSERT_OK(pickle);
  EXPECT_EQ(pickle->values().size(), 4U + 50U + 1U);
}

TEST(Br46, TruncatedAnywhereIsRefused) {
  const std::string text = PickleBuilder()
                               .Raw("]\x94(")
                               .String("a name")
                               .Tensor("/torch_1_2_3", 96, "float32", 0, {4, 6}, {6, 1})
                               .Raw(
                                   "\x86"
                                   "e")
                               .Text();
  ASSERT_OK(Read(text));
  for (std::size_t size = 0; size < text.size(); ++size) {
    EXPECT_FALSE(Read(text.substr(0, size)).has_value()) << size;
  }
}

}  // namespace
}  // namespace syncline::payload
