#include "layout/shard_planner.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>

namespace syncline::layout {
namespace {

using Shape = ShardPlanner::Shape;

// Rows [begin, end) of an array of that shape.
Box RowsOf(const Shape& shape, std::uint64_t begin, std::uint64_t end) {
  Box box = WholeBox(shape);
  box.begin[0] = begin;
  box.end[0] = end;
  return box;
}

Shape Join(std::uint64_t rows, const Shape& columns) {
  Shape shape = {rows};
  shape.insert(shape.end(), columns.begin(), columns.end());
  return shape;
}

}  // namespace

std::uint64_t VocabularyShare(std::uint64_t vocabulary, std::uint32_t size) {
  constexpr std::uint64_t kMultiple = 64;
  if (size == 1) return vocabulary;
  const std::uint64_t padded = (vocabulary + kMultiple - 1) / kMultiple * kMultiple;
  return (padded + size - 1) / size;
}

ShardPlanner::ShardPlanner(const Shard& shard, DtypeOf dtype_of)
    : shard_(shard), dtype_of_(std::move(dtype_of)) {}

TensorSpec ShardPlanner::Spec(const std::string& tensor, Shape shape) const {
  return {.name = tensor, .dtype = dtype_of_(tensor), .shape = std::move(shape)};
}

std::uint64_t ShardPlanner::Divide(std::uint64_t units, std::uint64_t ranks,
                                   const std::string& what) {
  if (units % ranks == 0) return units / ranks;
  if (status_) {
    status_ = base::Fail(
        base::Code::kInvalidArgument,
        fmt::format("{} ({}) cannot be divided evenly among {} ranks", what, units, ranks));
  }
  return units / ranks + 1;  // of no use, but not zero
}

std::size_t ShardPlanner::Replicated(const std::string& tensor, const Shape& shape) {
  const TensorSpec spec = Spec(tensor, shape);
  const std::size_t parameter = builder_.AddParameter(spec);
  builder_.AddPiece({.tensor = builder_.AddTensor(spec),
                     .parameter = parameter,
                     .source = WholeBox(shape),
                     .destination = WholeBox(shape),
                     .owner = shard_.rank == 0});
  return parameter;
}

std::size_t ShardPlanner::Columns(const std::string& parameter, const std::vector<Part>& parts,
                                  const Shape& columns) {
  struct Share {
    std::uint64_t from = 0;  // row of the tensor
    std::uint64_t rows = 0;
    bool owner = true;
  };
  std::vector<Share> shares;
  std::uint64_t rows = 0;
  for (const Part& part : parts) {
    Share share;
    if (part.repeat && part.units < shard_.size) {
      const std::uint64_t copies = shard_.size / part.units;
      if (shard_.size % part.units != 0 && status_) {
        status_ = base::Fail(base::Code::kInvalidArgument,
                             fmt::format("{} ({}) and {} ranks: neither divides the other",
                                         part.what, part.units, shard_.size));
      }
      share = {.from = std::min(shard_.rank / copies, part.units - 1) * part.unit_rows,
               .rows = part.unit_rows,
               .owner = shard_.rank % copies == 0};
    } else {
      const std::string what =
          part.what.empty() ? fmt::format("the rows of {}", part.tensor) : part.what;
      const std::uint64_t own = Divide(part.units, shard_.size, what) * part.unit_rows;
      share = {.from = shard_.rank * own, .rows = own};
    }
    rows += share.rows;
    shares.push_back(share);
  }
  const std::size_t to = builder_.AddParameter(
      {.name = parameter, .dtype = dtype_of_(parts.front().tensor), .shape = Join(rows, columns)});
  std::uint64_t row = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Shape shape = Join(parts[i].units * parts[i].unit_rows, columns);
    const Share& share = shares[i];
    builder_.AddPiece({.tensor = builder_.AddTensor(Spec(parts[i].tensor, shape)),
                       .parameter = to,
                       .source = RowsOf(shape, share.from, share.from + share.rows),
                       .destination = RowsOf(Join(rows, columns), row, row + share.rows),
                       .owner = share.owner});
    row += share.rows;
  }
  return to;
}

std::size_t ShardPlanner::Columns(const std::string& tensor, std::uint64_t rows,
                                  const Shape& columns) {
  return Columns(tensor, {{.tensor = tensor, .units = rows}}, columns);
}

