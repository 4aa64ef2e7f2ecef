// How a pickle is read:
//   1. Opcodes are read one after the other; each checks the bytes it takes before it uses them.
//   2. Values are made in one deque and never freed before all of it; the stack, the memo and the
//      containers hold pointers. So nesting costs no recursion, neither here nor when it is freed.
//   3. STOP ends it: exactly one value is left, no mark, and no byte behind.
#include "payload/pickle.h"

#include <fmt/format.h>

#include <array>
#include <bit>

#include "payload/pickle_stack.h"

namespace syncline::payload {
namespace {

using base::Code;
using base::Fail;
using base::Result;
using base::Status;

constexpr std::size_t kMaxFields = 64;
constexpr std::size_t kMaxLine = 256;  // of a module or name in the opcode GLOBAL
constexpr std::uint8_t kProtocol = 0x80;

// Functions, and classes whose constructor gives data.
bool IsCalled(Symbol symbol) {
  switch (symbol) {
    case Symbol::kSize:
    case Symbol::kRebuildTensor:
    case Symbol::kRebuildTensorV2:
    case Symbol::kRebuildParameter:
    case Symbol::kRebuildCudaTensor:
    case Symbol::kRebuildTypedStorage:
    case Symbol::kRebuildTypedStorageChild:
    case Symbol::kRebuildStorageFilename:
    case Symbol::kRebuildStorageEmpty:
    case Symbol::kOrderedDict:
    case Symbol::kException:
      return true;
    default:
      return false;
  }
}

bool IsBuilt(Symbol symbol) {
  return symbol == Symbol::kTensorMetadata || symbol == Symbol::kLocalSerializedTensor;
}

}  // namespace

class PickleReader {
 public:
  explicit PickleReader(base::ByteSpan message) : message_(message), stack_(message.size()) {}

  Result<Pickle> Read() {
    if (message_.size() < 2 || message_[0] != std::byte{kProtocol}) {
      return Refuse("not a pickle of protocol 2 or later");
    }
    std::size_t start = 0;
    const auto step = [&]() -> Status {
      start = at_;
      SYNCLINE_ASSIGN(const std::uint8_t opcode, Number<std::uint8_t>());
      return Step(opcode);
    };
    while (!done_) {
      Status stepped = step();
      if (stepped) continue;
      return Annotate(std::move(stepped).error(), fmt::format("pickle, byte {}", start));
    }
    if (at_ != message_.size()) {
      return Refuse(fmt::format("pickle: {} bytes behind its end", message_.size() - at_));
    }
    Pickle pickle;
    SYNCLINE_ASSIGN(pickle.root_, stack_.Last());
    pickle.values_ = std::move(stack_).TakeValues();
    return pickle;
  }

 private:
  static std::unexpected<base::Error> Refuse(std::string what) {
    return Fail(Code::kInvalidArgument, std::move(what));
  }

  using Handler = Status (PickleReader::*)();

