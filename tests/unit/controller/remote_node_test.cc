#include "daemon/controller/remote_node.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstddef>
#include <memory>

#include "absl/synchronization/notification.h"
#include "storage/base/clock.h"
#include "storage/base/unique_fd.h"
#include "tests/support/certificates.h"

namespace kvist::controller {
namespace {

TEST_CASE("A node by TLS has seconds to say who it is, and isn't hung up on before") {
  test::CertificateAuthority ca;
  ca.Sign("controller", "");
  // Takes connections, and is too busy to answer.
  const UniqueFd busy(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  REQUIRE(::bind(busy.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0);
  REQUIRE(::listen(busy.get(), 64) == 0);
  REQUIRE(::getsockname(busy.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);

  const std::unique_ptr<NodeApi> node =
      MakeRemoteNode({.host = "127.0.0.1", .port = ntohs(address.sin_port)},
                     {ca.file("controller.crt"), ca.file("controller.key"), ca.file("ca.crt")});
  absl::Notification answered;
  absl::Status status;
  node->Status({}, MonotonicNow() + absl::Seconds(2), [&](const absl::StatusOr<node::v1::StatusReply>& reply) {
    status = reply.status();
    answered.Notify();
  });
  REQUIRE(answered.WaitForNotificationWithTimeout(absl::Seconds(20)));
  CHECK(absl::IsDeadlineExceeded(status));
  // Its connection is still open: it has said its part, and waits. (Others may have come to this port by mistake.)
  const UniqueFd connection(::accept4(busy.get(), nullptr, nullptr, SOCK_CLOEXEC));
  REQUIRE(connection);
  std::array<std::byte, 65536> hello;
  CHECK(::recv(connection.get(), hello.data(), hello.size(), MSG_DONTWAIT) > 0);
  CHECK(::recv(connection.get(), hello.data(), hello.size(), MSG_DONTWAIT) == -1);
}

}  // namespace
}  // namespace kvist::controller
