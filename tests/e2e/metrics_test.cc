// /metrics, /livez and /readyz of real daemons.
#include <catch2/catch.hpp>

#include <httplib.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "tests/support/ctl.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/free_port.h"
#include "tests/support/temp_dir.h"

using Catch::Contains;
using kvist::test::DaemonProcess;
using kvist::test::Eventually;
using kvist::test::FakeEngine;
using kvist::test::FreePort;
using kvist::test::RunProgram;
using kvist::test::TempDir;

namespace {

struct Observed {
  TempDir dir;
  uint16_t port = FreePort();
  DaemonProcess daemon;

  explicit Observed(std::vector<std::string> settings = {}) : daemon(dir.path(), With(std::move(settings))) {}

  std::vector<std::string> With(std::vector<std::string> settings) const {
    settings.push_back("pool.bytes=64MiB");
    settings.push_back("metrics.listen=127.0.0.1:" + std::to_string(port));
    return settings;
  }
  httplib::Result Get(const std::string& path) const {
    httplib::Client client("127.0.0.1", port);
    client.set_read_timeout(20);
    auto result = client.Get(path);
    REQUIRE(result);
    return result;
  }
  // Series with their labels -> value.
  std::map<std::string, double> Scrape() const {
    std::map<std::string, double> values;
    const httplib::Result answer = Get("/metrics");
    CHECK(answer->status == 200);
    std::istringstream lines(answer->body);
    for (std::string line; std::getline(lines, line);) {
      if (line.empty() || line[0] == '#') continue;
      const size_t blank = line.rfind(' ');
      CHECK(values.emplace(line.substr(0, blank), std::stod(line.substr(blank + 1))).second);
    }
    return values;
  }
  FakeEngine Engine() const {
    FakeEngine::Options options = FakeEngine::On(daemon.socket());
    return FakeEngine(options);
  }
};

double At(const std::map<std::string, double>& scrape, const std::string& series) {
  INFO(series);
  const auto found = scrape.find(series);
  REQUIRE(found != scrape.end());
  return found->second;
}

constexpr double kPayload =
    3.0 * 2 * 1024 * FakeEngine::kPagesPerChunk;  // layers, segments, bytes, pages of a FakeEngine's chunk

}  // namespace

TEST_CASE("Every series is there at 0 before the first request, and none comes later") {
  const Observed observed({"tenants.0=blue"});
  const auto before = observed.Scrape();
  for (const auto& [series, value] : before) {
    INFO(series);
    if (series == "kvist_pool_touched_bytes") continue;  // rises from 0 by itself
    const bool of_the_start = series.rfind("kvist_build_info", 0) == 0 || series == "kvist_uptime_seconds" ||
                              series.rfind("kvist_tier_capacity_bytes", 0) == 0 || series == "kvist_index_bytes" ||
                              series == "kvist_reactor_up";
    CHECK((value == 0) == !of_the_start);
  }
  for (const char* named : {"kvist_lookups_total{tier=\"dram\",result=\"hit\"}", "kvist_load_duration_seconds_count",
                            "kvist_evictions_total{tier=\"dram\",reason=\"capacity\"}",
                            "kvist_corruption_detected_total{tier=\"dram\",kind=\"checksum\"}",
                            "kvist_tenant_used_bytes{tenant=\"blue\"}", "kvist_tenant_used_bytes{tenant=\"other\"}"})
    At(before, named);

  const FakeEngine engine = observed.Engine();
  REQUIRE(engine.status.message == "");
  const auto after = observed.Scrape();
  CHECK(after.size() == before.size());
  CHECK(At(after, "kvist_sessions") == 2);
}

