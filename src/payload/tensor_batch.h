// The tensors of one message while they are collected, and what their bytes point to.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "payload/payload.h"
#include "payload/torch_tensor.h"

namespace syncline::payload {

class TensorBatch final : public Batch {
 public:
  // `may_expand`: bytes that views may be packed to beyond a multiple of the storages.
  explicit TensorBatch(std::uint64_t may_expand) : may_pack_(may_expand) {}

  const std::vector<NamedTensor>& tensors() const override { return tensors_; }
  base::Status Intact() const override {
    for (const std::unique_ptr<Memory>& memory : memories_) SYNCLINE_TRY(memory->Intact());
    return {};
  }

  // Takes the memory and keeps it there for as long as the batch lives.
  void Keep(Storages& storages);
  // The view's bytes, packed in memory of the batch if they are not so in the storage.
  // kLimitExceeded where expanded views would take too much.
  base::Result<base::ByteSpan> Packed(std::string_view name, const View& view);
  // `shape` is torch's. kInvalidArgument if the name is held already, is no printable UTF-8 or is
  // longer than 1024 bytes, or if `bytes` are not as many as shape and type take.
  base::Status Add(std::string_view name, const ElementType& element,
                   std::vector<std::uint64_t> shape, base::ByteSpan bytes);
  base::Status Add(std::string_view name, const View& view);
  // The same for a type and shape of ours.
  base::Status Add(NamedTensor tensor);

 private:
  std::vector<std::unique_ptr<Memory>> memories_;
  std::vector<std::unique_ptr<std::byte[]>> packed_;  // NOLINT: without being set to zero
  std::uint64_t may_pack_;
  std::unordered_set<std::string> names_;
  std::vector<NamedTensor> tensors_;
};

}  // namespace syncline::payload
