// The example and the test vectors of docs/format.md ("The encoding compact"), read from that page.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <zstd.h>

#include <array>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result_matchers.h"
#include "base/temp_dir.h"
#include "delta/step_code.h"
#include "delta/step_kernels.h"
#include "delta/unit_kind.h"
#include "store/compact_writer.h"

namespace syncline::store {
namespace {

using base::ByteSpan;
using delta::UnitKind;
using tensor::TensorView;
using Bytes = std::vector<std::byte>;
using Row = std::vector<std::string>;

std::vector<std::string> Document() {
  std::ifstream file(SYNCLINE_FORMAT_DOCUMENT);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// The cells of the rows of the table with that head line, without blanks around them and backticks.
std::vector<Row> Table(std::string_view head) {
  const std::vector<std::string> lines = Document();
  std::vector<Row> rows;
  auto line = std::ranges::find(lines, head);
  for (line += line == lines.end() ? 0 : 2; line != lines.end() && line->starts_with('|'); ++line) {
    Row row;
    for (std::size_t at = 1; at < line->size();) {
      const std::size_t end = line->find('|', at);
      std::string cell = line->substr(at, end - at);
      std::erase(cell, '`');
      const std::size_t first = cell.find_first_not_of(' ');
      row.push_back(cell.substr(first, cell.find_last_not_of(' ') + 1 - first));
      at = end + 1;
    }
    rows.push_back(row);
  }
  EXPECT_FALSE(rows.empty()) << head;
  return rows;
}

std::uint32_t Number(const std::string& text, int radix = 10) {
  return static_cast<std::uint32_t>(std::stoul(text, nullptr, radix));
}

// The bytes of a dump: after each line's offset, up to two blanks.
Bytes Dump(std::string_view title) {
  const std::vector<std::string> lines = Document();
  Bytes bytes;
  auto line = std::ranges::find(lines, fmt::format("```hex {}", title));
  for (line += line == lines.end() ? 0 : 1; line != lines.end() && *line != "```"; ++line) {
    EXPECT_EQ(Number(*line), bytes.size()) << *line;
    std::size_t at = line->find_first_not_of(' ');
    at = line->find("  ", at) + 2;
    for (; at + 2 <= line->size() && (*line)[at] != ' '; at += 3) {
      bytes.push_back(static_cast<std::byte>(Number(line->substr(at, 2), 16)));
    }
  }
  EXPECT_FALSE(bytes.empty()) << title;
  return bytes;
}

Bytes Units(const std::string& text) {
  Bytes bytes;
  for (std::size_t at = 0; at < text.size(); at += 5) {
    const std::uint32_t unit = Number(text.substr(at, 4), 16);
    bytes.push_back(static_cast<std::byte>(unit & 255));
    bytes.push_back(static_cast<std::byte>(unit >> 8));
  }
  return bytes;
}

// The file that the writer makes of the example's tensors.
Bytes WrittenExample() {
  const std::vector<Row> rows = Table("| tensor | dtype | shape | units before | units after |");
  std::vector<Bytes> memory;
  memory.reserve(2 * rows.size());
  std::vector<TensorView> old_tensors;
  std::vector<TensorView> new_tensors;
  for (const Row& row : rows) {
    TensorView view = {.name = row[0], .dtype = tensor::FindDtype(row[1]).value()};
    for (std::size_t at = 0; at < row[2].size(); at += 2) {
      view.shape.push_back(Number(row[2].substr(at, 1)));
    }
    view.bytes = memory.emplace_back(Units(row[3]));
    old_tensors.push_back(view);
    view.bytes = memory.emplace_back(Units(row[4]));
    new_tensors.push_back(view);
  }
  const base::TempDir directory;
  std::vector<delta::ChangedLines> lines;
  base::ThreadPool pool(1);
  base::Progress progress;
  const DeltaFiles how = {.durable = false, .choice = delta::Encoding::kCompact};
  const auto counts = WriteCompact(base::FileSystem::Posix(), directory.path(), old_tensors,
                                   new_tensors, how, lines, pool, progress, nullptr);
  EXPECT_OK(counts);
  const auto text = base::ReadText(
      base::FileSystem::Posix(), base::JoinPath(directory.path(), "delta-00000.syncline"), 1 << 20);
  EXPECT_OK(text);
  const ByteSpan bytes = base::AsBytes(*text);
  return {bytes.begin(), bytes.end()};
}

// Where the table of a file stands, and what it holds.
std::uint64_t TableOffset(const Bytes& file) {
  return base::Load<std::uint64_t>(&file[file.size() - delta::kCompactTrailerBytes]);
}
Bytes TableContent(const Bytes& file) {
  const auto offset = static_cast<std::size_t>(TableOffset(file));
  const std::size_t size = file.size() - delta::kCompactTrailerBytes - offset;
  Bytes content(1024);
  const std::size_t got = ZSTD_decompress(content.data(), content.size(), &file[offset], size);
  EXPECT_FALSE(ZSTD_isError(got));
  content.resize(ZSTD_isError(got) ? 0 : got);
  return content;
}

TEST(CompactFormat, TheExampleIsWhatTheWriterMakes) {
  const Bytes expected = Dump("the file");
  const Bytes content = Dump("the content of its table");
  ASSERT_GT(expected.size(), delta::kCompactTrailerBytes);
  EXPECT_EQ(TableContent(expected), content);

  const Bytes written = WrittenExample();
  ASSERT_GT(written.size(), delta::kCompactTrailerBytes);
  EXPECT_EQ(TableContent(written), content);
  const auto offset = static_cast<std::ptrdiff_t>(TableOffset(expected));
  ASSERT_EQ(TableOffset(written), TableOffset(expected));
  EXPECT_EQ(Bytes(written.begin(), written.begin() + offset),
            Bytes(expected.begin(), expected.begin() + offset));
  if (ZSTD_versionNumber() == 10504) {
    EXPECT_EQ(written, expected);
  }
}

TEST(CompactFormat, Tokens) {
  for (const Row& row : Table("| value | token | extra bits | their value |")) {
    const std::uint32_t value = Number(row[0]);
    const delta::Token token = delta::ToToken(value);
    EXPECT_EQ(token.token, Number(row[1])) << value;
    EXPECT_EQ(token.extra_bits, Number(row[2])) << value;
    EXPECT_EQ(token.extra, Number(row[3])) << value;
    EXPECT_EQ(delta::ExtraBits(token.token), token.extra_bits) << value;
    EXPECT_EQ(delta::kTokenBases[token.token] + token.extra, value);
  }
}

TEST(CompactFormat, Keys) {
  for (const Row& row : Table("| dtype | unit | key |")) {
    const UnitKind kind = delta::KindOf(tensor::FindDtype(row[0]).value());
    EXPECT_EQ(row[1].size(), 2 * UnitBytes(kind)) << row[0];
    delta::WithKind(kind, [&]<UnitKind k>() {
      using Traits = delta::UnitTraits<k>;
      using Unit = typename Traits::Unit;
      const auto unit = static_cast<Unit>(Number(row[1], 16));
      const auto key = static_cast<Unit>(Number(row[2], 16));
      EXPECT_EQ(Traits::Key(unit), key) << row[0] << ' ' << row[1];
      EXPECT_EQ(Traits::Key(key), unit) << row[0] << ' ' << row[1];
    });
  }
}

// By the scanner, which a change of that unit is shown to.
TEST(CompactFormat, Classes) {
  for (const Row& row : Table("| dtype | base | unit | class |")) {
    const UnitKind kind = delta::KindOf(tensor::FindDtype(row[0]).value());
    const std::uint32_t unit = Number(row[2], 16);
    const std::uint32_t other = unit ^ 1;
    std::array<std::byte, 4> before = {};
    std::array<std::byte, 4> after = {};
    base::Store(before.data(), unit);
    base::Store(after.data(), other);
    delta::ClassCounts since = {};
    std::array<delta::Change, delta::kStepBlockUnits> changes;
    delta::UnitMask changed;
    const delta::ClassRule rule = {kind, delta::kMaxClasses, Number(row[1])};
    ASSERT_EQ(ScanBlock(before.data(), after.data(), 1, rule, since, changes.data(), changed), 1U);
    EXPECT_EQ(changes[0].class_number(), Number(row[3])) << row[0] << ' ' << row[2];
  }
}

}  // namespace
}  // namespace syncline::store
