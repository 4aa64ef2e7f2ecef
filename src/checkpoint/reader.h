// The tensors of a checkpoint, read piece by piece instead of mapped: for files that another process
// may cut short meanwhile.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "tensor/loader.h"
#include "tensor/view.h"

namespace syncline::checkpoint {

class CheckpointReader final : public tensor::Loader {
 public:
  static base::Result<CheckpointReader> Open(base::FileSystem& files, const std::string& path);

  const Checkpoint& checkpoint() const { return checkpoint_; }
  // All tensors, by name: sizes without data. Their indices are those of Load().
  std::vector<tensor::TensorView> Views() const;
  // A file that ends before is kCorrupt, with both sizes.
  base::Result<base::ByteSpan> Load(std::size_t tensor, std::uint64_t begin, std::uint64_t size,
                                    std::vector<std::byte>& buffer) const override;

 private:
  explicit CheckpointReader(Checkpoint checkpoint) : checkpoint_(std::move(checkpoint)) {}

  Checkpoint checkpoint_;
  std::vector<std::unique_ptr<base::File>> files_;
};

}  // namespace syncline::checkpoint
