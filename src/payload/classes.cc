#include "payload/classes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

namespace syncline::payload {
namespace {

using tensor::Dtype;

constexpr std::array<ElementType, 20> kElementTypes = {{
    {"bool", Dtype::kBool, 1},
    {"uint8", Dtype::kU8, 1},
    {"int8", Dtype::kI8, 1},
    {"float8_e5m2", Dtype::kF8E5M2, 1},
    {"float8_e4m3fn", Dtype::kF8E4M3, 1},
    {"float8_e8m0fnu", Dtype::kF8E8M0, 1},
    {"float8_e4m3fnuz", Dtype::kF8E4M3Fnuz, 1},
    {"float8_e5m2fnuz", Dtype::kF8E5M2Fnuz, 1},
    {"float4_e2m1fn_x2", Dtype::kF4, 1, 2},
    {"int16", Dtype::kI16, 2},
    {"uint16", Dtype::kU16, 2},
    {"float16", Dtype::kF16, 2},
    {"bfloat16", Dtype::kBF16, 2},
    {"int32", Dtype::kI32, 4},
    {"uint32", Dtype::kU32, 4},
    {"float32", Dtype::kF32, 4},
    {"complex64", Dtype::kC64, 8},
    {"int64", Dtype::kI64, 8},
    {"uint64", Dtype::kU64, 8},
    {"float64", Dtype::kF64, 8},
}};

struct StorageClass {
  std::string_view name;
  std::string_view element;
};

constexpr std::array<StorageClass, 11> kStorageClasses = {{
    {"BoolStorage", "bool"},
    {"ByteStorage", "uint8"},
    {"CharStorage", "int8"},
    {"ShortStorage", "int16"},
    {"HalfStorage", "float16"},
    {"BFloat16Storage", "bfloat16"},
    {"IntStorage", "int32"},
    {"FloatStorage", "float32"},
    {"ComplexFloatStorage", "complex64"},
    {"LongStorage", "int64"},
    {"DoubleStorage", "float64"},
}};

// What gives up, in Python's own words; none of them is made.
constexpr std::array<std::string_view, 28> kExceptions = {"ArithmeticError",
                                                          "AssertionError",
                                                          "AttributeError",
                                                          "BaseException",
                                                          "BrokenPipeError",
                                                          "BufferError",
                                                          "ConnectionAbortedError",
                                                          "ConnectionError",
                                                          "ConnectionRefusedError",
                                                          "ConnectionResetError",
                                                          "EOFError",
                                                          "Exception",
                                                          "FileExistsError",
                                                          "FileNotFoundError",
                                                          "IndexError",
                                                          "InterruptedError",
                                                          "KeyError",
                                                          "KeyboardInterrupt",
                                                          "MemoryError",
                                                          "NotImplementedError",
                                                          "OSError",
                                                          "OverflowError",
                                                          "PermissionError",
                                                          "RuntimeError",
                                                          "SystemExit",
                                                          "TimeoutError",
                                                          "TypeError",
                                                          "ValueError"};

constexpr std::string_view kReductions = "torch.multiprocessing.reductions";
constexpr std::string_view kUtils = "torch._utils";
constexpr std::string_view kModelRunner = "sglang.srt.model_executor.model_runner";
constexpr std::string_view kPatch = "_rebuild_cuda_tensor_modified";

// SGLang moved both of its classes once; trainers name the place of the version they run with.
constexpr std::array<PythonName, 20> kNames = {{
    {Symbol::kTensor, "torch", "Tensor"},
    {Symbol::kTensor, "torch.nn.parameter", "Parameter"},
    {Symbol::kSize, "torch", "Size"},
    {Symbol::kStorage, "torch.storage", "UntypedStorage"},
    {Symbol::kStorage, "torch.storage", "TypedStorage"},
    {Symbol::kRebuildTensor, kReductions, "rebuild_tensor"},
    {Symbol::kRebuildCudaTensor, kReductions, "rebuild_cuda_tensor"},
    {Symbol::kRebuildCudaTensor, "sglang.srt.utils.patch_torch", kPatch},
    {Symbol::kRebuildCudaTensor, "sglang.srt.patch_torch", kPatch},
    {Symbol::kRebuildTypedStorage, kReductions, "rebuild_typed_storage"},
    {Symbol::kRebuildTypedStorageChild, kReductions, "rebuild_typed_storage_child"},
    {Symbol::kRebuildStorageFilename, kReductions, "rebuild_storage_filename"},
    {Symbol::kRebuildStorageEmpty, kReductions, "rebuild_storage_empty"},
    {Symbol::kRebuildTensorV2, kUtils, "_rebuild_tensor_v2"},
    {Symbol::kRebuildParameter, kUtils, "_rebuild_parameter"},
    {Symbol::kOrderedDict, "collections", "OrderedDict"},
    {Symbol::kTensorMetadata, "sglang.srt.weight_sync.tensor_bucket", "FlattenedTensorMetadata"},
    {Symbol::kTensorMetadata, kModelRunner, "FlattenedTensorMetadata"},
    {Symbol::kLocalSerializedTensor,
     "sglang.srt.model_executor.model_runner_components.weight_updater", "LocalSerializedTensor"},
    {Symbol::kLocalSerializedTensor, kModelRunner, "LocalSerializedTensor"},
}};

std::vector<PythonName> MakeNames() {
  std::vector<PythonName> names(kNames.begin(), kNames.end());
  for (const ElementType& element : kElementTypes) {
    names.push_back({Symbol::kElementType, "torch", element.name, &element});
  }
  for (const StorageClass& storage : kStorageClasses) {
    const auto* element = std::ranges::find(kElementTypes, storage.element, &ElementType::name);
    names.push_back({Symbol::kTypedStorage, "torch", storage.name, element});
  }
  for (const std::string_view exception : kExceptions) {
    names.push_back({Symbol::kException, "builtins", exception});
  }
  return names;
}

}  // namespace

base::Result<const PythonName*> FindName(std::string_view module, std::string_view name) {
  static const std::vector<PythonName> all = MakeNames();
  const auto found = std::ranges::find_if(
      all, [&](const PythonName& known) { return known.module == module && known.name == name; });
  if (found != all.end()) return &*found;
  if (module == kReductions && name == "rebuild_storage_fd") {
    return base::Fail(
        base::Code::kInvalidArgument,
        "a tensor's memory is behind a file descriptor of its sender, which no other family of "
        "processes can have: call torch.multiprocessing.set_sharing_strategy(\"file_system\") "
        "before pickling, or send safetensors");
  }
  const bool with_content = module == "torch.storage" && name == "_load_from_bytes";
  return base::Fail(
      base::Code::kInvalidArgument,
      fmt::format("{}.{} is not one of the classes that a payload may hold{}", Quoted(module),
                  Quoted(name),
                  with_content ? ": a tensor was pickled with its content; use multiprocessing's "
                                 "ForkingPickler after "
                                 "torch.multiprocessing.set_sharing_strategy(\"file_system\")"
                               : ""));
}

std::string Text(const PythonName& name) { return fmt::format("{}.{}", name.module, name.name); }

std::string Quoted(std::string_view text, std::size_t max_characters) {
  std::string quoted(text.substr(0, max_characters));
  std::ranges::replace_if(quoted, [](char c) { return c < ' ' || c > '~'; }, '?');
  if (text.size() > max_characters) quoted += "…";
  return quoted;
}

}  // namespace syncline::payload
