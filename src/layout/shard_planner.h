// Builds the plan of one rank out of the ways in which an engine divides tensors among ranks.
//
// Source of the rules: Megatron-LM (Shoeybi et al., 2019) for columns and rows; what engines do
// with key heads, vocabularies and experts is in docs/guide/add-a-model.md.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "layout/plan.h"
#include "layout/shard.h"

namespace syncline::layout {

// What a tensor that goes with a weight matrix holds of it: an element for each block of so many
// rows and columns (its scales; words of several values). The tensor is divided as the matrix is,
// along borders of blocks: only the last block of a checkpoint tensor may be short.
struct Blocks {
  std::uint64_t rows = 1;
  std::uint64_t columns = 1;           // 0: all, on each rank
  std::optional<tensor::Dtype> dtype;  // nothing: that of the checkpoint's tensor
};

// Not thread-safe. Every method that adds a parameter returns its number in the plan. A division
// that does not come out even is remembered and returned by Build.
class ShardPlanner {
 public:
  using DtypeOf = std::function<tensor::Dtype(std::string_view tensor)>;
  using Shape = std::vector<std::uint64_t>;

  // `dtype_of`: of checkpoint tensors; those of one parameter have the same.
  ShardPlanner(const Shard& shard, DtypeOf dtype_of);

  const Shard& shard() const { return shard_; }
  tensor::Dtype DtypeOfTensor(std::string_view tensor) const { return dtype_of_(tensor); }

  // The whole tensor on every rank, as the parameter of the same name. `shape`: of the matrix.
  std::size_t Replicated(const std::string& tensor, const Shape& shape, const Blocks& blocks = {});

  // Rows of a weight matrix, [units · unit_rows, columns] in the checkpoint: each rank gets
  // units / size of them. With `repeat`, where there are fewer units than ranks, each is on size /
  // units ranks next to each other (key heads).
  struct Part {
    std::string tensor;
    std::uint64_t units = 0;
    std::uint64_t unit_rows = 1;
    bool repeat = false;
    std::string what;  // for messages, where units are not rows: "num_key_value_heads"
  };
  // Column parallel: this rank's share of each part, one below the other. `columns` is empty for
  // vectors (biases).
  std::size_t Columns(const std::string& parameter, const std::vector<Part>& parts,
                      const Shape& columns, const Blocks& blocks = {});
  // Column parallel, one tensor, one parameter.
  std::size_t Columns(const std::string& tensor, std::uint64_t rows, const Shape& columns);

  // Row parallel: all rows, this rank's share of columns.
  std::size_t Rows(const std::string& tensor, std::uint64_t rows, std::uint64_t columns,
                   std::uint64_t unit_columns = 1, const Blocks& blocks = {});

  // An embedding or head of [vocabulary, columns]: VocabularyShare rows on each rank, the last ones
  // padded with zeros.
  std::size_t Vocabulary(const std::string& tensor, std::uint64_t vocabulary,
                         std::uint64_t columns);

  // The routed experts of a layer: gate over up in one parameter `prefix`w13_`kind` [local experts,
  // 2 · local width, hidden], down in `prefix`w2_`kind` [local experts, hidden, local width].
  // Checkpoint tensors `prefix`E.{gate,up,down}_proj.`kind`.
  struct ExpertParameters {
    std::size_t gate_up = 0;
    std::size_t down = 0;
  };
  ExpertParameters Experts(const std::string& prefix, std::uint64_t experts, std::uint64_t width,
                           std::uint64_t hidden, const std::string& kind = "weight",
                           const Blocks& blocks = {});

  // This rank's share, as the methods above divide: rows of a part, columns, experts, and of each
  // the width. An uneven division is remembered as there.
  std::uint64_t OwnRows(const Part& part);
  std::uint64_t OwnColumns(const std::string& tensor, std::uint64_t columns,
                           std::uint64_t unit_columns = 1);
  std::uint64_t OwnExperts(std::uint64_t experts);
  std::uint64_t OwnWidth(std::uint64_t width);

  // Computed from other parameters, in the local shape.
  std::size_t Derived(const std::string& parameter, tensor::Dtype dtype, const Shape& shape);

  void Skip(std::string name_or_pattern) { builder_.Skip(std::move(name_or_pattern)); }
  void Alias(std::string name, std::string tensor) {
    builder_.Alias(std::move(name), std::move(tensor));
  }

  // kInvalidArgument: the model cannot be divided so; what and why. Else as PlanBuilder::Build.
  base::Result<Plan> Build() &&;

 private:
  struct Share {
    std::uint64_t from = 0;  // row of the matrix
    std::uint64_t rows = 0;
    bool owner = true;
  };
  // Which lines of a tensor a rank has, rows or columns, of `all`.
  struct Cut {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint64_t all = 0;
    std::uint64_t size() const { return end - begin; }
  };

  // Of `units`, for messages called `what`, among `ranks`: how many each one gets.
  std::uint64_t Divide(std::uint64_t units, std::uint64_t ranks, const std::string& what);
  Share ShareOf(const Part& part);
  // Lines [from, from + own) of `all` of the matrix, in blocks of `block`.
  Cut CutLines(const std::string& tensor, const char* lines, std::uint64_t from, std::uint64_t own,
               std::uint64_t all, std::uint64_t block);
  TensorSpec Spec(const std::string& tensor, Shape shape, const Blocks& blocks = {}) const;
  struct ExpertCuts {
    Cut gate_rows, gate_columns, down_rows, down_columns;
    bool owns_down = true;
  };
  // The tensors of expert number `i` of `local` on this rank; beyond them: of another rank.
  void AddExpert(const std::string& name, const std::string& kind, std::uint64_t i,
                 std::uint64_t local, const ExpertCuts& cuts, const ExpertParameters& to,
                 tensor::Dtype dtype);

  Shard shard_;
  DtypeOf dtype_of_;
  PlanBuilder builder_;
  base::Status status_;
};

// Rows of a vocabulary on each rank of `size`: of one all, of several a share of the vocabulary
// padded to a multiple of 64, rounded up.
std::uint64_t VocabularyShare(std::uint64_t vocabulary, std::uint32_t size);

}  // namespace syncline::layout
