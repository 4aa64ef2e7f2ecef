// The Python classes, functions and element types that a payload may name. What is not in these
// tables is refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "tensor/dtype.h"

namespace syncline::payload {

// An element type of torch. One element of torch may hold two values of ours (float4_e2m1fn_x2).
struct ElementType {
  std::string_view name;  // torch.NAME
  tensor::Dtype dtype;
  std::uint8_t bytes;       // of one element in memory
  std::uint8_t values = 1;  // of `dtype` in one element
};

enum class Symbol : std::uint8_t {
  kTensor,        // torch.Tensor, or a parameter
  kSize,          // torch.Size
  kElementType,   // torch.bfloat16 …
  kStorage,       // torch.storage.UntypedStorage, or TypedStorage
  kTypedStorage,  // torch.FloatStorage …
  kRebuildTensor,
  kRebuildTensorV2,
  kRebuildParameter,
  kRebuildCudaTensor,
  kRebuildTypedStorage,
  kRebuildTypedStorageChild,
  kRebuildStorageFilename,
  kRebuildStorageEmpty,
  kOrderedDict,
  kTensorMetadata,         // FlattenedTensorMetadata
  kLocalSerializedTensor,  // of verl and SGLang
  kException,              // builtins.RuntimeError …
};

struct PythonName {
  Symbol symbol;
  std::string_view module;
  std::string_view name;
  const ElementType* element = nullptr;  // of kElementType and kTypedStorage
};

// The entry, which lives for ever. kInvalidArgument names what is not there, and says what to use
// instead of a storage behind a file descriptor, or of one that was pickled with its content.
base::Result<const PythonName*> FindName(std::string_view module, std::string_view name);

// "torch.FloatStorage"
std::string Text(const PythonName& name);

// Text of a message for an error: at most so many characters, printable ASCII.
std::string Quoted(std::string_view text, std::size_t max_characters = 120);

}  // namespace syncline::payload
