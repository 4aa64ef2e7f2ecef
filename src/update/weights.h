// Changes the weights of a running engine, all or nothing, and reads them back.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "engine/engine.h"
#include "tensor/dtype.h"

namespace syncline::model {
class Model;
}

namespace syncline::update {

struct DiskUpdate {
  std::string path;  // checkpoint directory
  std::optional<std::string> weight_version;
  bool flush_cache = true;
};

struct UpdateReport {
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;
  double stage_seconds = 0;  // reading and checking, while the engine may go on
  double apply_seconds = 0;  // in which no forward can run
};

struct PullRequest {
  std::string source;   // store
  std::string replica;  // local checkpoint directory
  std::uint64_t version = 0;
};

struct ExportedTensor {
  std::string name;  // as in a checkpoint
  tensor::Dtype dtype = tensor::Dtype::kBF16;
  std::vector<std::uint64_t> shape;
  std::vector<std::byte> bytes;
};

// Thread-safe. Slow work runs on threads of its own; one update and one pull at a time, further
// ones wait in order. Callbacks come on those threads.
class Weights {
 public:
  // All three must outlive it. `launch_path`: the checkpoint that the model was loaded from;
  // version 0 of a pull.
  static std::unique_ptr<Weights> Create(base::FileSystem& files, engine::Engine& engine,
                                         model::Model& model, std::string launch_path);
  // Running pulls and reading are cancelled; an update that waits for the engine is waited for, so
  // stop that first.
  virtual ~Weights() = default;

  using Updated = std::function<void(base::Result<UpdateReport>)>;
  // 1. Reads and checks the whole checkpoint (config.json's architecture, every name, shape, dtype;
  //    nothing missing, nothing unknown) into a second arena,
  // 2. then, with no forward running (Engine::Exclusive), exchanges it with the live bytes. A
  //    failure before that leaves everything as it was;
  // nothing after it can fail. If the path is a replica, its lock is held shared while it is read,
  // and it must be whole and stay at its version.
  virtual void FromDisk(DiskUpdate update, Updated done) = 0;

  virtual void Pull(PullRequest request, std::function<void(base::Status)> done) = 0;

  // The live bytes of a checkpoint tensor. kNotFound for a name that the model has none of.
  virtual void Export(std::string name, std::function<void(base::Result<ExportedTensor>)> done) = 0;
  virtual std::vector<std::string> names() const = 0;  // of all checkpoint tensors

  virtual std::string model_path() const = 0;  // of the last good load
};

}  // namespace syncline::update