TEST_CASE("Counters move by what an engine did, also after it is gone") {
  const Observed observed;
  {
    FakeEngine engine = observed.Engine();
    REQUIRE(engine.status.message == "");
    const auto keys = engine.Keys(1, 8);
    std::string wrong;
    CHECK(engine.LoadAll(keys, &wrong) == 0);                             // a lookup that misses
    REQUIRE(engine.StoreAll(keys).status == KVIST_OK);                    // 8 chunks
    CHECK(engine.StoreAll(keys).chunks_skipped == 8);                     // there already
    CHECK(engine.LoadAll(keys, &wrong) == 8);                             // a hit and a load of 8
    CHECK(engine.scheduler().Lookup(engine.Keys(1, 12), 0).chunks == 8);  // a part
    const kvist_op op = engine.worker(0).Store(engine.Keys(50'000, 1), 0, std::vector<uint32_t>{0, 1, 2, 1 << 20});
    CHECK(engine.worker(0).Wait(op, 5'000'000).status == KVIST_INVALID_ARGUMENT);
  }
  // The sessions end when the daemon has heard of it; then the counts of the living have become counts of the dead.
  auto now = observed.Scrape();
  CHECK(Eventually([&] { return At(now = observed.Scrape(), "kvist_sessions") == 0; }));

  const std::map<std::string, double> expected = {
      {"kvist_lookups_total{tier=\"dram\",result=\"miss\"}", 1},
      {"kvist_lookups_total{tier=\"dram\",result=\"hit\"}", 1},
      {"kvist_lookups_total{tier=\"dram\",result=\"partial\"}", 1},
      {"kvist_lookup_chunks_total{tier=\"dram\",result=\"hit\"}", 16},
      {"kvist_lookup_chunks_total{tier=\"dram\",result=\"miss\"}", 12},
      {"kvist_lookup_duration_seconds_count", 3},
      {"kvist_store_chunks_total", 8},
      {"kvist_store_skipped_total", 8},
      {"kvist_store_bytes_total", 8 * kPayload},
      {"kvist_store_duration_seconds_count", 2},
      {"kvist_load_chunks_total{tier=\"dram\"}", 8},
      {"kvist_load_bytes_total{tier=\"dram\"}", 8 * kPayload},
      {"kvist_load_duration_seconds_count", 1},
      {"kvist_copy_duration_seconds_count{direction=\"store\"}", 1},
      {"kvist_copy_duration_seconds_count{direction=\"load\"}", 1},
      {"kvist_queue_wait_duration_seconds_count{queue=\"ring\"}", 7},  // each call above
      {"kvist_queue_wait_duration_seconds_count{queue=\"copy_store\"}", 1},
      {"kvist_queue_wait_duration_seconds_count{queue=\"copy_load\"}", 1},
      {"kvist_requests_failed_total{op=\"store\"}", 1},
      {"kvist_requests_failed_total{op=\"load\"}", 0},
      {"kvist_deadline_exceeded_total{op=\"store\"}", 0},
      {"kvist_tenant_store_bytes_total{tenant=\"other\"}", 8 * kPayload},
      {"kvist_chunks", 8},
      {"kvist_sessions", 0},
      {"kvist_client_reaped_total{cause=\"hung_up\"}", 2},
  };
  for (const auto& [series, value] : expected) {
    INFO(series);
    CHECK(At(now, series) == value);
  }
  for (const char* series :
       {"kvist_lookup_duration_seconds_sum", "kvist_load_duration_seconds_sum", "kvist_store_duration_seconds_sum",
        "kvist_copy_duration_seconds_sum{direction=\"load\"}", "kvist_queue_wait_duration_seconds_sum{queue=\"ring\"}",
        "kvist_queue_wait_duration_seconds_sum{queue=\"copy_load\"}",
        "kvist_queue_wait_duration_seconds_sum{queue=\"copy_store\"}"}) {
    INFO(series);
    CHECK(At(now, series) > 0);
    CHECK(At(now, series) < 60);
  }
}

TEST_CASE("promtool has nothing to say about the names and the text of the metrics") {
  const Observed observed({"tenants.0=blue"});
  FakeEngine engine = observed.Engine();
  REQUIRE(engine.StoreAll(engine.Keys(1, 8)).status == KVIST_OK);
  const std::string file = observed.dir.path() + "/metrics";
  std::ofstream(file) << observed.Get("/metrics")->body;
  std::string said;
  const int status = RunProgram({"/bin/sh", "-c", "promtool check metrics < '" + file + "' 2>&1"}, &said);
  if (status == 127) {
    WARN("skipped: no promtool; Debian's package prometheus has it");
    return;
  }
  CHECK(said == "");
  CHECK(status == 0);
}

TEST_CASE("/readyz names the part that fails") {
  const Observed observed;
  CHECK(observed.Get("/livez")->status == 200);
  CHECK(observed.Get("/readyz")->status == 200);
  CHECK(observed.Get("/readyz?verbose")->body ==
        "[+] pool ok\n[+] reactor ok\n[+] engine socket ok\n[+] admin socket ok\nready\n");
  REQUIRE(::unlink(observed.daemon.socket().c_str()) == 0);
  const httplib::Result answer = observed.Get("/readyz");
  CHECK(answer->status == 503);
  CHECK_THAT(answer->body, Catch::StartsWith("engine socket: ") && Contains("engine.sock is gone"));
  CHECK(observed.Get("/livez")->status == 200);  // restarting it is the operator's choice
}

TEST_CASE("A daemon whose metrics port is taken serves engines all the same") {
  const Observed first;
  TempDir dir;
  DaemonProcess second(dir.path(), first.With({}));
  FakeEngine engine(FakeEngine::On(second.socket()));
  REQUIRE(engine.status.message == "");
  CHECK(engine.StoreAll(engine.Keys(1, 2)).status == KVIST_OK);
  CHECK(At(first.Scrape(), "kvist_store_chunks_total") == 0);
}
