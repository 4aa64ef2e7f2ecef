// Counters, gauges and histograms by name, written in the Prometheus text format. The registry
// outlives every metric that it handed out; updating a metric is lock-free.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace syncline::base {

class Counter {
 public:
  void Add(std::uint64_t amount = 1) { value_.fetch_add(amount, std::memory_order_relaxed); }
  std::uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_ = 0;
};

class Gauge {
 public:
  void Set(double value) { value_.store(value, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_ = 0;
};

// Seconds, in buckets that grow by a factor of about 2 to 2.5 from 1 ms to 100 s.
class Histogram {
 public:
  static constexpr std::array<double, 15> kBounds = {
      0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 100};
  void Observe(double seconds);
  std::uint64_t count() const;
  double sum() const { return sum_.load(std::memory_order_relaxed); }
  // Observations at or below kBounds[i]; i = kBounds.size() gives all of them.
  std::uint64_t CumulativeCount(std::size_t i) const;

 private:
  std::array<std::atomic<std::uint64_t>, kBounds.size() + 1> counts_ = {};
  std::atomic<double> sum_ = 0;
};

// Thread-safe. A name belongs to one kind of metric for good: asking for it as another kind returns
// a metric that is not exported.
class MetricsRegistry {
 public:
  static MetricsRegistry& Global();

  Counter& GetCounter(std::string_view name, std::string_view help);
  Gauge& GetGauge(std::string_view name, std::string_view help);
  Histogram& GetHistogram(std::string_view name, std::string_view help);

  // Text exposition format 0.0.4, in the order of the names.
  std::string ToPrometheus() const;

 private:
  struct Metric {
    std::string help;
    std::unique_ptr<Counter> counter;
    std::unique_ptr<Gauge> gauge;
    std::unique_ptr<Histogram> histogram;
  };
  template <typename T>
  T& Get(std::string_view name, std::string_view help, std::unique_ptr<T> Metric::* slot);

  mutable std::mutex mutex_;
  std::map<std::string, Metric, std::less<>> metrics_;
  std::vector<Metric> misused_;
};

}  // namespace syncline::base
