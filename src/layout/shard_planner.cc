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

std::uint64_t CeilDivide(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; }

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

TensorSpec ShardPlanner::Spec(const std::string& tensor, Shape shape, const Blocks& blocks) const {
  return {.name = tensor,
          .dtype = blocks.dtype ? *blocks.dtype : dtype_of_(tensor),
          .shape = std::move(shape)};
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

ShardPlanner::Cut ShardPlanner::CutLines(const std::string& tensor, const char* lines,
                                         std::uint64_t from, std::uint64_t own, std::uint64_t all,
                                         std::uint64_t block) {
  if (block == 0) return {.begin = 0, .end = 1, .all = 1};
  if (own != all && own % block != 0 && status_) {
    status_ = base::Fail(
        base::Code::kInvalidArgument,
        fmt::format("the {} of {} cannot be divided evenly among {} ranks: each would have {} of "
                    "the matrix, expected a multiple of {}",
                    lines, tensor, shard_.size, own, block));
  }
  return {
      .begin = from / block, .end = CeilDivide(from + own, block), .all = CeilDivide(all, block)};
}

std::size_t ShardPlanner::Replicated(const std::string& tensor, const Shape& shape,
                                     const Blocks& blocks) {
  Shape own = shape;
  if (shape.size() == 2) {
    own = {CutLines(tensor, "rows", 0, shape[0], shape[0], blocks.rows).all,
           CutLines(tensor, "columns", 0, shape[1], shape[1], blocks.columns).all};
  }
  const TensorSpec spec = Spec(tensor, own, blocks);
  const std::size_t parameter = builder_.AddParameter(spec);
  builder_.AddPiece({.tensor = builder_.AddTensor(spec),
                     .parameter = parameter,
                     .source = WholeBox(own),
                     .destination = WholeBox(own),
                     .owner = shard_.rank == 0});
  return parameter;
}

ShardPlanner::Share ShardPlanner::ShareOf(const Part& part) {
  if (part.repeat && part.units < shard_.size) {
    const std::uint64_t copies = shard_.size / part.units;
    if (shard_.size % part.units != 0 && status_) {
      status_ = base::Fail(base::Code::kInvalidArgument,
                           fmt::format("{} ({}) and {} ranks: neither divides the other", part.what,
                                       part.units, shard_.size));
    }
    return {.from = std::min(shard_.rank / copies, part.units - 1) * part.unit_rows,
            .rows = part.unit_rows,
            .owner = shard_.rank % copies == 0};
  }
  const std::string what =
      part.what.empty() ? fmt::format("the rows of {}", part.tensor) : part.what;
  const std::uint64_t own = Divide(part.units, shard_.size, what) * part.unit_rows;
  return {.from = shard_.rank * own, .rows = own};
}

std::size_t ShardPlanner::Columns(const std::string& parameter, const std::vector<Part>& parts,
                                  const Shape& columns, const Blocks& blocks) {
  Shape width = columns;
  if (!columns.empty()) {
    width[0] = CutLines(parameter, "columns", 0, columns[0], columns[0], blocks.columns).all;
  }
  struct Slice {
    Cut cut;
    bool owner = true;
  };
  std::vector<Slice> slices;
  std::uint64_t rows = 0;
  for (const Part& part : parts) {
    const Share share = ShareOf(part);
    slices.push_back({.cut = CutLines(part.tensor, "rows", share.from, share.rows,
                                      part.units * part.unit_rows, blocks.rows),
                      .owner = share.owner});
    rows += slices.back().cut.size();
  }
  const std::size_t to = builder_.AddParameter(
      {.name = parameter,
       .dtype = blocks.dtype ? *blocks.dtype : dtype_of_(parts.front().tensor),
       .shape = Join(rows, width)});
  std::uint64_t row = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Cut& cut = slices[i].cut;
    const Shape shape = Join(cut.all, width);
    builder_.AddPiece({.tensor = builder_.AddTensor(Spec(parts[i].tensor, shape, blocks)),
                       .parameter = to,
                       .source = RowsOf(shape, cut.begin, cut.end),
                       .destination = RowsOf(Join(rows, width), row, row + cut.size()),
                       .owner = slices[i].owner});
    row += cut.size();
  }
  return to;
}

std::size_t ShardPlanner::Columns(const std::string& tensor, std::uint64_t rows,
                                  const Shape& columns) {
  return Columns(tensor, {{.tensor = tensor, .units = rows}}, columns);
}

