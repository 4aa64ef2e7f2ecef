#include "base/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace syncline::base {

void Histogram::Observe(double seconds) {
  const auto bucket = std::lower_bound(kBounds.begin(), kBounds.end(), seconds) - kBounds.begin();
  counts_[static_cast<std::size_t>(bucket)].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(seconds, std::memory_order_relaxed);
}

std::uint64_t Histogram::CumulativeCount(std::size_t i) const {
  std::uint64_t total = 0;
  for (std::size_t k = 0; k <= i && k < counts_.size(); ++k) {
    total += counts_[k].load(std::memory_order_relaxed);
  }
  return total;
}

std::uint64_t Histogram::count() const { return CumulativeCount(kBounds.size()); }

MetricsRegistry& MetricsRegistry::Global() {
  static MetricsRegistry registry;
  return registry;
}

template <typename T>
T& MetricsRegistry::Get(std::string_view name, std::string_view help,
                        std::unique_ptr<T> Metric::* slot) {
  const std::scoped_lock lock(mutex_);
  auto found = metrics_.find(name);
  if (found == metrics_.end()) {
    found = metrics_.emplace(std::string(name), Metric{.help = std::string(help)}).first;
    found->second.*slot = std::make_unique<T>();
  }
  if (found->second.*slot == nullptr) {
    misused_.push_back({.help = std::string(help)});
    misused_.back().*slot = std::make_unique<T>();
    return *(misused_.back().*slot);
  }
  return *(found->second.*slot);
}

Counter& MetricsRegistry::GetCounter(std::string_view name, std::string_view help) {
  return Get(name, help, &Metric::counter);
}
Gauge& MetricsRegistry::GetGauge(std::string_view name, std::string_view help) {
  return Get(name, help, &Metric::gauge);
}
Histogram& MetricsRegistry::GetHistogram(std::string_view name, std::string_view help) {
  return Get(name, help, &Metric::histogram);
}

std::string MetricsRegistry::ToPrometheus() const {
  const std::scoped_lock lock(mutex_);
  std::string text;
  auto out = std::back_inserter(text);
  for (const auto& [name, metric] : metrics_) {
    const std::string_view kind = metric.counter ? "counter" : metric.gauge ? "gauge" : "histogram";
    fmt::format_to(out, "# HELP {} {}\n# TYPE {} {}\n", name, metric.help, name, kind);
    if (metric.counter) fmt::format_to(out, "{} {}\n", name, metric.counter->value());
    if (metric.gauge) fmt::format_to(out, "{} {}\n", name, metric.gauge->value());
    if (metric.histogram) {
      const Histogram& histogram = *metric.histogram;
      for (std::size_t i = 0; i < Histogram::kBounds.size(); ++i) {
        fmt::format_to(out, "{}_bucket{{le=\"{}\"}} {}\n", name, Histogram::kBounds[i],
                       histogram.CumulativeCount(i));
      }
      fmt::format_to(out, "{0}_bucket{{le=\"+Inf\"}} {1}\n{0}_sum {2}\n{0}_count {1}\n", name,
                     histogram.count(), histogram.sum());
    }
  }
  return text;
}

}  // namespace syncline::base
