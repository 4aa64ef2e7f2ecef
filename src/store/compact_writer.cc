// 1. Cells: all tensors by name, small ones together as long as they fit a frame (the same in every
//    version of a model). Frames of all cells, in order, are the work.
// 2. A group of frames: blocks here and there are looked at to choose the form and the classes. Then
//    waves of frames are scanned in parallel, with the hashes and digests of their tensors, until
//    enough changes are held.
// 3. What the group has to code is counted, its models are made (or an earlier one is good enough),
//    its frames are encoded in parallel and written one after the other.
// 4. A file ends, with its table, at the first cell after kFileBytes, or after half of the models
//    that it may have.
#include "store/compact_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/pool.h"
#include "delta/class_choice.h"
#include "delta/compact_frame.h"
#include "delta/compact_table.h"
#include "store/compact_scan.h"

namespace syncline::store {
namespace {

using base::Fail;
using base::FileSystem;
using base::Result;
using base::Status;
using delta::CompactForm;
using delta::UnitKind;
using tensor::TensorView;

constexpr std::uint64_t kGroupBytes = 256 << 20;       // of tensors
constexpr std::uint64_t kGroupChangeBytes = 64 << 20;  // of changes held
constexpr std::uint64_t kFileBytes = 64 << 20;

// One file of frames in the making.
struct OutFile {
  std::string name;  // while it is written
  std::unique_ptr<base::File> file;
  std::uint64_t offset = 0;
  delta::CompactTable table;
  // The last model of each kind of units.
  std::map<UnitKind, std::size_t> last_model;
};

class CompactWriter {
 public:
  CompactWriter(FileSystem& files, const std::string& directory, const ScanInput& input,
                const DeltaFiles& how, base::ThreadPool& pool, base::Progress& progress,
                const base::CancelToken* cancel)
      : files_(files),
        directory_(directory),
        input_(input),
        how_(how),
        pool_(pool),
        progress_(progress),
        cancel_(cancel),
        scanner_(input) {}

  Result<DeltaCounts> Write() {
    std::uint64_t total = 0;
    for (const TensorView& view : input_.new_tensors) total += view.bytes.size();
    progress_.Begin("encode", total);
    const std::vector<CellPlan> cells = PlanCells(input_.old_tensors, delta::kFrameLog);
    std::vector<FrameScan> work;
    for (std::size_t i = 0; i < cells.size(); ++i) AddFrames(cells[i], i, delta::kFrameLog, work);
    for (std::span<FrameScan> left = work; !left.empty();) {
      SYNCLINE_ASSIGN(const std::size_t done, WriteGroup(cells, left));
      left = left.subspan(done);
    }
    SYNCLINE_TRY(EndFile());
    return Finish();
  }

 private:
  // Steps 2 and 3 for some of the frames that are left; returns how many.
  Result<std::size_t> WriteGroup(const std::vector<CellPlan>& cells, std::span<FrameScan> left) {
    std::size_t most = 0;
    for (std::uint64_t bytes = 0; most < left.size() && (most == 0 || bytes < kGroupBytes);
         ++most) {
      bytes += left[most].units * UnitBytes(left[most].rule.kind);
    }
    SYNCLINE_TRY(ChooseRules(left.first(most)));
    std::size_t done = 0;
    std::uint64_t held = 0;
    while (done < most && (done == 0 || held < kGroupChangeBytes)) {
      const std::uint64_t each = done == 0 ? 0 : held / done + 1;
      std::size_t wave = std::max<std::size_t>(2 * pool_.size(),
                                               each == 0 ? 0 : (kGroupChangeBytes - held) / each);
      wave = std::min(wave, most - done);
      SYNCLINE_TRY(scanner_.Scan(left.subspan(done, wave), pool_, progress_, cancel_));
      for (const FrameScan& frame : left.subspan(done, wave)) held += frame.held_bytes();
      done += wave;
    }
    SYNCLINE_TRY(Encode(cells, left.first(done)));
    return done;
  }

