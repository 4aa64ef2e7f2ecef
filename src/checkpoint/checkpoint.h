// A checkpoint directory (or a single safetensors file) as a set of named tensors.
//
// Which files of a folder count: those that model.safetensors.index.json names; without an index,
// model.safetensors; without that, every *.safetensors file of the folder, where no two may hold
// the same name. Other files are never looked at. An index that is there must be valid and agree
// with its files: a missing file, or a tensor that its file does not hold, is an error. Links are
// followed by name, so a snapshot of a Hugging Face cache is an ordinary directory.
//
// A directory without weights whose sub-folders hold some is a tree (a diffusers pipeline): the
// union of these components, each by the rules above, where diffusion_pytorch_model may stand for
// model. Its tensors are named "<folder>/<name in the file>". See components.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "checkpoint/components.h"
#include "checkpoint/safetensors.h"
#include "tensor/view.h"

namespace syncline::checkpoint {

struct CheckpointTensor {
  std::string name;
  tensor::Dtype dtype = tensor::Dtype::kU8;
  std::vector<std::uint64_t> shape;
  std::size_t file = 0;      // index into Checkpoint::files()
  std::uint64_t offset = 0;  // of its first byte in that file
  std::uint64_t bytes = 0;
};

// Immutable once opened, and thread-safe. Holds the headers, not the weights.
class Checkpoint {
 public:
  struct WeightFile {
    std::string name;  // relative to the directory; of a tree "<folder>/<file>"
    std::uint64_t bytes = 0;
    Metadata metadata;
  };

  // `path`: a directory or a .safetensors file. Opens and checks the header of every file.
  // kNotFound without weights.
  static base::Result<Checkpoint> Open(base::FileSystem& files, const std::string& path);

  const std::string& directory() const { return directory_; }
  const std::vector<WeightFile>& files() const { return files_; }
  const std::vector<CheckpointTensor>& tensors() const { return tensors_; }  // sorted by name
  const CheckpointTensor* Find(std::string_view name) const;
  std::uint64_t total_bytes() const { return total_bytes_; }
  std::string FilePath(std::size_t file) const;

 private:
  base::Status AddComponent(base::FileSystem& files, const Component& component);
  base::Status AddFile(base::FileSystem& files, const std::string& folder, const std::string& name);
  base::Status Finish();

  std::string directory_;
  std::vector<WeightFile> files_;
  std::vector<CheckpointTensor> tensors_;
  std::uint64_t total_bytes_ = 0;
};

// The files of a checkpoint, mapped read-only; gives each tensor's bytes without copying. Not for
// files that another process may cut short meanwhile: touching a page that is gone ends the
// process.
class MappedCheckpoint {
 public:
  static base::Result<MappedCheckpoint> Open(base::FileSystem& files, const std::string& path);
  static base::Result<MappedCheckpoint> Map(base::FileSystem& files, Checkpoint checkpoint);

  const Checkpoint& checkpoint() const { return checkpoint_; }
  // All tensors, by name; valid as long as this object.
  std::vector<tensor::TensorView> Views() const;
  base::ByteSpan Bytes(const CheckpointTensor& tensor) const {
    return maps_[tensor.file].bytes().subspan(tensor.offset, tensor.bytes);
  }

 private:
  explicit MappedCheckpoint(Checkpoint checkpoint) : checkpoint_(std::move(checkpoint)) {}

  Checkpoint checkpoint_;
  std::vector<base::Mapping> maps_;
};

}  // namespace syncline::checkpoint
