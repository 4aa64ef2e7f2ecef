// The compact encoding, written and read: delta::PieceScanner, JoinFrame, StepModel, EncodeFrame,
// EncodePlanes and FrameDecoder. The input is a byte each of kind, of form (the lowest bit: classes)
// and base, of which tensors are dense, of how often what follows is repeated and how far apart; a
// number of tensors, u16 units of each; and differences, which are added to the old bytes.
//
// - What is read over the old images is the new ones.
// - Changes are counted like in a plain comparison, their lines are marked, and the digest of the
//   new image is that of the old one plus the difference.
// - A model made of what was counted has all of it, and survives writing.
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "delta/compact_frame.h"
#include "support.h"

namespace syncline::fuzz {
namespace {

using base::ByteSpan;
using delta::ClassRule;
using delta::UnitKind;
using Image = std::vector<std::byte>;
using Images = std::vector<Image>;

// How the differences lie.
struct Pattern {
  ByteSpan differences;
  std::size_t times = 1;
  std::size_t apart = 0;
};

struct Input {
  ClassRule rule;
  std::uint32_t dense = 0;  // a bit for each tensor
  std::vector<std::size_t> units;
  Pattern pattern;
};

// Magnitudes of all exponents, the frequent ones as in weights.
Images OldImages(const Input& input) {
  Images images;
  std::uint32_t state = 1;
  for (const std::size_t units : input.units) {
    Image& image = images.emplace_back(units * UnitBytes(input.rule.kind));
    for (std::byte& byte : image) {
      state = state * 1664525 + 1013904223;
      const std::uint32_t value = state >> 24;
      byte = static_cast<std::byte>(value % 8 == 0 ? value : 0x30 + value % 16);
    }
  }
  return images;
}

Images NewImages(const Input& input, const Images& old) {
  Images images = old;
  std::size_t at = 0;  // in the row of all bytes
  std::size_t begin = 0;
  const std::size_t stride = input.pattern.differences.size() + input.pattern.apart;
  const std::size_t end = input.pattern.times * stride;
  for (Image& image : images) {
    for (; at < begin + image.size() && at < end; ++at) {
      const std::size_t place = at % stride;
      if (place >= input.pattern.differences.size()) continue;
      std::byte& byte = image[at - begin];
      byte = static_cast<std::byte>(static_cast<unsigned>(byte) +
                                    static_cast<unsigned>(input.pattern.differences[place]));
    }
    begin += image.size();
  }
  return images;
}

std::uint64_t ChangedUnits(const Image& a, const Image& b, std::size_t width) {
  std::uint64_t changed = 0;
  for (std::size_t at = 0; at < a.size(); at += width) {
    changed += std::equal(&a[at], &a[at] + width, &b[at]) ? 0 : 1;
  }
  return changed;
}

// Scans a tensor in two calls where it is long, as the publisher does.
delta::PieceChanges Scan(const ClassRule& rule, const Image& old, const Image& image) {
  const std::size_t width = UnitBytes(rule.kind);
  std::vector<delta::Change> scratch;
  delta::PieceScanner scanner(rule, scratch);
  delta::ChangedLines lines(old.size());
  tensor::DigestChange digest(width);
  const std::size_t cut = std::min(old.size(), delta::kStepBlockUnits * width);
  std::uint64_t changed =
      scanner.Scan(ByteSpan(old).first(cut), ByteSpan(image).first(cut), 0, 1, lines, &digest);
  if (cut < old.size()) {
    changed += scanner.Scan(ByteSpan(old).subspan(cut), ByteSpan(image).subspan(cut), cut, 1, lines,
                            &digest);
  }
  Must(changed == ChangedUnits(old, image, width), "changes are counted");
  Image copied = old;
  lines.Copy(image, copied, 0, image.size());
  Must(copied == image, "the lines that differ are marked");
  tensor::Digest expected = tensor::DigestOf(old, width);
  expected += digest.difference();
  Must(expected == tensor::DigestOf(image, width), "the digest changes by what changed");
  return scanner.Take();
}

void Decode(ByteSpan frame, const Input& input, const delta::StepModel& model, Images& images) {
  Must(delta::StepDecodeTables::Check(model, input.rule.kind).has_value(),
       "a model that was made fits its units");
  const auto tables = std::make_unique<delta::StepDecodeTables>(model);
  Image memory(delta::kBytesBefore + frame.size());
  std::ranges::copy(frame, memory.begin() + delta::kBytesBefore);
  std::vector<delta::FrameDecoder::Part> parts;
  for (const std::size_t units : input.units) parts.push_back({units});
  delta::FrameDecoder decoder;
  Must(decoder.Open(ByteSpan(memory).subspan(delta::kBytesBefore), input.rule.kind, parts, *tables)
           .has_value(),
       "a frame that was made can be opened");
  const std::size_t width = UnitBytes(input.rule.kind);
  for (std::size_t i = 0; i < images.size(); ++i) {
    for (std::size_t at = 0; at < input.units[i]; at += delta::kStepBlockUnits) {
      std::byte* const units = images[i].data() + at * width;
      delta::UnitMask changed;
      Must(
          decoder
              .Next(i, units, std::min(delta::kStepBlockUnits, input.units[i] - at), units, changed)
              .has_value(),
          "a frame that was made can be read");
    }
  }
  Must(decoder.Finish().has_value(), "a frame that was made ends");
}

void Check(const Input& input) {
  const Images old = OldImages(input);
  const Images expected = NewImages(input, old);
  std::vector<delta::PieceChanges> pieces;
  std::vector<delta::DensePart> dense;
  for (std::size_t i = 0; i < old.size(); ++i) {
    delta::PieceChanges piece = Scan(input.rule, old[i], expected[i]);
    Must(std::isfinite(SparseBits(piece, input.rule.kind)) &&
             std::isfinite(delta::DenseBits(expected[i], UnitBytes(input.rule.kind))),
         "sizes are numbers");
    if ((input.dense >> i & 1) == 0) {
      pieces.push_back(std::move(piece));
      continue;
    }
    auto planes = delta::EncodePlanes(expected[i], UnitBytes(input.rule.kind));
    Must(planes.has_value(), "planes can be made");
    dense.push_back({i, *std::move(planes)});
  }
  const bool has_stream = !pieces.empty();
  const std::vector<delta::Change> changes = delta::JoinFrame(std::move(pieces));
  auto counts = std::make_unique<delta::StepCounts>();
  delta::CountFrame(changes, input.rule.kind, input.rule.classes, *counts);
  const auto model = std::make_unique<delta::StepModel>(
      delta::StepModel::Of(*counts, input.rule.classes, input.rule.base));
  const double symbols = 2.0 * static_cast<double>(changes.size()) + input.rule.classes;
  Must(model->Cost(*counts) <= symbols * delta::kGapLog, "a model has all that was counted");
  std::vector<std::byte> bytes;
  delta::AppendModel(*model, bytes);
  delta::ByteReader from(bytes);
  const auto read = delta::ReadModel(from);
  Must(read.has_value() && *read == *model && from.left().empty(), "a model survives writing");
  const auto tables = std::make_unique<delta::StepEncodeTables>(*model);
  base::Buffer scratch;
  const std::vector<std::byte> frame = delta::EncodeFrame(
      changes, input.rule.kind, has_stream, dense, input.rule.classes, *tables, scratch);
  Images images = old;
  Decode(frame, input, *model, images);
  Must(images == expected, "what is read is what was written");
}

// The greatest exponent of such units.
unsigned MaxBase(UnitKind kind) {
  return delta::WithKind(kind, []<UnitKind k>() {
    using Traits = delta::UnitTraits<k>;
    return static_cast<unsigned>(Traits::kMagnitude >> Traits::kMantissaBits);
  });
}

}  // namespace
}  // namespace syncline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace syncline;
  constexpr std::size_t kHead = 6;
  if (size < kHead) return 0;
  fuzz::Input input;
  input.rule.kind = static_cast<delta::UnitKind>(data[0] % 8);
  if (delta::IsFloat(input.rule.kind) && (data[1] & 1) != 0) {
    input.rule.classes = delta::kMaxClasses;
    input.rule.base = (data[1] >> 1) * 2U % (fuzz::MaxBase(input.rule.kind) + 1);
  }
  input.dense = data[2];
  input.pattern.times = std::size_t{1} << (data[3] % 16);
  input.pattern.apart = (std::size_t{1} << (data[4] % 16)) - 1;
  const std::size_t tensors = 1 + data[5] % 5;
  if (size < kHead + 2 * tensors) return 0;
  for (std::size_t i = 0; i < tensors; ++i) {
    const std::size_t units = data[kHead + 2 * i] | std::size_t{data[kHead + 2 * i + 1]} << 8;
    input.units.push_back(1 + units % 20'000);
  }
  input.pattern.differences = fuzz::Bytes(data + kHead + 2 * tensors, size - kHead - 2 * tensors);
  if (input.pattern.differences.empty()) return 0;
  fuzz::Check(input);
  return 0;
}
