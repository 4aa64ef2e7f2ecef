// What every scheme promises (scheme.h), for each of them over random matrices and bytes.
#include "quant/scheme.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>

#include "quant/fp8_block.h"
#include "quant/int8_example.h"
#include "quant/random_unit.h"
#include "quant/wna16_marlin.h"

namespace syncline::quant {
namespace {

struct Kind {
  const char* test;
  const char* name;
  std::shared_ptr<const Scheme> (*scheme)();
  Matrix (*matrix)();  // draws one that the scheme can hold
};

Matrix AnyFp8Matrix() {
  Matrix matrix;
  matrix.experts = Draw(0, 4);
  const std::uint64_t parts = Draw(1, 4);
  for (std::uint64_t i = 0; i < parts; ++i) {
    matrix.part_rows.push_back(Draw(0, 2) == 0 ? Draw(1, 3) * 128 : Draw(1, 300));
  }
  matrix.columns = Draw(0, 2) == 0 ? Draw(1, 6) * 128 : Draw(1, 700);
  return matrix;
}

Matrix AnyInt4Matrix(std::uint64_t group) {
  Matrix matrix;
  matrix.experts = Draw(0, 4);
  const std::uint64_t bands = Draw(1, 5);
  const std::uint64_t first = Draw(1, bands * 64);  // parts need not be whole bands
  matrix.part_rows = {first, bands * 64 - first};
  matrix.columns = group == 0 ? Draw(1, 70) * 16 : Draw(1, 1 + 600 / group) * std::lcm(group, 16);
  matrix.activation = Draw(0, 2) == 0 ? tensor::Dtype::kBF16 : tensor::Dtype::kF16;
  return matrix;
}

// The shape of a load layout as its blocks say.
std::vector<std::uint64_t> BlocksOf(const Matrix& matrix, const Slot& slot) {
  const auto blocks = [](std::uint64_t length, std::uint64_t block) {
    return block == 0 ? 1 : (length + block - 1) / block;
  };
  std::uint64_t rows = 0;
  for (const std::uint64_t part : matrix.part_rows) rows += blocks(part, slot.block_rows);
  std::vector<std::uint64_t> shape = {rows, blocks(matrix.columns, slot.block_columns)};
  if (slot.columns_first) std::ranges::reverse(shape);
  if (matrix.experts != 0) shape.insert(shape.begin(), matrix.experts);
  return shape;
}

template <std::uint64_t group>
Kind Int4Kind(const char* test) {
  return {test, "wna16-marlin", [] { return Wna16Marlin(group); },
          [] { return AnyInt4Matrix(group); }};
}

class SchemeTest : public testing::TestWithParam<Kind> {
 protected:
  // A property of a random unit: body(matrix, slots, bytes in load layout).
  template <typename Body>
  void ForRandomUnits(const Body& body) {
    const bool holds = rc::check([&] {
      const Matrix matrix = GetParam().matrix();
      RC_ASSERT(scheme_->Check(matrix).has_value());
      const std::vector<Slot> slots = scheme_->Slots(matrix);
      body(matrix, slots, RandomLoad(slots));
    });
    EXPECT_TRUE(holds);
  }
  void Process(const Matrix& matrix, SlotMemory& memory) {
    scheme_->Process(matrix, memory.Views(), pool_);
  }
  void Restore(const Matrix& matrix, SlotMemory& memory) {
    scheme_->Restore(matrix, memory.Views(), pool_);
  }
  std::vector<std::uint16_t> Values(const Matrix& matrix, const SlotMemory& memory, Layout layout,
                                    std::uint64_t expert, std::uint64_t first, std::uint64_t last) {
    std::vector<std::uint16_t> values((last - first) * matrix.columns);
    scheme_->Dequantise(matrix, memory.ConstViews(), layout, expert, first, last, values.data());
    return values;
  }

