// 1. Tensors are taken in batches of kBatchBytes.
// 2. A batch becomes tasks: a tensor of up to kFusedBytes is one task, which encodes and hashes it
//    piece by piece while it is in the cache; of a larger one each kPartBytes are a task, and its
//    hash, which cannot be divided, is another. Its digest can: each piece adds its own. Dear tasks
//    start first.
// 3. Frames of a batch wait until kFileBytes are together, or as many as a header may name, then they become a file, written under a
//    name of its own.
// 4. At the end, when their number is known, files get their names and the index is written.
#include "store/delta_writer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/pool.h"
#include "checkpoint/safetensors.h"
#include "delta/overwrite_encoder.h"
#include "delta/xor_encoder.h"
#include "store/compact_writer.h"
#include "tensor/tensor_sums.h"

namespace syncline::store {
namespace {

using base::FileSystem;
using base::Result;
using base::Status;
using delta::XorEncoder;
using delta::XorPiece;
using tensor::TensorView;

constexpr std::uint64_t kBatchBytes = 128 << 20;
constexpr std::uint64_t kFusedBytes = 8 << 20;
constexpr std::uint64_t kPartBytes = 8 * delta::kXorPieceBytes;
constexpr std::uint64_t kFileBytes = 64 << 20;
constexpr std::uint64_t kHeaderReserve = 64;  // for punctuation and padding
static_assert(kPartBytes % delta::kXorPieceBytes == 0);

Status WriteDeltaIndex(FileSystem& files, const std::string& directory, const DeltaInfo& info,
                       bool durable, DeltaCounts& counts) {
  checkpoint::Index index{.metadata = DeltaMetadata(info)};
  index.weight_map = counts.weight_map;
  SYNCLINE_ASSIGN(const std::string text, BoundedIndexText(std::move(index)));
  counts.files.emplace_back(checkpoint::kIndexName);
  return base::WriteTextAtomically(files, base::JoinPath(directory, checkpoint::kIndexName), text,
                                   durable);
}

// What comes out of one tensor.
struct Encoded {
  std::vector<XorPiece> pieces;
  std::vector<std::byte> frame;
  std::uint64_t elements_changed = 0;
  std::string hash;
  std::vector<tensor::Digest> digests;  // of pieces; they add up
};

struct Task {
  enum class Kind { kEncodeAndHash, kEncode, kHash };
  Kind kind;
  std::size_t tensor;
  std::uint64_t begin;
  std::uint64_t end;

  // Encoding is about five times as dear as hashing.
  std::uint64_t cost() const { return (end - begin) * (kind == Kind::kHash ? 1 : 5); }
};

class DeltaWriter {
 public:
  DeltaWriter(FileSystem& files, const std::string& directory,
              std::span<const TensorView> old_tensors, std::span<const TensorView> new_tensors,
              const DeltaInfo& info, const DeltaFiles& how, std::vector<delta::ChangedLines>& lines)
      : files_(files),
        directory_(directory),
        old_(old_tensors),
        new_(new_tensors),
        info_(info),
        how_(how),
        lines_(lines) {}

  Result<DeltaCounts> Write(base::ThreadPool& pool, base::Progress& progress,
                            const base::CancelToken* cancel) {
    std::uint64_t total = 0;
    lines_.clear();
    for (const TensorView& view : new_) {
      lines_.emplace_back(view.bytes.size());
      total += view.bytes.size();
    }
    if (how_.digests != nullptr) how_.digests->resize(new_.size());
    progress.Begin("encode", total);
    // The frames of a batch are held; an overwrite frame can be several times as large as its
    // tensor.
    // What is loaded is held too.
    std::uint64_t batch_bytes = kBatchBytes;
    if (info_.encoding == delta::Encoding::kOverwrite) {
      batch_bytes /= how_.loader == nullptr ? 4 : 8;
    }
    for (std::size_t begin = 0; begin < new_.size();) {
      std::size_t end = begin;
      for (std::uint64_t bytes = 0; end < new_.size() && (end == begin || bytes < batch_bytes);) {
        bytes += new_[end++].bytes.size();
      }
      SYNCLINE_TRY(EncodeBatch(begin, end, pool, progress, cancel));
      begin = end;
    }
    SYNCLINE_TRY(FlushFile());
    SYNCLINE_TRY(Finish());
    return std::move(counts_);
  }

 private:
  struct Pending {
    std::string name;
    std::vector<std::byte> frame;
    std::string hash;
  };