  // Looks at about kSampledBlocks blocks of each kind of units.
  Status ChooseRules(std::span<FrameScan> frames) {
    constexpr std::uint64_t kSampledBlocks = 64;
    std::map<UnitKind, std::uint64_t> units;
    for (const FrameScan& frame : frames) units[frame.rule.kind] += frame.units;
    for (const auto& [kind, count] : units) {
      delta::StepSample sample(kind);
      const std::uint64_t stride =
          std::max<std::uint64_t>(count / kSampledBlocks, delta::kStepBlockUnits);
      std::uint64_t next = stride / 2;  // unit of the frames of that kind
      std::uint64_t begin = 0;
      for (const FrameScan& frame : frames) {
        if (frame.rule.kind != kind) continue;
        for (; next < begin + frame.units; next += stride) {
          SYNCLINE_TRY(scanner_.AddSample(frame, next - begin, sample));
        }
        begin += frame.units;
      }
      if (sample.units() == 0) SYNCLINE_TRY(scanner_.AddSample(FirstOf(frames, kind), 0, sample));
      const delta::ClassRule rule = ChooseRule(sample, how_.choice);
      for (FrameScan& frame : frames) {
        if (frame.rule.kind == kind) frame.rule = rule;
      }
    }
    return {};
  }

  static const FrameScan& FirstOf(std::span<const FrameScan> frames, UnitKind kind) {
    return *std::ranges::find_if(frames, [&](const FrameScan& f) { return f.rule.kind == kind; });
  }

  Status Encode(const std::vector<CellPlan>& cells, std::span<FrameScan> frames) {
    SYNCLINE_TRY(pool_.ParallelFor(
        frames.size(),
        [&](std::size_t i) -> Status {
          frames[i].Join();
          return {};
        },
        cancel_));
    if (std::ranges::any_of(frames, &FrameScan::changed)) SYNCLINE_TRY(BeginFile());
    std::map<UnitKind, std::size_t> models;
    std::map<std::size_t, std::unique_ptr<delta::StepEncodeTables>> tables;
    for (const FrameScan& frame : frames) {
      if (!frame.changed() || models.contains(frame.rule.kind)) continue;
      const std::size_t model = ModelFor(frame.rule, frames);
      models[frame.rule.kind] = model;
      tables[model] = std::make_unique<delta::StepEncodeTables>(out_->table.models[model]);
    }
    std::vector<std::vector<std::byte>> encoded(frames.size());
    SYNCLINE_TRY(pool_.ParallelFor(
        frames.size(),
        [&](std::size_t i) -> Status {
          FrameScan& frame = frames[i];
          if (!frame.changed()) return {};
          encoded[i] =
              delta::EncodeFrame(frame.changes, frame.rule.kind, frame.has_stream(), frame.dense,
                                 frame.rule.classes, *tables.at(models.at(frame.rule.kind)));
          return {};
        },
        cancel_));
    for (std::size_t i = 0; i < frames.size(); ++i) {
      const std::size_t model = frames[i].changed() ? models.at(frames[i].rule.kind) : 0;
      SYNCLINE_TRY(Append(cells[frames[i].cell], encoded[i], model));
      frames[i].Free();
    }
    if (!out_ || InCell()) return {};
    const bool full =
        out_->offset >= kFileBytes || out_->table.models.size() >= delta::kMaxCompactModels / 2;
    return full ? EndFile() : Status();
  }

  // The number of a model for the frames of one kind: a new one, if it saves more than it takes.
  std::size_t ModelFor(const delta::ClassRule& rule, std::span<const FrameScan> frames) {
    delta::StepCounts counts;
    for (const FrameScan& frame : frames) {
      if (frame.counts != nullptr && frame.rule.kind == rule.kind) counts += *frame.counts;
    }
    std::vector<delta::StepModel>& models = out_->table.models;
    delta::StepModel model = delta::StepModel::Of(counts, rule.classes, rule.base);
    std::vector<std::byte> bytes;
    delta::AppendModel(model, bytes);
    const auto last = out_->last_model.find(rule.kind);
    if (last != out_->last_model.end()) {
      const delta::StepModel& old = models[last->second];
      const double more = old.Cost(counts) - model.Cost(counts);
      if (old.classes == rule.classes && old.base == rule.base &&
          more < 8 * static_cast<double>(bytes.size())) {
        return last->second;
      }
    }
    models.push_back(std::move(model));
    out_->last_model[rule.kind] = models.size() - 1;
    return models.size() - 1;
  }