  // By opcode; null for those that are refused. Names are those of CPython's pickletools, where the
  // method does not say it.
  static const std::array<Handler, 256>& Handlers() {
    using R = PickleReader;
    static constexpr std::array<Handler, 256> kHandlers = [] {
      std::array<Handler, 256> of{};
      of[kProtocol] = &R::Protocol;
      of[0x95] = &R::Frame;
      of['.'] = &R::Stop;
      of['('] = &R::Mark;
      of['N'] = &R::None;
      of[0x88] = &R::NewTrue;
      of[0x89] = &R::NewFalse;
      of['J'] = &R::Integer<std::int32_t>;
      of['K'] = &R::Integer<std::uint8_t>;
      of['M'] = &R::Integer<std::uint16_t>;
      of[0x8a] = &R::Long;  // LONG1
      of['G'] = &R::Float;  // BINFLOAT
      of[0x8c] = &R::Unicode<std::uint8_t>;
      of['X'] = &R::Unicode<std::uint32_t>;
      of[0x8d] = &R::Unicode<std::uint64_t>;
      of['C'] = &R::Bytes<std::uint8_t>;
      of['B'] = &R::Bytes<std::uint32_t>;
      of[0x8e] = &R::Bytes<std::uint64_t>;
      of[')'] = &R::EmptyTuple;
      of['t'] = &R::MarkedTuple;
      of[0x85] = &R::ShortTuple<1>;
      of[0x86] = &R::ShortTuple<2>;
      of[0x87] = &R::ShortTuple<3>;
      of[']'] = &R::EmptyList;
      of['a'] = &R::Append;
      of['e'] = &R::Appends;
      of['}'] = &R::EmptyDict;
      of['s'] = &R::SetItem;
      of['u'] = &R::SetItems;
      of['q'] = &R::Put<std::uint8_t>;   // BINPUT
      of['r'] = &R::Put<std::uint32_t>;  // LONG_BINPUT
      of[0x94] = &R::Memoize;
      of['h'] = &R::Get<std::uint8_t>;   // BINGET
      of['j'] = &R::Get<std::uint32_t>;  // LONG_BINGET
      of['c'] = &R::Global;
      of[0x93] = &R::StackGlobal;
      of['R'] = &R::Reduce;
      of[0x81] = &R::NewObject;  // NEWOBJ
      of['b'] = &R::Build;
      return of;
    }();
    return kHandlers;
  }

  Status Step(std::uint8_t opcode) {
    const Handler handler = Handlers()[opcode];
    if (handler != nullptr) return (this->*handler)();
    return Refuse(fmt::format("opcode {:#04x} is not of those that are read", opcode));
  }

  // Bytes of the message.

  Result<base::ByteSpan> Next(std::uint64_t size) {
    if (size > message_.size() - at_) {
      return Refuse(
          fmt::format("{} bytes are announced, {} are left", size, message_.size() - at_));
    }
    const base::ByteSpan bytes = message_.subspan(at_, size);
    at_ += size;
    return bytes;
  }

  template <typename T>
  Result<T> Number() {
    SYNCLINE_ASSIGN(const base::ByteSpan bytes, Next(sizeof(T)));
    return base::Load<T>(bytes.data());
  }

  Result<std::string_view> Line() {
    const std::string_view rest = base::AsText(message_.subspan(at_)).substr(0, kMaxLine);
    const std::size_t end = rest.find('\n');
    if (end == std::string_view::npos) return Refuse("a name without an end");
    at_ += end + 1;
    return rest.substr(0, end);
  }

  Status Protocol() {
    SYNCLINE_ASSIGN(const std::uint8_t protocol, Number<std::uint8_t>());
    if (protocol >= 2 && protocol <= 5) return {};
    return Refuse(fmt::format("protocol {}, expected 2 to 5", protocol));
  }

  // Frames only say how much a reader may fetch at once.
  Status Frame() {
    SYNCLINE_ASSIGN(const std::uint64_t size, Number<std::uint64_t>());
    if (size <= message_.size() - at_) return {};
    return Refuse(
        fmt::format("a frame of {} bytes is announced, {} are left", size, message_.size() - at_));
  }

  // Values.

  Status Stop() {
    done_ = true;
    return {};
  }

  Status Mark() { return stack_.Mark(); }
  Status None() { return stack_.PushNone(); }
  Status NewTrue() { return stack_.PushBool(true); }
  Status NewFalse() { return stack_.PushBool(false); }
  Status EmptyTuple() { return stack_.PushEmptyTuple(); }
  Status EmptyList() { return stack_.Make(List{}); }
  Status EmptyDict() { return stack_.Make(Dict{}); }

  template <typename T>
  Status Integer() {
    SYNCLINE_ASSIGN(const T number, Number<T>());
    return stack_.Make(std::int64_t{number});
  }