std::size_t ShardPlanner::Rows(const std::string& tensor, std::uint64_t rows, std::uint64_t columns,
                               std::uint64_t unit_columns, const Blocks& blocks) {
  const std::uint64_t own = OwnColumns(tensor, columns, unit_columns);
  const Cut down = CutLines(tensor, "rows", 0, rows, rows, blocks.rows);
  const Cut across = CutLines(tensor, "columns", shard_.rank * own, own, columns, blocks.columns);
  const TensorSpec spec = Spec(tensor, {down.all, across.all}, blocks);
  const Shape local = {down.all, across.size()};
  const std::size_t to =
      builder_.AddParameter({.name = tensor, .dtype = spec.dtype, .shape = local});
  builder_.AddPiece({.tensor = builder_.AddTensor(spec),
                     .parameter = to,
                     .source = {{0, across.begin}, {down.all, across.end}},
                     .destination = WholeBox(local),
                     .owner = blocks.columns != 0 || shard_.rank == 0});
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
                                                     std::uint64_t hidden, const std::string& kind,
                                                     const Blocks& blocks) {
  const std::uint64_t local = OwnExperts(experts);
  const std::uint64_t first = shard_.expert_group() * local;
  const std::uint64_t own = OwnWidth(width);
  const std::uint64_t from = shard_.expert_shard() * own;
  const std::string w13 = prefix + "w13_" + kind;
  const std::string w2 = prefix + "w2_" + kind;
  const ExpertCuts cuts = {
      .gate_rows = CutLines(w13, "rows", from, own, width, blocks.rows),
      .gate_columns = CutLines(w13, "columns", 0, hidden, hidden, blocks.columns),
      .down_rows = CutLines(w2, "rows", 0, hidden, hidden, blocks.rows),
      .down_columns = CutLines(w2, "columns", from, own, width, blocks.columns),
      .owns_down = blocks.columns != 0 || shard_.expert_shard() == 0};
  const tensor::Dtype dtype = Spec(prefix + "0.gate_proj." + kind, {}, blocks).dtype;
  const Shape gate_up_shape = {local, 2 * cuts.gate_rows.size(), cuts.gate_columns.all};
  const Shape down_shape = {local, cuts.down_rows.all, cuts.down_columns.size()};
  const ExpertParameters to = {.gate_up = builder_.AddParameter({w13, dtype, gate_up_shape}),
                               .down = builder_.AddParameter({w2, dtype, down_shape})};
  for (std::uint64_t e = 0; e < experts; ++e) {
    // Beyond `local`: that of another rank.
    AddExpert(fmt::format("{}{}.", prefix, e), kind, e >= first ? e - first : local, local, cuts,
              to, dtype);
  }
  return to;
}

void ShardPlanner::AddExpert(const std::string& name, const std::string& kind, std::uint64_t i,
                             std::uint64_t local, const ExpertCuts& cuts,
                             const ExpertParameters& to, tensor::Dtype dtype) {
  const auto spec = [&](const char* projection, std::uint64_t rows, std::uint64_t columns) {
    return TensorSpec{fmt::format("{}{}_proj.{}", name, projection, kind), dtype, {rows, columns}};
  };
  const TensorSpec gate = spec("gate", cuts.gate_rows.all, cuts.gate_columns.all);
  const TensorSpec up = spec("up", cuts.gate_rows.all, cuts.gate_columns.all);
  const TensorSpec down = spec("down", cuts.down_rows.all, cuts.down_columns.all);
  if (i >= local) {
    for (const TensorSpec* absent : {&gate, &up, &down}) builder_.AddAbsent(*absent);
    return;
  }
  const std::uint64_t own = cuts.gate_rows.size();
  const std::uint64_t hidden = cuts.gate_columns.all;
  const Box source = {{cuts.gate_rows.begin, 0}, {cuts.gate_rows.end, hidden}};
  builder_.AddPiece({.tensor = builder_.AddTensor(gate),
                     .parameter = to.gate_up,
                     .source = source,
                     .destination = {{i, 0, 0}, {i + 1, own, hidden}}});
  builder_.AddPiece({.tensor = builder_.AddTensor(up),
                     .parameter = to.gate_up,
                     .source = source,
                     .destination = {{i, own, 0}, {i + 1, 2 * own, hidden}}});
  const Cut& across = cuts.down_columns;
  builder_.AddPiece({.tensor = builder_.AddTensor(down),
                     .parameter = to.down,
                     .source = {{0, across.begin}, {cuts.down_rows.all, across.end}},
                     .destination = {{i, 0, 0}, {i + 1, cuts.down_rows.all, across.size()}},
                     .owner = cuts.owns_down});
}

std::uint64_t ShardPlanner::OwnRows(const Part& part) { return ShareOf(part).rows; }

std::uint64_t ShardPlanner::OwnColumns(const std::string& tensor, std::uint64_t columns,
                                       std::uint64_t unit_columns) {
  return Divide(columns / unit_columns, shard_.size, fmt::format("the columns of {}", tensor)) *
         unit_columns;
}

std::uint64_t ShardPlanner::OwnExperts(std::uint64_t experts) {
  return Divide(experts, shard_.expert_groups, "the number of experts");
}

std::uint64_t ShardPlanner::OwnWidth(std::uint64_t width) {
  return Divide(width, shard_.expert_shards(), "moe_intermediate_size");
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
