// Row 30 of the fault matrix: clients that shake hands in the wrong order, or while kvistd has nothing left for them. Each is told why or hung
// up on; kvistd and an honest engine beside it don't notice.
#include <catch2/catch.hpp>

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/bystander.h"
#include "tests/support/ctl.h"
#include "tests/support/daemon_process.h"
#include "tests/support/raw_client.h"
#include "tests/support/sanitizers.h"
#include "tests/support/temp_dir.h"

namespace session = kvist::session::v1;
using kvist::test::Bystander;
using kvist::test::DaemonProcess;
using kvist::test::FdsFallTo;
using kvist::test::kProvoked;
using kvist::test::RawClient;
using kvist::test::TempDir;

namespace {

// The most resident memory that the process ever had, in KiB.
uint64_t PeakKiB(const DaemonProcess& daemon) {
  std::ifstream status("/proc/" + std::to_string(daemon.pid()) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoull(line.substr(6));
  }
  return 0;
}

}  // namespace

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

TEST_CASE("Row 30: whoever shakes hands while kvistd runs out of descriptors is told so") {
  if (kvist::test::kAddressSanitizer) {
    WARN("skipped: UndefinedBehaviorSanitizer needs descriptors itself");
    return;
  }
  TempDir dir;
  DaemonProcess daemon(dir.path(), kProvoked);
  const size_t fds = daemon.OpenFds();
  uint32_t served = 0, refused = 0, turned_away = 0;
  // By turns the last descriptor there is for the socket, what watches its process, its memory, each of its two doorbells, and none is missing.
  for (rlim_t left = 0; left <= 12; ++left) {
    const rlimit few{fds + left, 1024};
    REQUIRE(::prlimit(daemon.pid(), RLIMIT_NOFILE, &few, nullptr) == 0);
    INFO(left << " descriptors left");
    {
      RawClient client(daemon);
      client.Send(RawClient::GoodHello());
      const auto answer = client.Receive();  // waits 10 s for it
      served += answer != nullptr && answer->has_welcome();
      refused += answer != nullptr && answer->has_refused();
      turned_away += answer == nullptr;
    }
    REQUIRE(FdsFallTo(daemon, fds));
  }
  std::printf("row 30: of 13 handshakes with 0 to 12 descriptors left %u were served, %u refused, %u hung up on\n", served,
              refused, turned_away);
  CHECK(served > 0);
  CHECK(refused > 0);
}

TEST_CASE("Row 30: probe pages of 1 GiB take no memory of kvistd's") {
  if (kvist::test::kAddressSanitizer) {
    WARN("skipped: AddressSanitizer keeps freed memory for a while");
    return;
  }
  TempDir dir;
  DaemonProcess daemon(dir.path(), kProvoked);
  Bystander bystander(daemon);
  constexpr uint64_t kPage = uint64_t{1} << 30;
  RawClient client(daemon);
  const kvist::UniqueFd memfd(::memfd_create("huge", MFD_CLOEXEC));  // has holes, and no pages
  REQUIRE(::ftruncate(memfd.get(), static_cast<off_t>(2 * kPage)) == 0);
  session::ClientFrame frame = RawClient::GoodHello();
  session::Hello& hello = *frame.mutable_hello();
  hello.set_probed(false);
  hello.mutable_space()->set_chunk_tokens(16);
  hello.mutable_space()->mutable_groups(0)->set_layers(1);
  hello.mutable_space()->mutable_groups(0)->set_segment_bytes(kPage);
  hello.mutable_memory()->mutable_layers()->RemoveLast();
  hello.mutable_memory()->mutable_groups(0)->set_pages(2);
  hello.mutable_memory()->mutable_groups(0)->set_page_stride(kPage);
  client.SendBytes(frame.SerializeAsString(), {memfd.get()});
  const auto probe = client.Receive();
  REQUIRE(probe != nullptr);
  INFO(probe->refused().message());
  REQUIRE(probe->has_probe());
  const uint64_t before = PeakKiB(daemon);
  session::ClientFrame written;
  written.mutable_probe_written();
  client.SendBytes(written.SerializeAsString(), {});
  const auto answer = client.Receive();
  REQUIRE(answer != nullptr);
  CHECK(answer->refused().message().find("isn't where it was described") != std::string::npos);
  const uint64_t after = PeakKiB(daemon);
  std::printf("row 30: probe pages of 1 GiB refused, most resident memory %lu -> %lu KiB\n", before, after);
  CHECK(after < before + 32768);
}
