#include "base/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace syncline::base {
namespace {

TEST(MetricsTest, ExportsInPrometheusText) {
  MetricsRegistry registry;
  registry.GetCounter("pulls_total", "Pulls.").Add(2);
  registry.GetCounter("pulls_total", "Pulls.").Add();
  registry.GetGauge("version", "Version.").Set(7);
  Histogram& histogram = registry.GetHistogram("pull_seconds", "Time of a pull.");
  histogram.Observe(0.001);
  histogram.Observe(0.3);
  histogram.Observe(1000);
  const std::string text = registry.ToPrometheus();
  EXPECT_THAT(text, testing::HasSubstr("# TYPE pulls_total counter\npulls_total 3\n"));
  EXPECT_THAT(text, testing::HasSubstr("# TYPE version gauge\nversion 7\n"));
  EXPECT_THAT(text, testing::HasSubstr("pull_seconds_bucket{le=\"0.001\"} 1\n"));
  EXPECT_THAT(text, testing::HasSubstr("pull_seconds_bucket{le=\"0.5\"} 2\n"));
  EXPECT_THAT(text, testing::HasSubstr("pull_seconds_bucket{le=\"+Inf\"} 3\n"));
  EXPECT_THAT(text, testing::HasSubstr("pull_seconds_count 3\n"));
}

TEST(MetricsTest, ANameBelongsToOneKind) {
  MetricsRegistry registry;
  registry.GetCounter("x", "A counter.").Add();
  registry.GetGauge("x", "No counter.").Set(5);
  EXPECT_EQ(registry.ToPrometheus(), "# HELP x A counter.\n# TYPE x counter\nx 1\n");
}

}  // namespace
}  // namespace syncline::base
