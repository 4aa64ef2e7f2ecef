// 1. Cells: all tensors by name, small ones together as long as they fit a frame (the same in every
//    version of a model). Frames of all cells, in order, are the work.
// 2. A group of frames: blocks here and there are looked at to choose the form and the classes. Then
//    waves of frames are scanned in parallel, with the hashes and digests of their tensors, until
//    enough changes are held.
// 3. What the group has to code is counted, its models are made (or an earlier one is good enough),
//    its frames are encoded in parallel and written one after the other.
// 4. A file ends, with its table, at the end of the first group after kFileBytes, or half of the models
//    that it may have.
//
// Tensors that arrive one after the other are scanned when they come, and only what changed is kept;
// a cell of several is encoded when the last of them has come.
#include "store/compact_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
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
  // `arrived`: the input's new tensors; of those that come one after the other the bytes are set while
  // they are there.
  CompactWriter(FileSystem& files, const std::string& directory, const ScanInput& input,
                std::vector<TensorView>& arrived, const DeltaFiles& how, base::ThreadPool& pool,
                base::Progress& progress, const base::CancelToken* cancel)
      : files_(files),
        directory_(directory),
        input_(input),
        arrived_(arrived),
        how_(how),
        pool_(pool),
        progress_(progress),
        cancel_(cancel),
        scanner_(input) {}

  Result<DeltaCounts> Write() {
    std::uint64_t total = 0;
    for (const TensorView& view : input_.old_tensors) total += view.bytes.size();
    progress_.Begin("encode", total);
    cells_ = PlanCells(input_.old_tensors, delta::kFrameLog);
    if (how_.arrivals != nullptr) {
      SYNCLINE_TRY(WriteArriving());
    } else {
      std::vector<FrameScan> work;
      for (std::size_t i = 0; i < cells_.size(); ++i) {
        AddFrames(cells_[i], i, delta::kFrameLog, work);
      }
      SYNCLINE_TRY(WriteFrames(work));
    }
    SYNCLINE_TRY(EndFile());
    return Finish();
  }

 private:
  Status WriteFrames(std::span<FrameScan> work) {
    while (!work.empty()) {
      SYNCLINE_ASSIGN(const std::size_t done, WriteGroup(work));
      work = work.subspan(done);
    }
    return {};
  }

  Status WriteArriving() {
    Waiting waiting(cells_, input_.old_tensors.size());
    while (true) {
      if (cancel_ != nullptr) SYNCLINE_TRY(cancel_->Check());
      SYNCLINE_ASSIGN(const tensor::Arrivals::Batch batch, how_.arrivals->Next());
      if (batch.empty()) break;
      std::vector<FrameScan> small;
      std::vector<FrameScan> large;
      for (const auto& [tensor, bytes] : batch) {
        const TensorView& old_view = input_.old_tensors[tensor];
        if (!waiting.Take(tensor)) {
          return Fail(base::Code::kInvalidArgument,
                      fmt::format("tensor {} came twice", old_view.name));
        }
        arrived_[tensor].bytes = bytes;
        if (bytes.empty()) continue;
        const std::size_t cell = waiting.cell_of[tensor];
        if (cells_[cell].tensors.size() == 1) {
          AddFrames(cells_[cell], cell, delta::kFrameLog, large);
        } else {
          small.push_back(waiting.Single(cells_[cell], tensor));
        }
      }
      SYNCLINE_TRY(ScanSmall(small, waiting));
      SYNCLINE_TRY(EncodeReady(waiting, !large.empty()));
      SYNCLINE_TRY(WriteFrames(large));
      for (const auto& [tensor, bytes] : batch) arrived_[tensor].bytes = {};
    }
    SYNCLINE_TRY(EncodeReady(waiting, true));
    for (std::size_t i = 0; i < waiting.came.size(); ++i) {
      if (waiting.came[i]) continue;
      return Fail(base::Code::kInvalidArgument,
                  fmt::format("tensor {} did not come", input_.old_tensors[i].name));
    }
    return {};
  }

  // What has come of the cells of several tensors.
  struct Waiting {
    Waiting(const std::vector<CellPlan>& cells, std::size_t tensors)
        : came(tensors), cell_of(tensors), frames(cells.size()), left(cells.size()) {
      for (std::size_t cell = 0; cell < cells.size(); ++cell) {
        left[cell] = cells[cell].tensors.size();
        for (const std::size_t tensor : cells[cell].tensors) cell_of[tensor] = cell;
      }
    }

    bool Take(std::size_t tensor) {
      if (came[tensor]) return false;
      came[tensor] = true;
      return true;
    }
    FrameScan Single(const CellPlan& plan, std::size_t tensor) const {
      FrameScan scan;
      scan.cell = cell_of[tensor];
      scan.tensors = std::span(&*std::ranges::find(plan.tensors, tensor), 1);
      scan.units = plan.UnitsOf(tensor);
      scan.rule.kind = plan.kind;
      return scan;
    }

    std::vector<bool> came;            // by tensor
    std::vector<std::size_t> cell_of;  // by tensor
    std::vector<FrameScan> frames;     // by cell; holds the parts that have come
    std::vector<std::size_t> left;     // by cell, tensors that have not come
    std::vector<FrameScan> ready;      // of cells that are complete
    std::uint64_t held = 0;            // of `ready`
    std::map<UnitKind, delta::ClassRule> rules;
  };

  // All small tensors of one kind have one rule, by the first ones that came.
  Status ScanSmall(std::vector<FrameScan>& scans, Waiting& waiting) {
    if (std::ranges::any_of(scans, [&](const FrameScan& scan) {
          return !waiting.rules.contains(scan.rule.kind);
        })) {
      SYNCLINE_TRY(ChooseRules(scans));
      for (const FrameScan& scan : scans) waiting.rules.try_emplace(scan.rule.kind, scan.rule);
    }
    for (FrameScan& scan : scans) scan.rule = waiting.rules.at(scan.rule.kind);
    SYNCLINE_TRY(scanner_.Scan(scans, pool_, progress_, cancel_));
    for (FrameScan& scan : scans) {
      FrameScan& frame = waiting.frames[scan.cell];
      std::ranges::move(scan.parts, std::back_inserter(frame.parts));
      if (--waiting.left[scan.cell] > 0) continue;
      frame.cell = scan.cell;
      frame.rule = scan.rule;
      waiting.held += frame.held_bytes();
      waiting.ready.push_back(std::move(frame));
    }
    return {};
  }

  Status EncodeReady(Waiting& waiting, bool all) {
    if (waiting.ready.empty() || (!all && waiting.held < kGroupChangeBytes)) return {};
    SYNCLINE_TRY(Encode(waiting.ready));
    waiting.ready.clear();
    waiting.held = 0;
    return {};
  }

  // Steps 2 and 3 for some of the frames that are left; returns how many.
  Result<std::size_t> WriteGroup(std::span<FrameScan> left) {
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
    SYNCLINE_TRY(Encode(left.first(done)));
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

  Status Encode(std::span<FrameScan> frames) {
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
          const base::Pool<base::Buffer>::Lease scratch(scratch_);
          encoded[i] = delta::EncodeFrame(frame.changes, frame.rule.kind, frame.has_stream,
                                          frame.dense, frame.rule.classes,
                                          *tables.at(models.at(frame.rule.kind)), *scratch);
          return {};
        },
        cancel_));
    for (std::size_t i = 0; i < frames.size(); ++i) {
      const std::size_t model = frames[i].changed() ? models.at(frames[i].rule.kind) : 0;
      SYNCLINE_TRY(Append(cells_[frames[i].cell], encoded[i], model));
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
    models.push_back(model);
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
      counts_.tensors.push_back(
          {changed->name, changed->dtype, changed->shape, changed->hash, changed->digest});
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
  std::vector<TensorView>& arrived_;
  const DeltaFiles& how_;
  base::ThreadPool& pool_;
  base::Progress& progress_;
  const base::CancelToken* cancel_;
  CompactScanner scanner_;
  base::Pool<base::Buffer> scratch_;  // of frames that are encoded
  std::vector<CellPlan> cells_;
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
  for (std::size_t i = 0; i < new_tensors.size(); ++i) {
    if (new_tensors[i].bytes.empty()) digests[i] = tensor::Digest();  // it is in no cell
  }
  std::vector<TensorView> arrived;
  if (how.arrivals != nullptr) arrived.assign(new_tensors.begin(), new_tensors.end());
  const ScanInput input = {old_tensors, how.arrivals != nullptr ? arrived : new_tensors, how.loader,
                           lines, digests};
  CompactWriter writer(files, directory, input, arrived, how, pool, progress, cancel);
  return writer.Write();
}

}  // namespace syncline::store
