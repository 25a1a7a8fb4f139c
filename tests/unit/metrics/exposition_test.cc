#include "daemon/metrics/exposition.h"

#include <prometheus/text_serializer.h>

#include <catch2/catch.hpp>
#include <set>
#include <string>

#include "daemon/metrics/node_metrics.h"

namespace kvist::metrics {
namespace {

using Catch::Contains;

std::string Text(const std::vector<prometheus::MetricFamily>& families) {
  return prometheus::TextSerializer().Serialize(families);
}

Figures Empty(const std::vector<std::string>& tenants = {}) {
  Figures figures;
  figures.traffic = session::Activity(tenants).ended();
  return figures;
}

size_t SeriesIn(const std::vector<prometheus::MetricFamily>& families) {
  size_t series = 0;
  for (const auto& family : families) series += family.metric.size();
  return series;
}

TEST_CASE("Expose shows the same series before and after something has happened") {
  Figures figures = Empty({"blue"});
  const auto before = Expose(figures);
  session::Traffic traffic;
  traffic.lookups_partial = 2;
  traffic.chunks_asked = 10;
  traffic.chunks_hit = 4;
  traffic.bytes_loaded = KiB(8);
  figures.traffic.Add("blue", SpaceId{3}, traffic);
  figures.latencies.hooks[0].Record(1000, 5);
  figures.latencies.waits[static_cast<size_t>(session::Queue::kCopyStore)].Record(1000, 2);
  figures.core.chunks_corrupt = 3;
  figures.core.chunks_corrupt_on_disk = 2;
  const auto after = Expose(figures);
  CHECK(SeriesIn(before) == SeriesIn(after));
  const std::string text = Text(after);
  CHECK_THAT(text, Contains("kvist_lookups_total{tier=\"dram\",result=\"partial\"} 2\n"));
  CHECK_THAT(text, Contains("kvist_corruption_detected_total{tier=\"dram\",kind=\"checksum\"} 3\n"));
  CHECK_THAT(text, Contains("kvist_corruption_detected_total{tier=\"ssd\",kind=\"record\"} 2\n"));
  CHECK_THAT(text, Contains("kvist_queue_wait_duration_seconds_count{queue=\"ring\"} 0\n"));
  CHECK_THAT(text, Contains("kvist_queue_wait_duration_seconds_count{queue=\"copy_load\"} 0\n"));
  CHECK_THAT(text, Contains("kvist_queue_wait_duration_seconds_count{queue=\"copy_store\"} 2\n"));
  CHECK_THAT(text, Contains("kvist_lookup_chunks_total{tier=\"dram\",result=\"miss\"} 6\n"));
  CHECK_THAT(text, Contains("kvist_tenant_load_bytes_total{tenant=\"blue\"} 8192\n"));
  CHECK_THAT(text, Contains("kvist_tenant_load_bytes_total{tenant=\"other\"} 0\n"));
  CHECK_THAT(text, Contains("kvist_build_info{version=\"" KVIST_VERSION "\"} 1\n"));
}

TEST_CASE("Expose shows each device of the tier on disk by its number, and the same series without a tier") {
  Figures figures = Empty();
  figures.ssd.devices.resize(2);
  for (ssd::Store::DeviceRow& device : figures.ssd.devices) device.writable = false;
  figures.ssd.moved.resize(2);
  const auto off = Expose(figures);
  for (const auto& family : off) {
    INFO(family.name);
    if (family.name.rfind("kvist_ssd_", 0) != 0) continue;
    CHECK(!family.metric.empty());
    for (const auto& metric : family.metric) CHECK(metric.counter.value + metric.gauge.value == 0);
  }
  figures.ssd.there = figures.ssd.writable = figures.ssd.recovering = true;
  ssd::Store::DeviceRow& second = figures.ssd.devices[1];
  second.directory = "/mnt/secret";
  second.why = "no reason";
  second.writable = true;
  second.segments = 16;
  second.free = 3;
  second.fenced = 2;
  second.capacity = GiB(16);
  second.live = GiB(4);
  figures.ssd.devices[0].capacity = GiB(1);
  second.written = MiB(3);
  figures.ssd.moved[1] = MiB(1);
  second.sync_errors = 5;
  second.verdicts[static_cast<size_t>(ssd::Verdict::kTorn)] = 6;
  second.waiting = 7;
  figures.ssd.commits_failed = 8;
  figures.ssd.catalogs_set_aside = 2;
  figures.ssd.scrubbed = {.passes = 12, .records = 13, .read = MiB(14), .damaged = 15, .unreadable = 16, .last = {}};
  figures.core.chunks_found = 9;
  figures.core.loads_waited = 10;
  figures.core.chunks_moved = 11;
  figures.core.encoded = {17, KiB(30), KiB(40)};
  const auto on = Expose(figures);
  CHECK(SeriesIn(on) == SeriesIn(off));
  const std::string text = Text(on);
  CHECK_THAT(text, !Contains("secret") && !Contains("reason\n"));
  for (const char* line : {"kvist_ssd_present 1",
                           "kvist_ssd_encoded_chunks 17",
                           "kvist_ssd_encoded_bytes{in=\"disk\"} 30720",
                           "kvist_ssd_encoded_bytes{in=\"slots\"} 40960",
                           "kvist_ssd_accepts_writes 1",
                           "kvist_ssd_recovering 1",
                           "kvist_ssd_writable{device=\"0\"} 0",
                           "kvist_ssd_writable{device=\"1\"} 1",
                           "kvist_ssd_segments{device=\"1\",state=\"free\"} 3",
                           "kvist_ssd_segments{device=\"1\",state=\"used\"} 11",
                           "kvist_ssd_segments{device=\"1\",state=\"fenced\"} 2",
                           "kvist_ssd_written_bytes_total{device=\"1\"} 3145728",
                           "kvist_ssd_moved_bytes_total{device=\"1\"} 1048576",
                           "kvist_ssd_errors_total{device=\"1\",op=\"sync\"} 5",
                           "kvist_ssd_verdicts_total{device=\"1\",verdict=\"torn\"} 6",
                           "kvist_ssd_verdicts_total{device=\"0\",verdict=\"good\"} 0",
                           "kvist_ssd_waiting_records{device=\"1\"} 7",
                           "kvist_ssd_commits_total{result=\"failed\"} 8",
                           "kvist_ssd_catalogs_set_aside_total 2",
                           "kvist_ssd_scrub_passes_total 12",
                           "kvist_ssd_scrubbed_bytes_total 14680064",
                           "kvist_ssd_scrubbed_records_total{result=\"read\"} 13",
                           "kvist_ssd_scrubbed_records_total{result=\"damaged\"} 15",
                           "kvist_ssd_scrubbed_records_total{result=\"unreadable\"} 16",
                           "kvist_ssd_found_chunks_total 9",
                           "kvist_load_waited_chunks_total 10",
                           "kvist_ssd_chunk_writes_total{result=\"moved\"} 11",
                           "kvist_tier_capacity_bytes{tier=\"ssd\"} 18253611008",
                           "kvist_tier_used_bytes{tier=\"ssd\"} 4294967296"}) {
    INFO(line);
    CHECK_THAT(text, Contains(std::string(line) + "\n"));
  }
}

TEST_CASE("Expose's histograms are cumulative and hold every duration") {
  Figures figures = Empty();
  LatencyHistogram& lookups = figures.latencies.hooks[static_cast<size_t>(session::Hook::kLookup)];
  lookups.Record(1);                 // below the first bound
  lookups.Record(1024, 2);           // on a bound: inclusive
  lookups.Record(1025);              // just above it
  lookups.Record(int64_t{1} << 45);  // above the last
  const std::string text = Text(Expose(figures));
  CHECK_THAT(text, Contains("kvist_lookup_duration_seconds_bucket{le=\"2.56e-07\"} 1\n"));
  CHECK_THAT(text, Contains("kvist_lookup_duration_seconds_bucket{le=\"1.024e-06\"} 3\n"));
  CHECK_THAT(text, Contains("kvist_lookup_duration_seconds_bucket{le=\"2.048e-06\"} 4\n"));
  CHECK_THAT(text, Contains("kvist_lookup_duration_seconds_bucket{le=\"34.359738368\"} 4\n"));
  CHECK_THAT(text, Contains("kvist_lookup_duration_seconds_bucket{le=\"+Inf\"} 5\n"));
  CHECK_THAT(text, Contains("kvist_lookup_duration_seconds_count 5\n"));
}

TEST_CASE("Expose makes no series for tenants that were not named, and loses none of their traffic") {
  Figures figures = Empty({"blue", "red", "blue", "other"});
  const size_t series = SeriesIn(Expose(figures));
  session::Traffic traffic;
  traffic.bytes_stored = Bytes{1};
  for (uint32_t i = 0; i < 1000; ++i) {
    const std::string name = "uid:" + std::to_string(i);
    figures.traffic.Add(name, SpaceId{i}, traffic);
    figures.core.spaces.push_back({{}, name, "model", 1, Bytes{2}});
  }
  figures.traffic.Add("red", SpaceId{0}, traffic);
  figures.core.spaces.push_back({{}, "red", "model", 1, Bytes{5}});
  const auto families = Expose(figures);
  CHECK(SeriesIn(families) == series);
  const std::string text = Text(families);
  CHECK_THAT(text, Contains("kvist_tenant_store_bytes_total{tenant=\"other\"} 1000\n"));
  CHECK_THAT(text, Contains("kvist_tenant_store_bytes_total{tenant=\"red\"} 1\n"));
  CHECK_THAT(text, Contains("kvist_tenant_store_bytes_total{tenant=\"blue\"} 0\n"));
  CHECK_THAT(text, Contains("kvist_store_bytes_total 1001\n"));
  CHECK_THAT(text, Contains("kvist_tenant_used_bytes{tenant=\"other\"} 2000\n"));
  CHECK_THAT(text, Contains("kvist_tenant_used_bytes{tenant=\"red\"} 5\n"));
  CHECK_THAT(text, !Contains("uid:"));
}

TEST_CASE("Expose gives each series once and each counter a _total") {
  std::set<std::string> seen;
  for (const auto& family : Expose(Empty({"blue", "other"}))) {
    INFO(family.name);
    CHECK(family.name.rfind("kvist_", 0) == 0);
    CHECK(family.help != "");
    CHECK((family.type == prometheus::MetricType::Counter) == (family.name.find("_total") != std::string::npos));
    for (const auto& metric : family.metric) {
      std::string series = family.name;
      for (const auto& label : metric.label) series += "," + label.name + "=" + label.value;
      CHECK(seen.insert(series).second);
    }
  }
}

TEST_CASE("NodeMetrics shows the last figures of a node that doesn't answer, and says so") {
  Figures answered = Empty();
  answered.core.evictions = 7;
  absl::StatusOr<std::shared_ptr<const Figures>> answer = absl::DeadlineExceededError("hangs");
  const NodeMetrics metrics([&] { return answer; }, Empty());
  CHECK_THAT(Text(metrics.Collect()), Contains("kvist_reactor_up 0\n") && Contains("reason=\"capacity\"} 0\n"));
  answer = std::make_shared<const Figures>(answered);
  CHECK_THAT(Text(metrics.Collect()), Contains("kvist_reactor_up 1\n") && Contains("reason=\"capacity\"} 7\n"));
  answer = absl::DeadlineExceededError("hangs");
  CHECK_THAT(Text(metrics.Collect()), Contains("kvist_reactor_up 0\n") && Contains("reason=\"capacity\"} 7\n"));
}

}  // namespace
}  // namespace kvist::metrics
