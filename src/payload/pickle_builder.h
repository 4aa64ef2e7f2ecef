// For tests: writes pickles opcode by opcode, and tensors as torch 2.13 pickles them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"

namespace syncline::payload {

class PickleBuilder {
 public:
  // Opcodes as they are.
  PickleBuilder& Raw(std::string_view opcodes) {
    text_ += opcodes;
    return *this;
  }
  template <typename T>
  PickleBuilder& Number(std::string_view opcode, T number) {
    std::byte bytes[sizeof(T)];
    base::Store(bytes, number);
    return Raw(opcode).Raw(base::AsText(bytes));
  }

  PickleBuilder& Int(std::int32_t number) { return Number("J", number); }
  PickleBuilder& String(std::string_view text) {
    return Number("X", static_cast<std::uint32_t>(text.size())).Raw(text);
  }
  PickleBuilder& Bytes(std::string_view bytes) {
    return Number("B", static_cast<std::uint32_t>(bytes.size())).Raw(bytes);
  }
  PickleBuilder& Class(std::string_view module, std::string_view name) {
    return String(module).String(name).Raw("\x93");
  }
  PickleBuilder& Ints(const std::vector<std::int64_t>& numbers) {
    Raw("(");
    for (const std::int64_t number : numbers) Number("\x8a\x08", number);
    return Raw("t");
  }

  // Calls of torch.multiprocessing.reductions.
  PickleBuilder& Reduction(std::string_view name) {
    return Class("torch.multiprocessing.reductions", name);
  }
  PickleBuilder& Storage(std::string_view name, std::int32_t bytes) {
    Reduction("rebuild_storage_filename").Raw("(").Class("torch.storage", "UntypedStorage");
    return Bytes("/tmp/torch-shm-dir-a/manager.sock").Bytes(name).Int(bytes).Raw("tR");
  }
  // Storage and element type before it become a storage of that type.
  PickleBuilder& Typed(std::string_view element) { return Class("torch", element).Raw("\x86R"); }
  // rebuild_tensor of a shared memory.
  PickleBuilder& Tensor(std::string_view name, std::int32_t bytes, std::string_view element,
                        std::int32_t offset, const std::vector<std::int64_t>& size,
                        const std::vector<std::int64_t>& stride) {
    Reduction("rebuild_tensor").Class("torch", "Tensor");
    Reduction("rebuild_typed_storage").Storage(name, bytes).Typed(element);
    return View(offset, size, stride).Raw("\x87R");
  }
  PickleBuilder& View(std::int32_t offset, const std::vector<std::int64_t>& size,
                      const std::vector<std::int64_t>& stride) {
    Raw("(").Int(offset).Class("torch", "Size").Ints(size).Raw("\x85R");
    return Ints(stride).Raw("\x89t");
  }

  // What checkpoint-engine sends: reduce_tensor of a flat tensor, and an entry of a list.
  PickleBuilder& Handle(std::string_view name, std::int32_t bytes,
                        std::string_view element = "uint8") {
    Reduction("rebuild_tensor").Raw("(").Class("torch", "Tensor");
    Reduction("rebuild_typed_storage").Storage(name, bytes).Typed(element);
    return View(0, {bytes}, {1}).Raw("t\x86");
  }
  PickleBuilder& Entry(std::string_view name, std::string_view element,
                       const std::vector<std::int64_t>& size, std::int64_t offset) {
    Raw("}(").String("name").String(name).String("dtype").Class("torch", element);
    String("shape").Class("torch", "Size").Ints(size).Raw("\x85R");
    return String("offset").Number("\x8a\x08", offset).Raw("u");
  }

  // The pickle so far, with its end.
  std::string Text() const { return "\x80\x04" + text_ + "."; }

 private:
  std::string text_;
};

}  // namespace syncline::payload
