// 1. Tensors are matched by name; their parts, in that order, are the work.
// 2. A group of parts, of as many bytes as a publisher makes one model for: blocks here and there
//    are looked at, to choose how the compact encoding would see them.
// 3. Its parts are read in parallel. Of each the steps are counted and the frames of xor and
//    overwrite are encoded; for compact what would have to be coded is counted.
// 4. The group's sizes go to its tensors; in the end those of all tensors are added up.
#include "cli/difference.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <span>

#include "base/thread_pool.h"
#include "cli/compact_prediction.h"
#include "delta/changed_lines.h"
#include "delta/overwrite_encoder.h"
#include "delta/xor_encoder.h"

namespace syncline::cli {
namespace {

using base::Result;
using base::Status;
using checkpoint::Checkpoint;
using checkpoint::CheckpointTensor;

// Read and encoded at once, by each thread: a multiple of delta::kXorPieceBytes.
constexpr std::uint64_t kPartBytes = 4 * delta::kXorPieceBytes;
// What an xor frame holds beside its pieces.
constexpr std::uint64_t kXorFrameHead = 14;
// Positions of an overwrite frame have 32 bits.
constexpr std::uint64_t kMaxOverwriteBytes = std::uint64_t{1} << 32;

// A model of the compact encoding is made for a group of parts that ends with either of these.
constexpr std::uint64_t kGroupBytes = 256 << 20;
constexpr std::size_t kGroupTensors = 1024;

// Both lists are sorted by name.
Difference Match(const Checkpoint& a, const Checkpoint& b) {
  Difference difference;
  for (const CheckpointTensor& tensor : a.tensors()) {
    const CheckpointTensor* other = b.Find(tensor.name);
    if (other == nullptr) {
      difference.only_a.push_back(&tensor);
    } else if (other->dtype != tensor.dtype || other->shape != tensor.shape) {
      difference.unlike.push_back({.a = &tensor, .b = other});
    } else {
      difference.pairs.push_back({.a = &tensor, .b = other});
      difference.bytes += tensor.bytes;
    }
  }
  for (const CheckpointTensor& tensor : b.tensors()) {
    if (a.Find(tensor.name) == nullptr) difference.only_b.push_back(&tensor);
  }
  return difference;
}

// Encodes one part of a tensor, given as its two images.
Result<EncodedSizes> Encode(base::ByteSpan old_bytes, base::ByteSpan new_bytes,
                            tensor::Dtype dtype) {
  EncodedSizes sizes;
  delta::XorEncoder encoder;
  delta::ChangedLines lines(old_bytes.size());
  for (std::size_t at = 0; at < old_bytes.size(); at += delta::kXorPieceBytes) {
    const std::size_t size = std::min(delta::kXorPieceBytes, old_bytes.size() - at);
    SYNCLINE_ASSIGN(
        const delta::XorPiece piece,
        encoder.Encode(old_bytes.subspan(at, size), new_bytes.subspan(at, size), at, dtype, lines));
    sizes.xor_bytes += piece.blocks.size();
  }
  SYNCLINE_ASSIGN(const delta::OverwriteFrame frame,
                  delta::EncodeOverwrite(old_bytes, new_bytes, dtype, lines));
  sizes.overwrite_bytes = frame.bytes.size();
  return sizes;
}

struct Part {
  TensorPair* pair = nullptr;
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
};

class Comparison {
 public:
  Comparison(const Session& session, const Side& a, const Side& b)
      : session_(session), a_(a), b_(b), pool_(session.threads) {}

  Result<Difference> Run() {
    Difference difference = Match(a_.checkpoint, b_.checkpoint);
    std::vector<Part> parts;
    for (TensorPair& pair : difference.pairs) {
      for (std::uint64_t at = 0; at < pair.a->bytes; at += kPartBytes) {
        parts.push_back({&pair, at, std::min(kPartBytes, pair.a->bytes - at)});
      }
    }
    session_.progress.Begin("compare", difference.bytes);
    for (std::span<const Part> left = parts; !left.empty();) {
      SYNCLINE_ASSIGN(const std::size_t done, CompareGroup(left));
      left = left.subspan(done);
    }
    AddUp(difference);
    return difference;
  }

 private:
  // Parts of one group, and which of its tensors each belongs to.
  struct Group {
    std::span<const Part> parts;
    std::vector<std::size_t> tensor;
    std::vector<TensorPair*> pairs;
  };

  static Group FirstGroup(std::span<const Part> left) {
    Group group;
    std::uint64_t bytes = 0;
    for (const Part& part : left) {
      const bool another = group.pairs.empty() || group.pairs.back() != part.pair;
      if (bytes >= kGroupBytes || (another && group.pairs.size() == kGroupTensors)) break;
      if (another) group.pairs.push_back(part.pair);
      group.tensor.push_back(group.pairs.size() - 1);
      bytes += part.bytes;
    }
    group.parts = left.first(group.tensor.size());
    return group;
  }

