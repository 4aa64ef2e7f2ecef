// The units of a runner's parameters, and what every parameter's slot needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "layout/plan.h"
#include "quant/scheme.h"

namespace syncline::quant {

struct Unit {
  std::string module;  // "model.layers.0.self_attn.qkv_proj"
  std::shared_ptr<const Scheme> scheme;
  Matrix matrix;
  std::vector<std::size_t> parameters;  // of the plan, in the order of Scheme::Slots
};

// Immutable, thread-safe.
class Units {
 public:
  static constexpr std::size_t npos = ~std::size_t{0};  // NOLINT(readability-identifier-naming)

  Units() = default;
  // kInternal, naming the unit, where its parameters in the plan are not those of its scheme, or
  // one is in two units. kInvalidArgument from Scheme::Check, with the module's name.
  static base::Result<Units> Create(const layout::Plan& plan, std::vector<Unit> units);

  const std::vector<Unit>& units() const { return units_; }
  std::size_t UnitOf(std::size_t parameter) const {  // npos: a plain parameter
    return parameter < unit_of_.size() ? unit_of_[parameter] : npos;
  }
  // Bytes of each parameter's slot: the larger of load and runtime.
  static std::vector<std::uint64_t> SlotBytes(const layout::Plan& plan, const Units& units);

  // The slots of one unit out of those of all parameters.
  std::vector<base::MutableByteSpan> SlotsOf(
      std::size_t unit, std::span<const base::MutableByteSpan> parameters) const;

  // The load layout of a unit whose live slots are in the runtime layout, beside them.
  std::vector<std::vector<std::byte>> Restored(std::size_t unit,
                                               std::span<const base::MutableByteSpan> parameters,
                                               base::ThreadPool& pool) const;

  // Every unit that repacks. Nothing may look at the slots meanwhile.
  void ProcessAll(std::span<const base::MutableByteSpan> parameters, base::ThreadPool& pool) const;
  void RestoreAll(std::span<const base::MutableByteSpan> parameters, base::ThreadPool& pool) const;

 private:
  std::vector<Unit> units_;
  std::vector<std::size_t> unit_of_;  // by parameter
};

}  // namespace syncline::quant
