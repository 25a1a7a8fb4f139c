// Row 30 of the fault matrix: clients that shake hands in the wrong order, or while kvistd has nothing left for them. Each is told why or hung
// up on; kvistd and an honest engine beside it don't notice.
#include <catch2/catch.hpp>

#include <cstdio>
#include <memory>
#include <vector>

#include "tests/support/bystander.h"
#include "tests/support/ctl.h"
#include "tests/support/daemon_process.h"
#include "tests/support/raw_client.h"
#include "tests/support/temp_dir.h"

using kvist::test::Bystander;
using kvist::test::DaemonProcess;
using kvist::test::FdsFallTo;
using kvist::test::kProvoked;
using kvist::test::RawClient;
using kvist::test::TempDir;

TEST_CASE("Row 30: a second Hello while the first is being answered ends that session only") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), kProvoked);
  Bystander bystander(daemon);
  const size_t fds = daemon.OpenFds();
  constexpr int kRounds = 300;
  for (int round = 0; round < kRounds; ++round) {
    RawClient client(daemon);
    client.Send(RawClient::GoodHello());
    client.Send(RawClient::GoodHello());
    CHECK(client.HungUp());
    REQUIRE_FALSE(daemon.Ended().has_value());
  }
  CHECK(FdsFallTo(daemon, fds));
  std::printf("row 30: %d sessions that said Hello twice ended, %zu descriptors left open\n", kRounds,
              daemon.OpenFds() - fds);
}