  // Returns how many parts it took.
  Result<std::size_t> CompareGroup(std::span<const Part> left) {
    const Group group = FirstGroup(left);
    std::vector<tensor::Dtype> dtypes;
    dtypes.reserve(group.pairs.size());
    for (const TensorPair* pair : group.pairs) dtypes.push_back(pair->a->dtype);
    CompactPrediction prediction(dtypes);
    SYNCLINE_TRY(Sample(group, prediction));
    prediction.ChooseRules();
    SYNCLINE_TRY(pool_.ParallelFor(
        group.parts.size(),
        [&](std::size_t i) -> Status {
          SYNCLINE_TRY(ComparePart(group.parts[i], group.tensor[i], prediction));
          session_.progress.Add(group.parts[i].bytes);
          return {};
        },
        &session_.cancel));
    const std::vector<CompactPrediction::Sizes> sizes = prediction.Finish();
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      group.pairs[i]->sizes.compact_bytes += sizes[i].classes;
      group.pairs[i]->sizes.compact_gap_bytes += sizes[i].gaps;
    }
    return group.parts.size();
  }

  // Some blocks of each kind of units, evenly spread.
  Status Sample(const Group& group, CompactPrediction& prediction) {
    std::map<delta::UnitKind, std::uint64_t> units;
    const auto units_of = [](const Part& part, delta::UnitKind kind) {
      return part.bytes / delta::UnitBytes(kind);
    };
    for (const Part& part : group.parts) {
      const delta::UnitKind kind = delta::KindOf(part.pair->a->dtype);
      units[kind] += units_of(part, kind);
    }
    std::map<delta::UnitKind, std::uint64_t> next;  // unit of the next part to look at
    for (std::size_t i = 0; i < group.parts.size(); ++i) {
      const Part& part = group.parts[i];
      const delta::UnitKind kind = delta::KindOf(part.pair->a->dtype);
      const std::uint64_t stride =
          std::max(units[kind] / CompactPrediction::kSamples, CompactPrediction::kSampleUnits);
      std::uint64_t& at = next[kind];
      for (; at < units_of(part, kind); at += stride) {
        const std::uint64_t unit_bytes = delta::UnitBytes(kind);
        const std::uint64_t count =
            std::min(units_of(part, kind) - at, CompactPrediction::kSampleUnits);
        const Part block = {part.pair, part.begin + at * unit_bytes, count * unit_bytes};
        SYNCLINE_ASSIGN(const Images images, Read(block));
        prediction.AddSample(group.tensor[i], images.old_bytes, images.new_bytes);
      }
      at -= units_of(part, kind);
    }
    return {};
  }

  struct Images {
    std::vector<std::byte> old_bytes;
    std::vector<std::byte> new_bytes;
  };
  Result<Images> Read(const Part& part) const {
    const CheckpointTensor& old_tensor = *part.pair->a;
    const CheckpointTensor& new_tensor = *part.pair->b;
    Images images{std::vector<std::byte>(part.bytes), std::vector<std::byte>(part.bytes)};
    SYNCLINE_TRY(base::ReadExactly(*a_.files[old_tensor.file], images.old_bytes,
                                   old_tensor.offset + part.begin));
    SYNCLINE_TRY(base::ReadExactly(*b_.files[new_tensor.file], images.new_bytes,
                                   new_tensor.offset + part.begin));
    return images;
  }

  // Reads one part of both sides and adds what it finds to its pair.
  Status ComparePart(const Part& part, std::size_t tensor, CompactPrediction& prediction) {
    const tensor::Dtype dtype = part.pair->a->dtype;
    SYNCLINE_ASSIGN(const Images images, Read(part));
    delta::StepHistogram steps;
    delta::AddSteps(images.old_bytes, images.new_bytes, dtype, steps);
    SYNCLINE_ASSIGN(const EncodedSizes sizes, Encode(images.old_bytes, images.new_bytes, dtype));
    SYNCLINE_TRY(prediction.Add(tensor, images.old_bytes, images.new_bytes));
    const std::scoped_lock lock(mutex_);
    part.pair->steps += steps;
    part.pair->sizes += sizes;
    return {};
  }

  static void AddUp(Difference& difference) {
    for (TensorPair& pair : difference.pairs) {
      difference.steps += pair.steps;
      if (pair.steps.changed == 0) {
        pair.sizes = {};
        continue;
      }
      pair.sizes.xor_bytes += kXorFrameHead;
      if (pair.a->bytes > kMaxOverwriteBytes) pair.sizes.overwrite_bytes.reset();
      ++difference.tensors_changed;
      difference.sizes += pair.sizes;
    }
  }

  const Session& session_;
  const Side& a_;
  const Side& b_;
  base::ThreadPool pool_;
  std::mutex mutex_;  // of what is found in the pairs
};

}  // namespace

EncodedSizes& EncodedSizes::operator+=(const EncodedSizes& other) {
  xor_bytes += other.xor_bytes;
  if (overwrite_bytes && other.overwrite_bytes) {
    *overwrite_bytes += *other.overwrite_bytes;
  } else {
    overwrite_bytes.reset();
  }
  compact_bytes += other.compact_bytes;
  compact_gap_bytes += other.compact_gap_bytes;
  return *this;
}

Result<Difference> Compare(const Session& session, const Side& a, const Side& b) {
  return Comparison(session, a, b).Run();
}

}  // namespace syncline::cli
