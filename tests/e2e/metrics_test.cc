// /metrics, /livez and /readyz of real daemons.
#include <catch2/catch.hpp>

#include <fcntl.h>
#include <httplib.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>

#include "tests/support/ctl.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/free_port.h"
#include "tests/support/recovery.h"
#include "tests/support/slow_callers.h"
#include "tests/support/temp_dir.h"

using Catch::Contains;
using kvist::test::Ctl;
using kvist::test::DaemonProcess;
using kvist::test::Eventually;
using kvist::test::FakeEngine;
using kvist::test::FreePort;
using kvist::test::HasRecovered;
using kvist::test::RunProgram;
using kvist::test::SsdOf;
using kvist::test::TempDir;

namespace {

struct Observed {
  TempDir dir;
  uint16_t port = FreePort();
  DaemonProcess daemon;

  explicit Observed(std::vector<std::string> settings = {}, const std::string& before = "", const std::string& config = "")
      : daemon(dir.path(), With(std::move(settings)), config, before) {}

  std::vector<std::string> With(std::vector<std::string> settings) const {
    settings.insert(settings.begin(), "pool.bytes=64MiB");
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

// A pool of some 200 chunks over a disk of some 9,000.
const std::vector<std::string> kOverDisk{"ssd.enabled=true",     "ssd.capacity=256MiB",  "pool.bytes=6MiB",
                                         "pool.slab_bytes=1MiB", "pool.touch_threads=0", "lease.share=0.9"};
constexpr uint32_t kPrompts = 30;
constexpr int64_t kFlushTime = 30'000'000;
std::vector<kvist_key> Prompt(const FakeEngine& engine, uint32_t p) { return engine.Keys(p * 1000, 16); }

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
                              series == "kvist_tier_capacity_bytes{tier=\"dram\"}" || series == "kvist_index_bytes" ||
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

TEST_CASE("Each hook has its own latencies and failures, at 0 from the start") {
  const Observed observed({"swap.share=0.25"});
  const std::vector<std::string> hooks = {"lookup", "load",  "store",    "swap_out", "swap_in",
                                          "pin",    "unpin", "allocate", "flush"};
  const auto count = [](const auto& now, const std::string& hook) {
    return At(now, "kvist_" + hook + "_duration_seconds_count");
  };
  const auto failed = [](const auto& now, const std::string& hook) {
    return At(now, "kvist_requests_failed_total{op=\"" + hook + "\"}");
  };
  const auto before = observed.Scrape();
  for (const std::string& hook : hooks) {
    INFO(hook);
    CHECK(count(before, hook) == 0);
    CHECK(failed(before, hook) == 0);
    CHECK(At(before, "kvist_deadline_exceeded_total{op=\"" + hook + "\"}") == 0);
  }

  FakeEngine engine = observed.Engine();
  REQUIRE(engine.status.message == "");
  kvist::Client& worker = engine.worker(0);
  const auto keys = engine.Keys(1, 2);
  constexpr int64_t kLong = 10'000'000;
  const kvist::Allocation room = worker.Allocate(2);
  REQUIRE(room);
  CHECK_FALSE(worker.Allocate(1 << 16));  // more than its share
  for (int i = 0; i < 3; ++i) REQUIRE(worker.Wait(worker.SwapOut(room, 0, 2, engine.Pages(0, 2)), kLong).status == KVIST_OK);
  REQUIRE(worker.Wait(worker.SwapIn(room, 0, 2, engine.Pages(0, 2)), kLong).status == KVIST_OK);
  REQUIRE(engine.StoreAll(keys).status == KVIST_OK);
  engine.scheduler().Pin(keys, kLong);
  engine.scheduler().Unpin(keys);
  engine.scheduler().Flush(kLong);
  // The latency is counted once the answer is out.
  auto now = observed.Scrape();
  CHECK(Eventually([&] { return count(now = observed.Scrape(), "flush") == 1; }));
  const std::map<std::string, double> expected = {{"lookup", 0},   {"load", 0},     {"store", 1},
                                                  {"swap_out", 3}, {"swap_in", 1},  {"pin", 1},
                                                  {"unpin", 1},    {"allocate", 2}, {"flush", 1}};
  for (const auto& [hook, times] : expected) {
    INFO(hook);
    CHECK(count(now, hook) == times);
    CHECK((hook == "flush" || failed(now, hook) == (hook == "allocate" ? 1 : 0)));
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

TEST_CASE("/readyz?verbose says how the store beyond the node is, without which the node is ready") {
  const Observed observed({"remote.store=redis://127.0.0.1:" + std::to_string(FreePort())});
  std::string body;
  CHECK(Eventually([&] {
    body = observed.Get("/readyz?verbose")->body;
    return body.find("\n[!] remote store: remote:shared isn't asked: ") != std::string::npos;
  }));
  INFO(body);
  CHECK(observed.Get("/readyz")->status == 200);
}

TEST_CASE("Tenants that a reload names have series at 0 before anybody of them comes") {
  const TempDir dir;
  const std::string file = dir.path() + "/kvistd.toml";
  std::ofstream(file) << "[tenants]\n4000000001 = \"blue\"\n";
  Observed observed({"metrics.tenants_max=2"}, "", file);
  const auto before = observed.Scrape();
  CHECK_FALSE(before.contains("kvist_tenant_used_bytes{tenant=\"amber\"}"));
  std::ofstream(file) << "[tenants]\n4000000001 = \"blue\"\n4000000002 = \"amber\"\n4000000003 = \"red\"\n";
  Ctl(observed.daemon, {"reload"});
  const auto now = observed.Scrape();
  for (const char* tenant : {"amber", "blue", "other"}) {
    INFO(tenant);
    CHECK(At(now, "kvist_tenant_used_bytes{tenant=\"" + std::string(tenant) + "\"}") == 0);
    CHECK(At(now, "kvist_tenant_lookup_chunks_total{tenant=\"" + std::string(tenant) + "\",result=\"hit\"}") == 0);
  }
  CHECK_FALSE(now.contains("kvist_tenant_used_bytes{tenant=\"red\"}"));  // metrics.tenants_max
}

TEST_CASE("A tier on disk has the series of a kvistd without one, and they move by what it does") {
  const auto without = Observed().Scrape();
  const Observed observed(kOverDisk);
  REQUIRE(HasRecovered(observed.daemon));
  const auto before = observed.Scrape();
  CHECK(before.size() == without.size());
  for (const auto& [series, value] : before) CHECK(without.contains(series));
  CHECK(observed.Get("/readyz?verbose")->body ==
        "[+] pool ok\n[+] reactor ok\n[+] engine socket ok\n[+] admin socket ok\n[+] SSD tier ok\nready\n");
  CHECK(At(before, "kvist_ssd_present") == 1);
  CHECK(At(before, "kvist_ssd_accepts_writes") == 1);
  CHECK(At(before, "kvist_tier_capacity_bytes{tier=\"ssd\"}") > 250 << 20);  // but for segments' headers
  CHECK(At(before, "kvist_ssd_written_records_total{device=\"0\"}") == 0);

  FakeEngine engine = observed.Engine();
  REQUIRE(engine.status.message == "");
  for (uint32_t p = 0; p < kPrompts; ++p) {
    REQUIRE(engine.StoreAll(Prompt(engine, p)).status == KVIST_OK);
    if (p % 4 == 3) REQUIRE(engine.scheduler().Flush(kFlushTime).ok());  // not faster than the disk
  }
  uint32_t loaded = 0;
  for (uint32_t p = 0; p < kPrompts; ++p) {
    std::string wrong;
    loaded += engine.LoadAll(Prompt(engine, p), &wrong);
    CHECK(wrong == "");
  }
  CHECK(loaded > 0);
  const auto after = observed.Scrape();
  CHECK(after.size() == before.size());
  const double written = At(after, "kvist_ssd_written_bytes_total{device=\"0\"}");
  CHECK(At(after, "kvist_ssd_chunk_writes_total{result=\"kept\"}") >= 200);
  CHECK(At(after, "kvist_ssd_written_records_total{device=\"0\"}") >= 200);
  CHECK(written > 200 * kPayload);
  CHECK(At(after, "kvist_ssd_live_bytes{device=\"0\"}") > 200 * kPayload);
  CHECK(At(after, "kvist_ssd_syncs_total{device=\"0\"}") > 0);
  CHECK(At(after, "kvist_ssd_chunk_reads_total{result=\"good\"}") > 0);
  CHECK(At(after, "kvist_ssd_read_bytes_total{device=\"0\"}") > 0);
  CHECK(At(after, "kvist_ssd_verdicts_total{device=\"0\",verdict=\"good\"}") > 0);
  CHECK(At(after, "kvist_ssd_commits_total{result=\"good\"}") > 0);
  CHECK(At(after, "kvist_ssd_demotions_total") > 0);
  CHECK(At(after, "kvist_load_waited_chunks_total") <= At(after, "kvist_load_chunks_total{tier=\"dram\"}"));
  const auto ssd = kvist::test::Ctl(observed.daemon, {"ssd"});
  CHECK(ssd["tier"]["state"] == "on");
  CHECK(ssd["tier"]["trouble"] == "");
  CHECK(ssd["devices"].size() == 1);
  CHECK(ssd["devices"][0]["written_bytes"] >= written);
  CHECK(ssd["devices"][0]["write_amplification"] >= 1);
  CHECK(ssd["recovery"]["ended"] == true);
  CHECK(ssd["tier"] == kvist::test::StatusOf(observed.daemon)["ssd"]);
}

TEST_CASE("A tier that takes no writes is a warning, and DRAM goes on") {
  // Segments have 8 MiB: there is no room for a file of that size.
  const Observed observed(kOverDisk, "trap '' XFSZ; ulimit -f 12288");
  REQUIRE(HasRecovered(observed.daemon));
  FakeEngine engine = observed.Engine();
  REQUIRE(engine.status.message == "");
  uint32_t prompts = 0;
  // Whether that is seen while the tier refuses what it is to write; by and by it tries again whether there is room now.
  const auto seen = [&](const std::function<bool()>& holds) {
    return Eventually([&] {
      REQUIRE(engine.StoreAll(Prompt(engine, prompts++)).status == KVIST_OK);
      CHECK(!engine.scheduler().Flush(kFlushTime).ok());
      CHECK(observed.Get("/readyz")->body == "ok\n");
      return holds();
    });
  };
  CHECK(seen([&] {
    const auto ssd = SsdOf(observed.daemon);
    const std::string trouble = ssd["trouble"];
    return ssd["state"] == "read-only" && trouble.find("it takes no writes: ") == 0 &&
           trouble.find("ssd.capacity") != std::string::npos;
  }));
  CHECK(seen([&] {
    const auto device = kvist::test::Ctl(observed.daemon, {"ssd"})["devices"][0];
    return device["writable"] == false && device["why"] != "";
  }));
  CHECK(seen([&] {
    const httplib::Result ready = observed.Get("/readyz?verbose");
    CHECK(ready->status == 200);
    return ready->body.find("\n[!] SSD tier: it takes no writes: ") != std::string::npos;
  }));
  CHECK(seen([&] {
    const auto scrape = observed.Scrape();
    return At(scrape, "kvist_ssd_accepts_writes") == 0 && At(scrape, "kvist_ssd_writable{device=\"0\"}") == 0;
  }));
  std::string wrong;
  CHECK(engine.LoadAll(Prompt(engine, prompts - 1), &wrong) == 16);
  CHECK(wrong == "");
}

TEST_CASE("What was damaged on disk fails its load, and is told from what was damaged in DRAM") {
  const TempDir logs;
  const Observed observed(kOverDisk, "exec 2>'" + logs.path() + "/log'");
  REQUIRE(HasRecovered(observed.daemon));
  FakeEngine engine = observed.Engine();
  REQUIRE(engine.status.message == "");
  for (uint32_t p = 0; p < kPrompts; ++p) {
    REQUIRE(engine.StoreAll(Prompt(engine, p)).status == KVIST_OK);
    if (p % 4 == 3) REQUIRE(engine.scheduler().Flush(kFlushTime).ok());
  }
  // A byte of each unit of the segments, but for their headers.
  uint64_t flipped = 0;
  constexpr uint64_t kUnit = 4096;
  for (const auto& file : std::filesystem::directory_iterator(observed.dir.path() + "/state/ssd")) {
    if (file.path().filename().string().rfind("segment-", 0) != 0) continue;
    const int fd = ::open(file.path().c_str(), O_RDWR | O_CLOEXEC);
    REQUIRE(fd >= 0);
    for (uint64_t at = kUnit + 1000; at + kUnit < file.file_size(); at += kUnit, ++flipped) {
      char byte = 0;
      CHECK(::pread(fd, &byte, 1, static_cast<off_t>(at)) == 1);
      byte = static_cast<char>(~byte);
      CHECK(::pwrite(fd, &byte, 1, static_cast<off_t>(at)) == 1);
    }
    CHECK(::fdatasync(fd) == 0);
    ::close(fd);
  }
  REQUIRE(flipped > 0);
  for (uint32_t p = 0; p < kPrompts; ++p) {
    std::string wrong;
    engine.LoadAll(Prompt(engine, p), &wrong);
    CHECK(wrong == "");
  }
  const std::string on_disk = "kvist_corruption_detected_total{tier=\"ssd\",kind=\"record\"}";
  CHECK(Eventually([&] { return At(observed.Scrape(), on_disk) > 0; }));
  CHECK(At(observed.Scrape(), "kvist_corruption_detected_total{tier=\"dram\",kind=\"checksum\"}") == 0);
  const auto ssd = kvist::test::Ctl(observed.daemon, {"ssd"});
  CHECK(ssd["chunks_corrupt"] > 0);
  uint64_t bad = 0;
  for (const auto& verdict : ssd["devices"][0]["verdicts"])
    bad += verdict["name"] == "good" ? 0 : verdict["count"].get<uint64_t>();
  CHECK(bad >= ssd["chunks_corrupt"]);
  std::ostringstream log;
  log << std::ifstream(logs.path() + "/log").rdbuf();
  CHECK_THAT(log.str(), Contains("a chunk on the SSD tier was not what was stored there") && !Contains("in DRAM"));
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

TEST_CASE("A prober is answered while others hold connections to the port, say nothing, or a byte a second") {
  const Observed observed;
  const kvist::test::SlowCallers silent(observed.port, 64, "");
  const kvist::test::SlowCallers slow(observed.port, 64, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n");
  // Until all had their time: some have been closed then, and others are there.
  CHECK(Eventually([&] {
    for (const char* path : {"/livez", "/readyz", "/metrics"}) {
      httplib::Client client("127.0.0.1", observed.port);
      client.set_read_timeout(3);
      const auto answer = client.Get(path);
      REQUIRE(answer);
      CHECK(answer->status == 200);
    }
    return silent.made_again() >= 64 && slow.made_again() >= 64;
  }));
}
