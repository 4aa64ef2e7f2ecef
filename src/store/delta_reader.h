// Reads what a delta version does to its tensors, whatever its encoding.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/pool.h"
#include "delta/patch.h"
#include "store/version.h"

namespace syncline::store {

// Several threads may open and read different runs at the same time.
class DeltaReader {
 public:
  // What a tensor of the version changes.
  struct Target {
    std::uint64_t bytes = 0;
    tensor::Dtype dtype = tensor::Dtype::kU8;
  };

  // Where frames go that are too large to be held in memory: into files of that beginning, which are
  // removed at once.
  struct Aside {
    base::FileSystem* files = nullptr;  // null: everything is held
    std::string path;
  };

  // `files` has the version's files, which are opened; `version` must outlive the reader.
  static base::Result<std::unique_ptr<DeltaReader>> Open(base::FileSystem& files,
                                                         const Version& version, Aside aside);
  virtual ~DeltaReader() = default;

  const Version& version() const { return version_; }
  // Of the files.
  std::uint64_t bytes() const { return bytes_; }

  // Each run is a number of tensors (indexes into Version::tensors, ascending) that have to be read
  // one after the other. Every tensor is in one of them.
  std::span<const std::vector<std::size_t>> runs() const { return runs_; }

  // The patch of a run, for as many targets as it has tensors. Lives no longer than the reader.
  // Errors name the file and the tensor.
  virtual base::Result<std::unique_ptr<delta::TensorPatch>> OpenRun(
      std::size_t run, std::span<const Target> targets) = 0;

  // Checks what can be checked of a run without the tensors. Returns the bytes of its frames.
  virtual base::Result<std::uint64_t> CheckRun(std::size_t run) = 0;

  // "store/weight_v000007/model-00001-of-00001.safetensors: tensor lm_head.weight", for errors.
  std::string Where(std::size_t tensor) const;

 protected:
  DeltaReader(const Version& version, Aside aside) : version_(version), aside_(std::move(aside)) {}

  const Version& version_;
  Aside aside_;
  std::vector<std::unique_ptr<base::File>> files_;
  std::uint64_t bytes_ = 0;
  std::vector<std::vector<std::size_t>> runs_;
};

}  // namespace syncline::store
