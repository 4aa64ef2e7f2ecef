// Predicts what the compact encoding would take (docs/format.md, "The encoding compact"), in both of
// its forms, without writing it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "delta/compact_frame.h"
#include "delta/step_code.h"
#include "delta/unit_kind.h"
#include "store/compact_scan.h"
#include "tensor/dtype.h"

namespace syncline::cli {

// For a group of tensors (or of the parts of tensors that belong to it), of about the size for which
// a publisher makes a model, at most 1 GiB. In this order, each for all of them: AddSample for some
// blocks here and there; ChooseRules; Add for all parts, from any thread, in any order; Finish.
// Holds 33 KB for each tensor that changed.
//
// What it takes for granted: that gaps begin anew with each part, that small tensors share evenly
// what their frames cost beside the changes, and an ideal code. So it is about a percent off.
class CompactPrediction {
 public:
  // Units of a block for AddSample, and how many blocks of each kind of units are worth looking at.
  static constexpr std::uint64_t kSampleUnits = delta::kStepBlockUnits;
  static constexpr std::uint64_t kSamples = 64;

  struct Sizes {
    std::uint64_t classes = 0;  // bytes of the frames: encoding "compact"
    std::uint64_t gaps = 0;     // "compact-gap"
  };

  explicit CompactPrediction(std::vector<tensor::Dtype> dtypes);

  // At most kSampleUnits units of a tensor, as they were and as they become.
  void AddSample(std::size_t tensor, base::ByteSpan old_bytes, base::ByteSpan new_bytes);
  void ChooseRules();

  // A part of a tensor: whole units, a multiple of kSampleUnits but for the last part.
  base::Status Add(std::size_t tensor, base::ByteSpan old_bytes, base::ByteSpan new_bytes);

  // Of each tensor; zero where nothing changed.
  std::vector<Sizes> Finish() const;

 private:
  enum Form : std::size_t { kClasses, kGaps };

  // What was found in a tensor, if it is written in one of the forms.
  struct Found {
    std::unique_ptr<delta::StepCounts> counts;  // without the ends of cells
    std::uint64_t dense_bytes = 0;

    bool changed() const { return counts != nullptr || dense_bytes > 0; }
  };
  struct Tensor {
    delta::UnitKind kind = delta::UnitKind::kPlain8;
    std::uint64_t units = 0;
    Found found[2];
  };
  struct Kind {
    delta::StepSample sample;
    delta::ClassRule rules[2];
  };

  base::Status AddForm(Tensor& tensor, Form form, base::ByteSpan old_bytes,
                       base::ByteSpan new_bytes);
  void FinishForm(delta::UnitKind kind, Form form, std::vector<Sizes>& sizes) const;

  std::vector<Tensor> tensors_;
  std::map<delta::UnitKind, Kind> kinds_;
  std::mutex mutex_;  // of what Add finds
};

}  // namespace syncline::cli
