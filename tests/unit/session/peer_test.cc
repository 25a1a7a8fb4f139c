#include "daemon/session/peer.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <catch2/catch.hpp>

using kvist::UniqueFd;

TEST_CASE("IdentifyPeer names the process at the other end, and its pidfd tells of its end") {
  int fds[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) == 0);
  const UniqueFd ours(fds[0]), theirs(fds[1]);
  auto peer = kvist::session::IdentifyPeer(ours.get());  // a socketpair's peer is its maker
  REQUIRE(peer.ok());
  CHECK(peer->pid == ::getpid());
  CHECK(peer->uid == ::getuid());
  pollfd alive{peer->pidfd.get(), POLLIN, 0};
  CHECK(::poll(&alive, 1, 0) == 0);
}

TEST_CASE("TenantOf keeps users apart unless the configuration joins them") {
  const std::map<std::string, std::string> tenants{{"1000", "shared"}, {"1001", "shared"}};
  CHECK(kvist::session::TenantOf(1000, tenants) == kvist::session::TenantOf(1001, tenants));
  CHECK(kvist::session::TenantOf(1, tenants) != kvist::session::TenantOf(2, tenants));
  CHECK(kvist::session::TenantOf(1, tenants) == "uid:1");
}