  Status EncodeBatch(std::size_t begin, std::size_t end, base::ThreadPool& pool,
                     base::Progress& progress, const base::CancelToken* cancel) {
    std::vector<Encoded> encoded(end - begin);
    std::vector<Task> tasks;
    for (std::size_t i = begin; i < end; ++i) {
      const std::uint64_t bytes = new_[i].bytes.size();
      const std::uint64_t pieces = (bytes + delta::kXorPieceBytes - 1) / delta::kXorPieceBytes;
      encoded[i - begin].pieces.resize(pieces);
      encoded[i - begin].digests.resize(pieces);
      if (bytes == 0) continue;
      // What is loaded is read once, so that frame and hash are of the same bytes.
      if (bytes <= kFusedBytes || info_.encoding != delta::Encoding::kXor ||
          how_.loader != nullptr) {
        tasks.push_back({Task::Kind::kEncodeAndHash, i, 0, bytes});
        continue;
      }
      tasks.push_back({Task::Kind::kHash, i, 0, bytes});
      for (std::uint64_t at = 0; at < bytes; at += kPartBytes) {
        tasks.push_back({Task::Kind::kEncode, i, at, std::min(bytes, at + kPartBytes)});
      }
    }
    std::ranges::stable_sort(tasks, std::ranges::greater(), &Task::cost);
    SYNCLINE_TRY(pool.ParallelFor(
        tasks.size(),
        [&](std::size_t i) {
          return RunTask(tasks[i], encoded[tasks[i].tensor - begin], progress);
        },
        cancel));
    for (std::size_t i = begin; i < end; ++i) SYNCLINE_TRY(Collect(i, encoded[i - begin]));
    return {};
  }

  Status RunTask(const Task& task, Encoded& encoded, base::Progress& progress) {
    const TensorView& old_view = old_[task.tensor];
    const TensorView& new_view = new_[task.tensor];
    const base::Pool<std::vector<std::byte>>::Lease buffer(buffers_);
    if (task.kind == Task::Kind::kHash) {
      encoded.hash = tensor::HashHex(info_.checksum, new_view.bytes);
      return {};
    }
    if (info_.encoding == delta::Encoding::kOverwrite) {
      SYNCLINE_ASSIGN(const base::ByteSpan bytes,
                      NewBytes(task.tensor, 0, new_view.bytes.size(), *buffer));
      auto frame =
          delta::EncodeOverwrite(old_view.bytes, bytes, new_view.dtype, lines_[task.tensor]);
      if (!frame) return Annotate(std::move(frame).error(), "tensor " + new_view.name);
      encoded.frame = std::move(frame->bytes);
      encoded.elements_changed = frame->changed_elements;
      tensor::TensorSums sums(info_.checksum, new_view.dtype);
      sums.Update(bytes);
      encoded.hash = sums.hash();
      encoded.digests = {sums.digest()};
      progress.Add(bytes.size());
      return {};
    }
    const base::Pool<XorEncoder>::Lease encoder(encoders_);
    const auto hasher = tensor::MakeHasher(info_.checksum);
    const std::size_t unit_bytes = tensor::DigestUnitBytes(new_view.dtype);
    for (std::uint64_t at = task.begin; at < task.end; at += delta::kXorPieceBytes) {
      const std::uint64_t size = std::min<std::uint64_t>(delta::kXorPieceBytes, task.end - at);
      SYNCLINE_ASSIGN(const base::ByteSpan bytes, NewBytes(task.tensor, at, size, *buffer));
      SYNCLINE_ASSIGN(encoded.pieces[at / delta::kXorPieceBytes],
                      encoder->Encode(old_view.bytes.subspan(at, size), bytes, at, new_view.dtype,
                                      lines_[task.tensor]));
      encoded.digests[at / delta::kXorPieceBytes] =
          tensor::DigestOf(bytes, unit_bytes, at / unit_bytes);
      if (task.kind == Task::Kind::kEncodeAndHash) hasher->Update(bytes);
      progress.Add(size);
    }
    if (task.kind == Task::Kind::kEncodeAndHash) encoded.hash = hasher->Hex();
    return {};
  }

  Result<base::ByteSpan> NewBytes(std::size_t tensor, std::uint64_t begin, std::uint64_t size,
                                  std::vector<std::byte>& buffer) const {
    if (how_.loader == nullptr) return new_[tensor].bytes.subspan(begin, size);
    return how_.loader->Load(tensor, begin, size, buffer);
  }

