// A small model with a few versions of its weights: as bytes, as checkpoints on disk and in a store,
// and what an engine that serves one of them holds. Made once and shared by all cases.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/temp_dir.h"
#include "model/model.h"
#include "tensor/view.h"

namespace syncline::orders {

// "dense" and "tied" in bf16, "fp8" by blocks and the same with "packed" scales, "mixture" of
// experts, "latent" attention with a derived parameter.
inline constexpr std::string_view kModels[] = {"dense",  "tied",    "fp8",
                                               "packed", "mixture", "latent"};

inline constexpr std::size_t kVersions = 4;  // version 0 is the one that engines start with

// What becomes live together (update/transaction.h).
struct Group {
  std::vector<std::size_t> parameters;
  std::vector<std::size_t> tensors;
  bool quantised = false;
  bool derived = false;
  std::uint64_t bytes = 0;
};

// A checkpoint that cannot be served.
struct BrokenCheckpoint {
  std::string path;
  bool late = false;  // that shows only when its tensors have been read
};

// Immutable, but for the replica on disk.
class World {
 public:
  static base::Result<std::unique_ptr<World>> Make(std::string_view model);

  const std::string& name() const { return name_; }
  const layout::Plan& plan() const { return model_->plan(); }
  const std::vector<Group>& groups() const { return groups_; }
  std::size_t group_of(std::size_t tensor) const { return group_of_[tensor]; }
  std::uint64_t bytes() const { return bytes_; }  // of all groups
  std::size_t tensors() const { return plan().tensors().size(); }

  tensor::TensorView View(std::size_t tensor, std::size_t version) const;
  const std::string& digest(std::size_t tensor, std::size_t version) const {
    return digests_[version][tensor];
  }
  // All live bytes of an engine that has loaded the version.
  const std::vector<std::vector<std::byte>>& live(std::size_t version) const {
    return live_[version];
  }
  // Another name of a tensor whose bytes must be the same; empty: there is none.
  const std::string& alias() const { return alias_; }
  std::size_t aliased() const { return aliased_; }  // that tensor

  const std::string& directory(std::size_t version) const { return directories_[version]; }
  const std::vector<BrokenCheckpoint>& broken() const { return broken_; }
  const std::string& store() const { return store_; }  // of all versions but 0
  const std::string& scratch() const { return directory_.path(); }

 private:
  using Bytes = std::vector<std::vector<std::byte>>;

  explicit World(std::string_view name) : name_(name) {}
  base::Status MakeVersions(const std::string& config);
  base::Status WriteVersion(std::size_t version, const std::string& config);
  base::Status LoadVersions();
  void MakeGroups();
  base::Status MakeBroken(const std::string& config);
  base::Status WriteBroken(std::string_view name, const std::string& config,
                           const std::vector<tensor::TensorView>& tensors, bool late = false);
  base::Status MakeStore();
  std::vector<tensor::TensorView> Views(std::size_t version) const;

  const std::string name_;
  base::TempDir directory_{base::TempDir::MemoryFolder()};
  std::unique_ptr<model::Model> model_;  // of version 0, never computed
  std::vector<layout::TensorSpec> specs_;
  std::vector<Bytes> versions_;
  std::vector<std::vector<std::string>> digests_;
  std::vector<Bytes> live_;
  std::vector<Group> groups_;
  std::vector<std::size_t> group_of_;
  std::uint64_t bytes_ = 0;
  std::string alias_;
  std::size_t aliased_ = 0;
  std::vector<std::string> directories_;
  std::vector<BrokenCheckpoint> broken_;
  std::string store_;
};

}  // namespace syncline::orders