  Status Long() {
    SYNCLINE_ASSIGN(const std::uint8_t size, Number<std::uint8_t>());
    SYNCLINE_ASSIGN(const base::ByteSpan bytes, Next(size));
    if (size > 8) return Refuse(fmt::format("an integer of {} bytes, expected at most 8", size));
    std::uint64_t number = 0;
    for (std::size_t i = 0; i < 8; ++i) {
      const bool negative = size > 0 && (bytes[size - 1U] >> 7U) != std::byte{0};
      const auto byte = i < size ? std::to_integer<std::uint64_t>(bytes[i]) : negative ? 0xffU : 0U;
      number |= byte << (8 * i);
    }
    return stack_.Make(static_cast<std::int64_t>(number));
  }

  Status Float() {
    SYNCLINE_ASSIGN(const std::uint64_t bits, Number<std::uint64_t>());
    return stack_.Make(std::bit_cast<double>(__builtin_bswap64(bits)));
  }

  template <typename Length>
  Status Unicode() {
    SYNCLINE_ASSIGN(const Length length, Number<Length>());
    SYNCLINE_ASSIGN(const base::ByteSpan bytes, Next(length));
    return stack_.Make(String{base::AsText(bytes)});
  }

  template <typename Length>
  Status Bytes() {
    SYNCLINE_ASSIGN(const Length length, Number<Length>());
    SYNCLINE_ASSIGN(const base::ByteSpan bytes, Next(length));
    return stack_.Make(bytes);
  }

  template <std::size_t kCount>
  Status ShortTuple() {
    SYNCLINE_ASSIGN(std::vector<Ref> items, stack_.Take(kCount));
    return stack_.Make(Tuple{std::move(items)});
  }

  Status MarkedTuple() {
    SYNCLINE_ASSIGN(std::vector<Ref> items, stack_.TakeMarked());
    return stack_.Make(Tuple{std::move(items)});
  }

  Status Append() { return AppendAll(stack_.Take(1)); }
  Status Appends() { return AppendAll(stack_.TakeMarked()); }
  Status AppendAll(Result<std::vector<Ref>> items) {
    if (!items) return std::unexpected(std::move(items).error());
    List* list = stack_.Top() == nullptr ? nullptr : std::get_if<List>(&stack_.Top()->is);
    if (list == nullptr) return Refuse("no list to append to");
    list->items.insert(list->items.end(), items->begin(), items->end());
    return {};
  }

  Status SetItem() { return SetAll(stack_.Take(2)); }
  Status SetItems() { return SetAll(stack_.TakeMarked()); }
  Status SetAll(Result<std::vector<Ref>> items) {
    if (!items) return std::unexpected(std::move(items).error());
    Dict* dict = stack_.Top() == nullptr ? nullptr : std::get_if<Dict>(&stack_.Top()->is);
    if (dict == nullptr) return Refuse("no dict to set items of");
    if (items->size() % 2 != 0) return Refuse("a key without a value");
    for (std::size_t i = 0; i < items->size(); i += 2) {
      dict->items.emplace_back((*items)[i], (*items)[i + 1]);
    }
    return {};
  }

  // The memo.

  Status Memoize() { return stack_.Remember(stack_.remembered()); }

  template <typename Index>
  Status Put() {
    SYNCLINE_ASSIGN(const Index index, Number<Index>());
    return stack_.Remember(index);
  }

  template <typename Index>
  Status Get() {
    SYNCLINE_ASSIGN(const Index index, Number<Index>());
    return stack_.Recall(index);
  }

  // Classes and their objects.

  Status Name(std::string_view module, std::string_view name) {
    Result<const PythonName*> known = FindName(module, name);
    if (!known) return std::unexpected(std::move(known).error());
    return stack_.Make(*known);
  }

  Status Global() {
    SYNCLINE_ASSIGN(const std::string_view module, Line());
    SYNCLINE_ASSIGN(const std::string_view name, Line());
    return Name(module, name);
  }

