// A whole Daemon, in this process.
#include <catch2/catch.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "daemon/wiring.h"
#include "storage/base/clock.h"
#include "storage/pool/memory_limit.h"
#include "tests/support/temp_dir.h"

namespace kvist::daemon {
namespace {

constexpr absl::Duration kLong = absl::Seconds(20);

Options Small(const test::TempDir& dir) {
  Options options;
  options.session.socket = dir / "engine.sock";
  options.admin.socket = dir / "admin.sock";
  options.pool.bytes = MiB(16);
  options.pool.slab_bytes = MiB(2);
  options.pool.lock = false;
  options.ssd.enabled = false;
  options.metrics.listen = "";
  options.tenants = {{"7", "blue"}};
  return options;
}

// What the quotas are, by tenants that have one.
std::map<std::string, uint64_t> Quotas(Daemon& daemon) {
  std::map<std::string, uint64_t> quotas;
  const std::vector<rpc::QuotaStatus> rows = daemon.node().Quotas(MonotonicNow() + kLong).value();
  for (const rpc::QuotaStatus& row : rows) {
    if (row.bytes != Bytes{}) quotas[row.tenant] = row.bytes.value;
  }
  return quotas;
}

TEST_CASE("Daemon::Apply leaves everything as it was when the reactor is held up, also when it comes to it later") {
  const test::TempDir dir;
  Options options = Small(dir);
  const std::unique_ptr<Daemon> daemon = Daemon::Start(options).value();
  options.quotas = {{"blue", MiB(4)}};

  absl::Notification holds, go_on;
  daemon->RunOnReactor([&] {
    holds.Notify();
    go_on.WaitForNotification();
  });
  holds.WaitForNotification();
  const absl::Status late = daemon->Apply(options, MonotonicNow() + absl::Milliseconds(20));
  CHECK(late.code() == absl::StatusCode::kAborted);
  CHECK_THAT(std::string(late.message()), Catch::Contains("nothing of the new configuration is in force"));
  go_on.Notify();
  CHECK(Quotas(*daemon).empty());  // asked behind it on the reactor

  CHECK(daemon->Apply(options, MonotonicNow() + kLong).ok());
  CHECK(Quotas(*daemon) == std::map<std::string, uint64_t>{{"blue", MiB(4).value}});
}

TEST_CASE("Daemon::Start spreads an odd count of slabs over two nodes, and one slab over one of them") {
  const test::TempDir dir;
  Options options = Small(dir);
  // A machine with one node lends it twice.
  const auto pool = [&](Bytes bytes) {
    options.pool.bytes = bytes;
    Parts parts;
    parts.numa_nodes = {0, 0};
    const std::unique_ptr<Daemon> daemon = Daemon::Start(options, std::move(parts)).value();
    const rpc::NodeStatus status = daemon->node().Status(MonotonicNow() + kLong).value();
    return std::pair(status.pool_capacity, status.pool_regions);
  };
  CHECK(pool(MiB(14)) == std::pair(MiB(14), uint32_t{2}));
  CHECK(pool(MiB(2)) == std::pair(MiB(2), uint32_t{1}));

  options.pool.bytes = pool::FindMemoryLimit().bytes + MiB(2);  // each half could be had
  Parts parts;
  parts.numa_nodes = {0, 0};
  CHECK(Daemon::Start(options, std::move(parts)).status().code() == absl::StatusCode::kResourceExhausted);
}

TEST_CASE("Daemon::Start names the key of a CPU that it may not use") {
  const test::TempDir dir;
  Options options = Small(dir);
  options.copy.cpus = {1023};
  CHECK_THAT(std::string(Daemon::Start(options).status().message()), Catch::Contains("copy.cpus"));
  options.copy.cpus.clear();
  options.session.reactor_cpu = 1023;
  CHECK_THAT(std::string(Daemon::Start(options).status().message()), Catch::Contains("session.reactor_cpu"));
}

}  // namespace
}  // namespace kvist::daemon