std::size_t ShardPlanner::Rows(const std::string& tensor, std::uint64_t rows, std::uint64_t columns,
                               std::uint64_t unit_columns) {
  const std::uint64_t own =
      Divide(columns / unit_columns, shard_.size, fmt::format("the columns of {}", tensor)) *
      unit_columns;
  const Shape shape = {rows, columns};
  const std::size_t to =
      builder_.AddParameter({.name = tensor, .dtype = dtype_of_(tensor), .shape = {rows, own}});
  builder_.AddPiece({.tensor = builder_.AddTensor(Spec(tensor, shape)),
                     .parameter = to,
                     .source = {{0, shard_.rank * own}, {rows, (shard_.rank + 1) * own}},
                     .destination = WholeBox(Shape{rows, own})});
  return to;
}

std::size_t ShardPlanner::Vocabulary(const std::string& tensor, std::uint64_t vocabulary,
                                     std::uint64_t columns) {
  const std::uint64_t share = VocabularyShare(vocabulary, shard_.size);
  const std::uint64_t begin = std::min(shard_.rank * share, vocabulary);
  const std::uint64_t end = std::min(begin + share, vocabulary);
  const TensorSpec spec = Spec(tensor, {vocabulary, columns});
  const Shape local = {share, columns};
  const std::size_t to =
      builder_.AddParameter({.name = tensor, .dtype = spec.dtype, .shape = local});
  if (begin == end) {
    builder_.AddAbsent(spec);
  } else {
    builder_.AddPiece({.tensor = builder_.AddTensor(spec),
                       .parameter = to,
                       .source = RowsOf(spec.shape, begin, end),
                       .destination = RowsOf(local, 0, end - begin)});
  }
  if (end - begin < share) {
    builder_.AddFill({.parameter = to, .box = RowsOf(local, end - begin, share)});
  }
  return to;
}

ShardPlanner::ExpertParameters ShardPlanner::Experts(const std::string& prefix,
                                                     std::uint64_t experts, std::uint64_t width,
                                                     std::uint64_t hidden) {
  const std::uint64_t local = Divide(experts, shard_.expert_groups, "the number of experts");
  const std::uint64_t first = shard_.expert_group() * local;
  const std::uint64_t own = Divide(width, shard_.expert_shards(), "moe_intermediate_size");
  const std::uint64_t from = shard_.expert_shard() * own;
  const tensor::Dtype dtype = dtype_of_(prefix + "0.gate_proj.weight");
  const Shape gate_up_shape = {local, 2 * own, hidden};
  const Shape down_shape = {local, hidden, own};
  const ExpertParameters to = {
      .gate_up = builder_.AddParameter({prefix + "w13_weight", dtype, gate_up_shape}),
      .down = builder_.AddParameter({prefix + "w2_weight", dtype, down_shape})};
  for (std::uint64_t e = 0; e < experts; ++e) {
    const auto spec = [&](std::string_view name, Shape shape) {
      return TensorSpec{fmt::format("{}{}.{}_proj.weight", prefix, e, name), dtype,
                        std::move(shape)};
    };
    const TensorSpec gate = spec("gate", {width, hidden});
    const TensorSpec up = spec("up", {width, hidden});
    const TensorSpec down = spec("down", {hidden, width});
    if (e < first || e >= first + local) {
      for (const TensorSpec* absent : {&gate, &up, &down}) builder_.AddAbsent(*absent);
      continue;
    }
    const std::uint64_t i = e - first;
    builder_.AddPiece({.tensor = builder_.AddTensor(gate),
                       .parameter = to.gate_up,
                       .source = {{from, 0}, {from + own, hidden}},
                       .destination = {{i, 0, 0}, {i + 1, own, hidden}}});
    builder_.AddPiece({.tensor = builder_.AddTensor(up),
                       .parameter = to.gate_up,
                       .source = {{from, 0}, {from + own, hidden}},
                       .destination = {{i, own, 0}, {i + 1, 2 * own, hidden}}});
    builder_.AddPiece({.tensor = builder_.AddTensor(down),
                       .parameter = to.down,
                       .source = {{0, from}, {hidden, from + own}},
                       .destination = {{i, 0, 0}, {i + 1, hidden, own}}});
  }
  return to;
}

std::size_t ShardPlanner::Derived(const std::string& parameter, tensor::Dtype dtype,
                                  const Shape& shape) {
  return builder_.AddDerived({.name = parameter, .dtype = dtype, .shape = shape});
}

base::Result<Plan> ShardPlanner::Build() && {
  SYNCLINE_TRY(std::move(status_));
  return std::move(builder_).Build();
}

}  // namespace syncline::layout