  Status StackGlobal() {
    SYNCLINE_ASSIGN(const std::vector<Ref> taken, stack_.Take(2));
    const auto* module = taken[0]->As<String>();
    const auto* name = taken[1]->As<String>();
    if (module == nullptr || name == nullptr) return Refuse("a class that is not named by strings");
    return Name(module->text, name->text);
  }

  struct Call {
    const PythonName* name;
    const Tuple* arguments;
  };

  Result<Call> TakeCall() {
    SYNCLINE_ASSIGN(const std::vector<Ref> taken, stack_.Take(2));
    const auto* const* name = taken[0]->As<const PythonName*>();
    const auto* arguments = taken[1]->As<Tuple>();
    if (name == nullptr || arguments == nullptr) {
      return Refuse(fmt::format("a call of {} with {}", KindOf(*taken[0]), KindOf(*taken[1])));
    }
    return Call{*name, arguments};
  }

  Status Reduce() {
    SYNCLINE_ASSIGN(const Call call, TakeCall());
    if (!IsCalled(call.name->symbol)) {
      return Refuse(fmt::format("{} is not called in payloads", payload::Text(*call.name)));
    }
    if (call.name->symbol == Symbol::kOrderedDict && call.arguments->items.empty()) {
      return stack_.Make(Dict{});
    }
    return stack_.Make(Object{.name = call.name, .arguments = call.arguments});
  }

  Status NewObject() {
    SYNCLINE_ASSIGN(const Call call, TakeCall());
    if (!IsBuilt(call.name->symbol) || !call.arguments->items.empty()) {
      return Refuse(fmt::format("{} is not made so in payloads", payload::Text(*call.name)));
    }
    return stack_.Make(Object{.name = call.name, .arguments = call.arguments});
  }

  Status Build() {
    SYNCLINE_ASSIGN(const std::vector<Ref> taken, stack_.Take(1));
    const auto* state = taken[0]->As<Dict>();
    if (stack_.Top() == nullptr || state == nullptr) {
      return Refuse(fmt::format("an object is built from {}", KindOf(*taken[0])));
    }
    // state_dict() gives its OrderedDict an attribute, which says nothing of tensors.
    if (stack_.Top()->As<Dict>() != nullptr) return {};
    auto* object = std::get_if<Object>(&stack_.Top()->is);
    // So are notes that were added to an exception.
    if (object != nullptr && object->name->symbol == Symbol::kException) return {};
    if (object == nullptr || !IsBuilt(object->name->symbol) || object->state != nullptr) {
      return Refuse(fmt::format("{} is not built in payloads", KindOf(*stack_.Top())));
    }
    object->state = state;
    return {};
  }

  base::ByteSpan message_;
  std::size_t at_ = 0;
  bool done_ = false;
  PickleStack stack_;
};

Result<Pickle> Pickle::Read(base::ByteSpan message) { return PickleReader(message).Read(); }

std::string KindOf(const Value& value) {
  static constexpr std::array kKinds = {"None",     "a bool",  "an integer", "a float",
                                        "a string", "bytes",   "a tuple",    "a list",
                                        "a dict",   "a class", "an object"};
  static_assert(kKinds.size() == std::variant_size_v<decltype(Value::is)>);
  if (const auto* const* name = value.As<const PythonName*>()) return payload::Text(**name);
  if (const auto* object = value.As<Object>()) {
    return fmt::format("an object of {}", payload::Text(*object->name));
  }
  return kKinds.at(value.is.index());
}

Ref Find(const Dict& dict, std::string_view key) {
  if (dict.items.size() > kMaxFields) return nullptr;
  for (auto item = dict.items.rbegin(); item != dict.items.rend(); ++item) {
    const auto* name = item->first->As<String>();
    if (name != nullptr && name->text == key) return item->second;
  }
  return nullptr;
}

}  // namespace syncline::payload