  // Is a cell begun whose frames are not all written?
  bool InCell() const { return cell_left_ > 0; }

  // Writes a frame and, with the last one of a cell, puts the cell into the table.
  Status Append(const CellPlan& plan, base::ByteSpan bytes, std::size_t model) {
    if (!InCell()) {
      cell_ = {};
      cell_left_ = plan.frames;
    }
    if (!bytes.empty()) {
      SYNCLINE_TRY(out_->file->WriteAt(bytes, out_->offset));
      cell_.frames.push_back(
          {.bytes = bytes.size(), .model = model, .check = delta::CompactFrameCheck(bytes)});
      out_->offset += bytes.size();
    } else {
      cell_.frames.push_back({});
    }
    if (--cell_left_ > 0) return {};
    for (const std::size_t tensor : plan.tensors) {
      std::optional<delta::CompactTensor> changed = scanner_.Finish(tensor);
      if (!changed) continue;
      ++counts_.tensors_changed;
      counts_.elements_changed += changed->changed_elements;
      counts_.tensors.push_back({changed->name, changed->dtype, changed->shape, changed->hash});
      cell_.tensors.push_back(*std::move(changed));
    }
    if (!cell_.tensors.empty()) out_->table.cells.push_back(std::move(cell_));
    return {};
  }

  std::string Path(std::string_view name) const { return base::JoinPath(directory_, name); }

  Status BeginFile() {
    if (out_) return {};
    out_.emplace();
    out_->name = fmt::format("{}part-{}", how_.prefix, file_count_++);
    SYNCLINE_ASSIGN(out_->file, files_.Open(Path(out_->name), base::OpenMode::kCreateNew));
    SYNCLINE_TRY(out_->file->WriteAt(base::AsBytes(delta::kCompactPreamble), 0));
    out_->offset = delta::kCompactPreamble.size();
    return {};
  }

  Status EndFile() {
    if (!out_) return {};
    SYNCLINE_ASSIGN(const std::vector<std::byte> end,
                    delta::MakeCompactEnd(out_->table, out_->offset));
    SYNCLINE_TRY(out_->file->WriteAt(end, out_->offset));
    if (how_.durable) SYNCLINE_TRY(out_->file->Sync());
    out_.reset();
    return {};
  }

  Result<DeltaCounts> Finish() {
    for (std::size_t i = 0; i < file_count_; ++i) {
      const std::string name = fmt::format(
          "{}{:05}.syncline", how_.prefix.empty() ? "delta-" : std::string_view(how_.prefix), i);
      SYNCLINE_TRY(files_.Rename(Path(fmt::format("{}part-{}", how_.prefix, i)), Path(name)));
      counts_.files.push_back(name);
      counts_.weight_map.emplace_back(CompactListing(name), name);
    }
    std::ranges::sort(counts_.tensors, {}, &ManifestTensor::name);
    return std::move(counts_);
  }

  FileSystem& files_;
  const std::string& directory_;
  const ScanInput& input_;
  const DeltaFiles& how_;
  base::ThreadPool& pool_;
  base::Progress& progress_;
  const base::CancelToken* cancel_;
  CompactScanner scanner_;
  std::optional<OutFile> out_;
  std::size_t file_count_ = 0;
  delta::CompactCell cell_;  // whose frames are written
  std::uint64_t cell_left_ = 0;
  DeltaCounts counts_;
};

}  // namespace

Result<DeltaCounts> WriteCompact(FileSystem& files, const std::string& directory,
                                 std::span<const TensorView> old_tensors,
                                 std::span<const TensorView> new_tensors, const DeltaFiles& how,
                                 std::vector<delta::ChangedLines>& lines, base::ThreadPool& pool,
                                 base::Progress& progress, const base::CancelToken* cancel) {
  lines.clear();
  for (const TensorView& view : new_tensors) lines.emplace_back(view.bytes.size());
  std::vector<std::optional<tensor::Digest>> unknown;
  std::vector<std::optional<tensor::Digest>>& digests =
      how.digests == nullptr ? unknown : *how.digests;
  digests.resize(new_tensors.size());
  const ScanInput input = {old_tensors, new_tensors, how.loader, lines, digests};
  CompactWriter writer(files, directory, input, how, pool, progress, cancel);
  return writer.Write();
}

}  // namespace syncline::store
