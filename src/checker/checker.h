// Checks the weights that one runner on one rank holds: snapshot, reset, compare, checksums
// (SGLang's /weights_checker).
//
// An entry is a parameter of the engine, under the engine's name (fused, in its runtime layout), or
// the weight of a block-wise fp8 unit together with its scale, under the weight's name: its values
// are what counts, q · scale rounded to bf16, so packed and unpacked scales are equal. Derived
// parameters are entries too; checksums list them apart, for SGLang does not know of them.
//
// What is skipped is neither reset nor compared nor hashed: names that contain one of
// `cos_sin_cache`, `inv_freq`, `freqs_cis`, `_weight_fp32`, or of the caller's list. The name is
// the entry's: that of a scale of block-wise fp8 does not count. The set is one for all three, by
// construction.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/cancel.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "layout/plan.h"
#include "quant/units.h"

namespace syncline::checker {

// How a tensor is hashed to 64 bits.
enum class CheckHash : std::uint8_t {
  kDevice,  // what SGLang computes for tensors on a GPU
  kSha256,  // the first 8 bytes, big-endian: what it computes for tensors on a CPU
};

// Lower-case hex, 16 digits. What is computed stands in docs/format.md.
std::string CheckHashHex(CheckHash kind, base::ByteSpan bytes);

struct NamedHash {
  std::string name;
  std::string hash;
};

// SHA-256 hex over name and hash of each, in ascending order of names.
std::string OverallChecksum(std::vector<NamedHash> hashes);

struct CheckOptions {
  std::vector<std::string> skip;   // substrings of names
  bool allow_quant_error = false;  // compare: forgive what one unit in the last place of the
                                   // quantised value explains, on both sides together
  CheckHash hash = CheckHash::kDevice;
};

struct Difference {
  std::string name;
  double max_abs_error = 0;  // of values; infinite or NaN where one of the differences is
  double mean_abs_error = 0;
  // Values that differ; of block-wise fp8 only those that no quantisation error explains, allowed
  // or not. NaN is one, also where there was one before. 0 and -0 are equal, as are infinities of
  // one sign.
  std::uint64_t exceeding = 0;
  std::string expected;  // dtype and shape
  std::string actual;
};

struct CompareReport {
  std::vector<std::string> compared;  // names, all of them
  std::vector<std::string> skipped;
  std::vector<Difference> different;
  std::vector<Difference> skipped_different;  // only to be logged
  std::vector<Difference> tolerated;          // unequal, within the allowed error
  // "check tensor equality failed:" and a line for each of `different`; empty: there are none.
  std::string Message() const;
};

struct ChecksumReport {
  std::vector<NamedHash> tensors;  // in the plan's order
  std::vector<NamedHash> derived;
};

// One call at a time. The weights must not change while Snapshot, Compare or Checksums run, and no
// forward may run while Reset does.
class Checker {
 public:
  virtual ~Checker() = default;

  // Copies all entries, skipped ones too, the bytes of slots as they are. Replaces the last
  // snapshot, in its memory, so only the first can fail. kLimitExceeded: memory.
  virtual base::Status Snapshot() = 0;
  virtual bool has_snapshot() const = 0;

  // Overwrites every entry that is not skipped, in place: floats uniform in [0, 1), booleans
  // random, integers over their whole range. Both slots of an fp8 unit. The plan's padding stays
  // zero, as no update writes it. The same seed gives the same bytes. Returns the parameters that
  // it overwrote (numbers in the plan). One thread, about 1 GB/s or more.
  virtual base::Result<std::vector<std::size_t>> Reset(const CheckOptions& options,
                                                       std::uint64_t seed) = 0;

  // With the snapshot; kOutOfOrder without one, kInvalidArgument where nothing is left to compare.
  virtual base::Result<CompareReport> Compare(const CheckOptions& options, base::ThreadPool& pool,
                                              const base::CancelToken& cancel) = 0;

  virtual base::Result<ChecksumReport> Checksums(const CheckOptions& options,
                                                 base::ThreadPool& pool,
                                                 const base::CancelToken& cancel) = 0;

  // Names of the entries that these options leave out, of all actions alike.
  virtual std::vector<std::string> SkippedNames(const CheckOptions& options) const = 0;

  // Puts the snapshot's bytes of these parameters (numbers in the plan) back. kOutOfOrder without
  // one.
  virtual base::Status PutBack(std::span<const std::size_t> parameters) = 0;
};

// All must outlive it. `slots`: the live memory of each parameter (Units::SlotBytes of it), in the
// runtime layout.
std::unique_ptr<Checker> MakeChecker(const layout::Plan& plan, const quant::Units& units,
                                     std::span<const base::MutableByteSpan> slots);

}  // namespace syncline::checker