  Status Collect(std::size_t index, Encoded& encoded) {
    for (const XorPiece& piece : encoded.pieces) encoded.elements_changed += piece.changed_elements;
    tensor::Digest digest;
    for (const tensor::Digest& part : encoded.digests) digest += part;
    if (how_.digests != nullptr) (*how_.digests)[index] = digest;
    if (encoded.elements_changed == 0) return {};
    if (info_.encoding == delta::Encoding::kXor) {
      encoded.frame = AssembleXorFrame(new_[index].bytes.size(), encoded.pieces);
      encoded.pieces.clear();
    }
    ++counts_.tensors_changed;
    counts_.elements_changed += encoded.elements_changed;
    const TensorView& view = new_[index];
    const std::uint64_t header = checkpoint::HeaderBytesBound(view.name, 1) +
                                 checkpoint::MetadataBytesBound(view.name, encoded.hash);
    if (pending_header_ + header > checkpoint::kMaxHeaderBytes) SYNCLINE_TRY(FlushFile());
    pending_header_ += header;
    pending_bytes_ += encoded.frame.size();
    counts_.tensors.push_back({view.name, view.dtype, view.shape, encoded.hash, digest});
    pending_.push_back({view.name, std::move(encoded.frame), std::move(encoded.hash)});
    if (pending_bytes_ >= kFileBytes) return FlushFile();
    return {};
  }

  std::string AsideName(std::size_t number) const {
    return fmt::format("{}part-{}", how_.prefix, number);
  }
  std::string FinalName(std::size_t number) const {
    return how_.prefix.empty() ? checkpoint::ShardName(number, file_count_)
                               : fmt::format("{}{:05}.safetensors", how_.prefix, number);
  }

  Status FlushFile() {
    if (pending_.empty()) return {};
    std::vector<checkpoint::TensorSpec> specs;
    checkpoint::Metadata metadata;
    std::ranges::sort(pending_, {}, &Pending::name);
    for (Pending& item : pending_) {
      specs.push_back({.name = item.name, .shape = {item.frame.size()}});
      metadata.emplace_back(item.name, std::move(item.hash));
      weight_map_.emplace_back(item.name, file_count_);
    }
    SYNCLINE_ASSIGN(auto layout, checkpoint::LayOutSafetensors(std::move(specs), metadata));
    SYNCLINE_ASSIGN(auto writer, checkpoint::SafetensorsWriter::Create(
                                     files_, Path(AsideName(file_count_)), std::move(layout)));
    // The layout of tensors of one dtype is by name, as pending_ is.
    for (std::size_t i = 0; i < pending_.size(); ++i) {
      SYNCLINE_TRY(writer.WriteAt(pending_[i].frame, writer.header().tensors[i].offset));
    }
    ++file_count_;
    SYNCLINE_TRY(writer.Commit(how_.durable));
    pending_.clear();
    pending_bytes_ = 0;
    pending_header_ = kHeaderReserve;
    return {};
  }

  Status Finish() {
    for (std::size_t i = 0; i < file_count_; ++i) {
      const std::string name = FinalName(i);
      SYNCLINE_TRY(files_.Rename(Path(AsideName(i)), Path(name)));
      counts_.files.push_back(name);
    }
    for (auto& [tensor, file] : weight_map_) {
      counts_.weight_map.emplace_back(std::move(tensor), counts_.files[file]);
    }
    if (!how_.prefix.empty()) return {};
    return WriteDeltaIndex(files_, directory_, info_, how_.durable, counts_);
  }

  std::string Path(std::string_view name) const { return base::JoinPath(directory_, name); }

  FileSystem& files_;
  const std::string& directory_;
  std::span<const TensorView> old_;
  std::span<const TensorView> new_;
  const DeltaInfo& info_;
  const DeltaFiles& how_;
  std::vector<delta::ChangedLines>& lines_;
  base::Pool<XorEncoder> encoders_;
  base::Pool<std::vector<std::byte>> buffers_;  // of what is loaded
  std::vector<Pending> pending_;
  std::uint64_t pending_bytes_ = 0;
  std::uint64_t pending_header_ = kHeaderReserve;  // no fewer bytes than their header will have
  std::size_t file_count_ = 0;
  std::vector<std::pair<std::string, std::size_t>> weight_map_;  // tensor, number of its file
  DeltaCounts counts_;
};

}  // namespace

Result<DeltaCounts> WriteDelta(FileSystem& files, const std::string& directory,
                               std::span<const TensorView> old_tensors,
                               std::span<const TensorView> new_tensors, const DeltaInfo& info,
                               const DeltaFiles& how, std::vector<delta::ChangedLines>& lines,
                               base::ThreadPool& pool, base::Progress& progress,
                               const base::CancelToken* cancel) {
  if (info.encoding == delta::Encoding::kCompact) {
    SYNCLINE_ASSIGN(DeltaCounts counts, WriteCompact(files, directory, old_tensors, new_tensors,
                                                     how, lines, pool, progress, cancel));
    if (!how.prefix.empty()) return counts;
    SYNCLINE_TRY(WriteDeltaIndex(files, directory, info, how.durable, counts));
    return counts;
  }
  DeltaWriter writer(files, directory, old_tensors, new_tensors, info, how, lines);
  return writer.Write(pool, progress, cancel);
}

}  // namespace syncline::store
