#include "daemon/session/peer.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <string>

#include "tests/support/child_process.h"
#include "tests/support/temp_dir.h"

using kvist::UniqueFd;
using kvist::test::ChildProcess;

TEST_CASE("IdentifyPeer names the process at the other end, and its pidfd tells of its end") {
  const kvist::test::TempDir dir;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, (dir / "socket").c_str());
  const auto* const at = reinterpret_cast<const sockaddr*>(&address);
  const UniqueFd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  REQUIRE(::bind(listener.get(), at, sizeof address) == 0);
  REQUIRE(::listen(listener.get(), 1) == 0);
  ChildProcess child([&] {
    const UniqueFd theirs(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (::connect(theirs.get(), at, sizeof address) != 0) return 1;
    while (true) ::pause();
  });
  pollfd connected{listener.get(), POLLIN, 0};
  REQUIRE(::poll(&connected, 1, 10'000) == 1);
  const UniqueFd ours(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const auto peer = kvist::session::IdentifyPeer(ours.get());
  REQUIRE(peer.ok());
  CHECK(peer->pid == child.pid());
  CHECK(peer->uid == ::getuid());
  pollfd ended{peer->pidfd.get(), POLLIN, 0};
  CHECK(::poll(&ended, 1, 0) == 0);
  child.Kill();
  CHECK(::poll(&ended, 1, 10'000) == 1);
}

TEST_CASE("TenantOf keeps users apart unless the configuration joins them") {
  const std::map<std::string, std::string> tenants{{"1000", "shared"}, {"1001", "shared"}};
  CHECK(kvist::session::TenantOf(1000, tenants) == kvist::session::TenantOf(1001, tenants));
  CHECK(kvist::session::TenantOf(1, tenants) != kvist::session::TenantOf(2, tenants));
  CHECK(kvist::session::TenantOf(1, tenants) == "uid:1");
}