  const std::shared_ptr<const Scheme> scheme_ = GetParam().scheme();
  base::ThreadPool pool_{2};
};

TEST_P(SchemeTest, NameAndSlots) {
  EXPECT_EQ(scheme_->name(), GetParam().name);
  ForRandomUnits([&](const Matrix& matrix, const std::vector<Slot>& slots, const SlotMemory&) {
    for (const Slot& slot : slots) {
      RC_ASSERT(slot.load.shape == BlocksOf(matrix, slot));
      RC_ASSERT(slot.runtime_bytes >= slot.runtime.bytes());
      RC_ASSERT(slot.load.bytes() % matrix.count() == 0U);
      RC_ASSERT(slot.runtime_bytes % matrix.count() == 0U);
      if (!scheme_->Repacks()) {
        RC_ASSERT(slot.load.shape == slot.runtime.shape);
        RC_ASSERT(slot.load.dtype == slot.runtime.dtype);
      }
    }
  });
}

TEST_P(SchemeTest, RestoreIsTheInverseOfProcess) {
  ForRandomUnits([&](const Matrix& matrix, const std::vector<Slot>& slots, SlotMemory load) {
    SlotMemory memory = load;
    Process(matrix, memory);
    const SlotMemory runtime = memory;
    Restore(matrix, memory);
    const SlotMemory restored = memory;
    if (scheme_->Exact()) {
      RC_ASSERT(Cut(slots, Layout::kLoad, restored) == Cut(slots, Layout::kLoad, load));
    }
    Process(matrix, memory);
    RC_ASSERT(Cut(slots, Layout::kRuntime, memory) == Cut(slots, Layout::kRuntime, runtime));
    Restore(matrix, memory);
    RC_ASSERT(Cut(slots, Layout::kLoad, memory) == Cut(slots, Layout::kLoad, restored));
  });
}

TEST_P(SchemeTest, AnyBytesMayBeRestored) {
  ForRandomUnits([&](const Matrix& matrix, const std::vector<Slot>& slots, SlotMemory memory) {
    Restore(matrix, memory);
    Process(matrix, memory);
    const SlotMemory runtime = memory;
    Restore(matrix, memory);
    Process(matrix, memory);
    RC_ASSERT(Cut(slots, Layout::kRuntime, memory) == Cut(slots, Layout::kRuntime, runtime));
  });
}

TEST_P(SchemeTest, ThreadsDoNotMatter) {
  base::ThreadPool alone(1);
  base::ThreadPool many(5);
  ForRandomUnits([&](const Matrix& matrix, const std::vector<Slot>& slots, SlotMemory memory) {
    SlotMemory other = memory;
    scheme_->Process(matrix, memory.Views(), alone);
    scheme_->Process(matrix, other.Views(), many);
    RC_ASSERT(Cut(slots, Layout::kRuntime, memory) == Cut(slots, Layout::kRuntime, other));
    scheme_->Restore(matrix, memory.Views(), alone);
    scheme_->Restore(matrix, other.Views(), many);
    RC_ASSERT(Cut(slots, Layout::kLoad, memory) == Cut(slots, Layout::kLoad, other));
  });
}

TEST_P(SchemeTest, ExpertsAreMatricesOfTheirOwn) {
  ForRandomUnits([&](const Matrix& matrix, const std::vector<Slot>& slots, SlotMemory memory) {
    Matrix one = matrix;
    one.experts = 0;
    std::vector<SlotMemory> each(matrix.count(), SlotMemory(scheme_->Slots(one)));
    const auto part = [&](std::size_t slot, std::uint64_t bytes, std::uint64_t expert) {
      return std::span(memory.bytes[slot])
          .subspan(bytes / each.size() * expert, bytes / each.size());
    };
    for (std::uint64_t expert = 0; expert < each.size(); ++expert) {
      for (std::size_t slot = 0; slot < slots.size(); ++slot) {
        std::ranges::copy(part(slot, slots[slot].load.bytes(), expert),
                          each[expert].bytes[slot].begin());
      }
      Process(one, each[expert]);
    }
    Process(matrix, memory);
    for (std::uint64_t expert = 0; expert < each.size(); ++expert) {
      for (std::size_t slot = 0; slot < slots.size(); ++slot) {
        const auto runtime = part(slot, slots[slot].runtime_bytes, expert);
        RC_ASSERT(
            std::ranges::equal(runtime, std::span(each[expert].bytes[slot]).first(runtime.size())));
      }
      RC_ASSERT(Values(matrix, memory, Layout::kRuntime, expert, 0, matrix.rows()) ==
                Values(one, each[expert], Layout::kRuntime, 0, 0, matrix.rows()));
    }
  });
}

TEST_P(SchemeTest, BothLayoutsHaveTheSameValues) {
  ForRandomUnits([&](const Matrix& matrix, const std::vector<Slot>&, SlotMemory memory) {
    if (!scheme_->Exact()) {
      Process(matrix, memory);
      Restore(matrix, memory);
    }
    const std::uint64_t expert = Draw(0, matrix.count());
    const std::uint64_t rows = matrix.rows();
    const auto expected = Values(matrix, memory, Layout::kLoad, expert, 0, rows);
    Process(matrix, memory);
    RC_ASSERT(Values(matrix, memory, Layout::kRuntime, expert, 0, rows) == expected);
  });
}

TEST_P(SchemeTest, RowsCanBeReadInPieces) {
  ForRandomUnits([&](const Matrix& matrix, const std::vector<Slot>&, SlotMemory memory) {
    const std::uint64_t expert = Draw(0, matrix.count());
    const std::uint64_t rows = matrix.rows();
    for (const Layout layout : {Layout::kLoad, Layout::kRuntime}) {
      if (layout == Layout::kRuntime) Process(matrix, memory);
      const auto whole = Values(matrix, memory, layout, expert, 0, rows);
      std::vector<std::uint16_t> pieces;
      std::uint64_t first = 0;
      while (first < rows) {
        const std::uint64_t step = scheme_->RowStep() * Draw(1, 200);
        const std::uint64_t last = std::min(rows, first + step);
        std::ranges::copy(Values(matrix, memory, layout, expert, first, last),
                          std::back_inserter(pieces));
        first = last;
      }
      RC_ASSERT(pieces == whole);
    }
  });
}

TEST_P(SchemeTest, MatricesThatMakeNoSenseAreRefused) {
  constexpr std::uint64_t kHuge = std::uint64_t{1} << 40;
  const std::vector<Matrix> wrong = {
      {.part_rows = {}, .columns = 128},
      {.part_rows = {64, 0}, .columns = 128},
      {.part_rows = {128}, .columns = 0},
      {.part_rows = {kHuge}, .columns = kHuge},
      {.part_rows = {~std::uint64_t{0}, 128}, .columns = 128},
      {.experts = ~std::uint64_t{0}, .part_rows = {128}, .columns = 128},
  };
  for (const Matrix& matrix : wrong) {
    const base::Status checked = scheme_->Check(matrix);
    ASSERT_FALSE(checked.has_value());
    EXPECT_EQ(checked.error().code, base::Code::kInvalidArgument);
    EXPECT_NE(checked.error().message.find("expected"), std::string::npos);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Schemes, SchemeTest,
    testing::Values(Kind{"fp8-block", "fp8-block", Fp8Block, AnyFp8Matrix},
                    Kind{"int8-example", "int8-channel", Int8Example, AnyFp8Matrix},
                    Kind{"fp8-block-ue8m0", "fp8-block-ue8m0", Fp8BlockUe8m0, AnyFp8Matrix},
                    Int4Kind<0>("int4-by-channel"), Int4Kind<8>("int4-by-8"),
                    Int4Kind<64>("int4-by-64"), Int4Kind<128>("int4-by-128")),
    [](const auto& tested) {
      std::string name = tested.param.test;
      std::ranges::replace(name, '-', '_');
      return name;
    });

}  // namespace
}  // namespace syncline::quant
