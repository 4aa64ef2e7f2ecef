// For tests: the parameters of a runner in memory, and a checkpoint for them.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/result_matchers.h"
#include "checker/checker.h"
#include "layout/plan.h"
#include "quant/units.h"

namespace syncline::checker {

using Bytes = std::vector<std::byte>;

inline Bytes RandomBytes(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Is filled through `builder`, AddUnit and their like, then built. Stays where it is.
class TestRunner {
 public:
  layout::PlanBuilder builder;

  TestRunner() = default;
  TestRunner(const TestRunner&) = delete;
  TestRunner& operator=(const TestRunner&) = delete;

  // A parameter that is a tensor of the checkpoint.
  void AddWhole(const std::string& name, tensor::Dtype dtype, std::vector<std::uint64_t> shape) {
    builder.AddWhole(name, name, dtype, std::move(shape));
    ++parameters_;
  }
  void AddStacked(const std::vector<layout::TensorSpec>& tensors, const std::string& parameter) {
    builder.AddStacked(tensors, parameter);
    ++parameters_;
  }
  void AddDerived(layout::TensorSpec parameter) {
    builder.AddDerived(std::move(parameter));
    ++parameters_;
  }
  // After a parameter was added through `builder`.
  void CountParameter() { ++parameters_; }
  // Its tensors are its slots.
  void AddUnit(const std::string& module, std::shared_ptr<const quant::Scheme> scheme,
               quant::Matrix matrix) {
    quant::Unit unit = {.module = module, .scheme = std::move(scheme), .matrix = matrix};
    for (const quant::Slot& slot : unit.scheme->Slots(matrix)) {
      unit.parameters.push_back(parameters_);
      AddWhole(module + "." + slot.name, slot.load.dtype, slot.load.shape);
    }
    units_to_be_.push_back(std::move(unit));
  }

  // Of parameters that were added.
  void AddPlannedUnit(quant::Unit unit) { units_to_be_.push_back(std::move(unit)); }

  void Build() {
    ASSERT_OK_AND_ASSIGN(plan_, std::move(builder).Build());
    ASSERT_OK_AND_ASSIGN(units_, quant::Units::Create(plan_, std::move(units_to_be_)));
    for (const std::uint64_t bytes : quant::Units::SlotBytes(plan_, units_)) {
      memory_.emplace_back(bytes);
    }
    slots_.assign(memory_.begin(), memory_.end());
    checker_ = MakeChecker(plan_, units_, slots_);
  }

  const layout::Plan& plan() const { return plan_; }
  const quant::Units& units() const { return units_; }
  Checker& checker() { return *checker_; }
  std::vector<Bytes>& memory() { return memory_; }
  const std::vector<base::MutableByteSpan>& slots() const { return slots_; }
  std::vector<base::ByteSpan> live() const { return {slots_.begin(), slots_.end()}; }
  Bytes& operator[](const std::string& parameter) {
    return memory_[plan_.FindParameter(parameter)];
  }

  base::ThreadPool& pool() { return pool_; }

  base::Result<CompareReport> Compare(const CheckOptions& options = {}) {
    return checker_->Compare(options, pool_, cancel_);
  }
  // By name, derived ones too.
  std::map<std::string, std::string> Hashes(const CheckOptions& options = {}) {
    std::map<std::string, std::string> hashes;
    const auto report = checker_->Checksums(options, pool_, cancel_);
    EXPECT_OK(report);
    if (!report) return hashes;
    for (const auto& list : {report->tensors, report->derived}) {
      for (const NamedHash& hash : list) hashes[hash.name] = hash.hash;
    }
    return hashes;
  }

 private:
  std::size_t parameters_ = 0;
  std::vector<quant::Unit> units_to_be_;
  layout::Plan plan_;
  quant::Units units_;
  std::vector<Bytes> memory_;
  std::vector<base::MutableByteSpan> slots_;
  std::unique_ptr<Checker> checker_;
  base::ThreadPool pool_{2};
  base::CancelToken cancel_;
};

}  // namespace syncline::checker
