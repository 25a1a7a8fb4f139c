#include <catch2/catch.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "daemon/ctl/commands.h"
#include "daemon/ctl/table.h"
#include "daemon/ctl/top_screen.h"
#include "daemon/ctl/top_view.h"
#include "daemon/rpc/admin_server.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/daemon/fake_node.h"

namespace kvist::ctl {
namespace {

using Catch::Contains;

// A daemon after `seconds`, with `sessions` of which number i has loaded i GB in each second.
TopSample After(double seconds, int sessions) {
  TopSample sample;
  sample.status.set_version("0.1.0");
  sample.status.set_pid(42);
  sample.status.set_uptime_seconds(seconds);
  sample.status.mutable_pool()->set_capacity_bytes(4ull << 30);
  sample.status.mutable_pool()->set_used_bytes(1ull << 30);
  const auto done = static_cast<uint64_t>(seconds * 100);
  sample.status.mutable_traffic()->set_lookups(done);
  sample.status.mutable_traffic()->set_chunks_asked(done * 10);
  sample.status.mutable_traffic()->set_chunks_hit(done * 4);
  auto& latency = *sample.status.add_latencies();
  latency.set_name("lookup");
  latency.set_count(done);
  auto& quick = *latency.add_buckets();
  quick.set_upper_nanos(1000);
  quick.set_count(done - 1);
  auto& slow = *latency.add_buckets();
  slow.set_upper_nanos(5'000'000);
  slow.set_count(1);
  auto& wait = *sample.status.add_waits() = latency;
  wait.set_name("ring");
  wait.mutable_buckets(0)->set_upper_nanos(300);
  auto& space = *sample.status.add_spaces();
  space.set_digest("aaaa111122223333");
  space.set_model("a model whose name is so long that no terminal of a usual width could ever hold it");
  for (int i = 1; i <= sessions; ++i) {
    auto& session = *sample.sessions.add_sessions();
    session.set_id(static_cast<uint64_t>(i));
    session.set_instance("engine\033[2J");
    session.set_role("worker");
    session.mutable_traffic()->set_bytes_loaded(static_cast<uint64_t>(seconds) * 1'000'000'000 * static_cast<uint64_t>(i));
  }
  return sample;
}

TEST_CASE("ViewTop says what happened between two looks, by the second, the busiest first") {
  const TopView view = ViewTop(After(10, 3), After(12, 3));
  CHECK(view.seconds == Approx(2));
  CHECK(view.rates.lookups == Approx(100));
  CHECK(view.rates.chunks_hit / view.rates.chunks_asked == Approx(0.4));
  REQUIRE(view.sessions.size() == 3);
  CHECK(view.sessions[0].session.id() == 3);
  CHECK(view.sessions[0].rates.bytes_loaded == Approx(3e9));
  REQUIRE(view.latencies.size() == 1);
  CHECK(view.latencies[0].p50_seconds == Approx(1e-6));
  CHECK(view.latencies[0].p99_seconds == Approx(1e-6));  // the slow one was before
  REQUIRE(view.waits.size() == 1);
  CHECK(view.waits[0].p99_seconds == Approx(300e-9));
  const auto json = nlohmann::json::parse(ToJson(view));
  CHECK(json["latencies"][0]["hook"] == "lookup");
  CHECK(json["waits"][0]["queue"] == "ring");
  CHECK(json["waits"][0]["per_second"] == Approx(100));
  SECTION("a session that is new did what it did since") {
    CHECK(ViewTop(After(10, 0), After(12, 1)).sessions[0].rates.bytes_loaded == Approx(6e9));
  }
  SECTION("a daemon that was restarted begins at 0") {
    const TopView restarted = ViewTop(After(10, 3), After(4, 3));
    CHECK(restarted.seconds == Approx(4));
    CHECK(restarted.rates.lookups == Approx(100));
  }
  SECTION("two looks at one moment are no division by 0") {
    const TopView still = ViewTop(After(10, 3), After(10, 3));
    CHECK(still.rates.lookups == 0);
    CHECK_THAT(DrawTop(still, {}), Contains("nobody asks"));
  }
}

TEST_CASE("DrawTop fits every terminal, and lets no name steer it") {
  const TopView view = ViewTop(After(10, 50), After(12, 50));
  for (const size_t columns : {20, 40, 80, 100, 250}) {
    for (const size_t rows : {5, 12, 24, 60}) {
      INFO(columns << " x " << rows);
      const std::string trouble =
          GENERATE("", "no kvistd behind a path that is very long: it has ended. Start it again\033[2J");
      const std::string text =
          DrawTop(view, {.columns = columns, .rows = rows, .colours = false, .live = true, .trouble = trouble});
      const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
      CHECK(std::count(text.begin(), text.end(), '\n') <= static_cast<long>(rows));
      for (const std::string& line : lines) CHECK(Width(line) <= columns);
      CHECK_THAT(text, !Contains("\033"));
    }
  }
  const std::string text = DrawTop(view, {.columns = 100, .rows = 30, .colours = false});
  INFO(text);
  CHECK_THAT(text, Contains("25.0 %   1 GiB of 4 GiB"));
  CHECK_THAT(text, Contains("40.0 %   400 of 1,000 chunks/s"));
  CHECK_THAT(text, Catch::StartsWith("kvistd 0.1.0  pid 42  up 12 s") && Contains("  the last 2 s\n"));
  CHECK_THAT(DrawTop(view, {.columns = 100, .rows = 30, .colours = false, .live = false, .trouble = "it is away"}),
             Contains("\nnothing newer: it is away\n\npool "));
  CHECK_THAT(text, Contains("50 GB/s"));
  CHECK_THAT(text, Contains("  ring     300 ns    300 ns\n"));
  CHECK_THAT(text, Contains(" more sessions\n"));
  CHECK_THAT(DrawTop(view, {.columns = 100, .rows = 30, .colours = true}), Contains("\033[32m"));
}

TEST_CASE("DrawTop shows the hooks that somebody has called, and lookup, load and store anyhow") {
  TopSample before = After(10, 0), now = After(12, 0);
  for (const char* name : {"load", "pin", "flush"}) {
    for (TopSample* sample : {&before, &now}) sample->status.add_latencies()->set_name(name);
  }
  for (TopSample* sample : {&before, &now}) sample->status.mutable_latencies(2)->set_count(7);
  const TopView view = ViewTop(before, now);
  CHECK(view.latencies.size() == 4);
  CHECK_THAT(DrawTop(view, {}), Contains("\nlookup ") && Contains("\nload ") && Contains("\npin ") && !Contains("\nflush "));
}

TEST_CASE("DrawTop shows a tier on disk when there is one, and what it doesn't do") {
  TopSample now = After(12, 1);
  CHECK_THAT(DrawTop(ViewTop(After(10, 1), now), {}), !Contains("ssd"));
  now.status.mutable_ssd()->set_state("off");
  CHECK_THAT(DrawTop(ViewTop(After(10, 1), now), {}), !Contains("ssd"));
  node::v1::SsdTier& ssd = *now.status.mutable_ssd();
  ssd.set_state("on");
  ssd.set_capacity_bytes(8ull << 30);
  ssd.set_live_bytes(2ull << 30);
  CHECK_THAT(DrawTop(ViewTop(After(10, 1), now), {.columns = 100}),
             Contains("\nssd ") && Contains("25.0 %   2 GiB of 8 GiB\n"));
  ssd.set_state("read-only");
  const TopView view = ViewTop(After(10, 1), now);
  CHECK_THAT(DrawTop(view, {.columns = 100}), Contains("2 GiB of 8 GiB, read-only\n"));
  CHECK(nlohmann::json::parse(ToJson(view))["ssd_state"] == "read-only");
  CHECK(nlohmann::json::parse(ToJson(view))["ssd_live_bytes"] == 2ull << 30);
}

TEST_CASE("kvistctl top --once looks once, and without it until the user has enough") {
  test::TempDir dir;
  FakeNode node;
  const std::string socket = dir / "admin.sock";
  const auto server = rpc::AdminServer::Create({.socket = socket, .mode = 0600, .group = "", .node = &node}).value();
  std::ostringstream out, err;
  int waits = 0;
  std::optional<Terminal::Size> size;
  const Terminal terminal{.out = out,
                          .err = err,
                          .ask = nullptr,
                          .size = [&] { return size; },
                          .wait = [&](absl::Duration) { return ++waits <= 3; }};
  SECTION("as JSON") {
    CHECK(Run({"--socket", socket, "top", "--once", "-o", "json"}, terminal) == kOk);
    CHECK(waits == 1);
    const auto json = nlohmann::json::parse(out.str());
    CHECK(json["pool_capacity_bytes"] == 4ull << 30);
    CHECK(json["spaces"].size() == 2);
  }
  SECTION("one object a line") {
    CHECK(Run({"--socket", socket, "top", "-o", "json"}, terminal) == kOk);
    const std::string text = out.str();
    CHECK(std::count(text.begin(), text.end(), '\n') == 3);
  }
  SECTION("on a terminal it leaves the screen as it was") {
    size = Terminal::Size{80, 24};
    CHECK(Run({"--socket", socket, "top"}, terminal) == kOk);
    CHECK_THAT(out.str(), Catch::StartsWith("\033[?1049h") && Catch::EndsWith("\033[?1049l"));
  }
  SECTION("without a daemon it says so") {
    CHECK(Run({"--socket", dir / "none", "top", "--once"}, terminal) == kUnavailable);
    CHECK_THAT(err.str(), Contains("no kvistd at"));
  }
  SECTION("what a daemon refuses is no daemon that is away") {
    node.Fail(absl::PermissionDeniedError("not you"));
    CHECK(Run({"--socket", socket, "top", "--once"}, terminal) == kRefused);
    CHECK(err.str() == "kvistctl: not you\n");
    node.Fail(absl::UnavailableError("kvistd is stopping"));
    CHECK(Run({"--socket", socket, "top", "--once"}, terminal) == kUnavailable);
    CHECK_THAT(err.str(), Contains(socket + " went away: kvistd is stopping"));
    const std::vector<std::string> by_tls{"--address", "tls:a:1", "--tls-certificate", "", "--tls-key", "", "--tls-ca", ""};
    std::vector<std::string> top = by_tls;
    top.insert(top.end(), {"top", "--once"});
    CHECK(Run(top, terminal) == kUsage);
  }
  SECTION("a daemon that goes away ends it, but for a terminal's screen") {
    const Terminal later{.out = out,
                         .err = err,
                         .ask = nullptr,
                         .size = [&] { return size; },
                         .wait =
                             [&](absl::Duration) {
                               if (++waits == 2) node.Fail(absl::UnavailableError("kvistd is stopping"));
                               return waits <= 3;
                             }};
    CHECK(Run({"--socket", socket, "top", "-o", "json"}, later) == kUnavailable);
    node.Fail(absl::OkStatus());
    waits = 0;
    size = Terminal::Size{80, 24};
    CHECK(Run({"--socket", socket, "top"}, later) == kOk);
    CHECK_THAT(out.str(), Contains("kvistd is stopping"));
  }
  CHECK(Run({"top", "--interval", "1ns"}, terminal) == kUsage);
}

}  // namespace
}  // namespace kvist::ctl
