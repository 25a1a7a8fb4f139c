#include "storage/base/shm/frame_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>
#include <catch2/catch.hpp>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/any_packet.h"

namespace shm = kvist::shm;
using kvist::UniqueFd;
using kvist::test::SendAny;

namespace {

struct Pair {
  Pair() {
    int fds[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) == 0);
    a = kvist::UniqueFd(fds[0]);
    b = kvist::UniqueFd(fds[1]);
  }
  kvist::UniqueFd a, b;
};

size_t OpenFds() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

}  // namespace

TEST_CASE("Frames keep their boundaries and carry descriptors") {
  Pair pair;
  REQUIRE(shm::SendFrame(pair.a.get(), "first").ok());
  const int fds[] = {pair.a.get(), pair.b.get()};
  REQUIRE(shm::SendFrame(pair.a.get(), "second", fds).ok());
  CHECK(shm::ReceiveFrame(pair.b.get())->bytes == "first");
  {
    const auto second = shm::ReceiveFrame(pair.b.get());
    CHECK(second->bytes == "second");
    CHECK(second->fds.size() == 2);
  }
  CHECK(shm::ReceiveFrame(pair.b.get()).status().code() == absl::StatusCode::kNotFound);
  pair.a.reset();
  CHECK(shm::ReceiveFrame(pair.b.get()).status().code() == absl::StatusCode::kUnavailable);
  CHECK(shm::SendFrame(pair.b.get(), "x").code() == absl::StatusCode::kUnavailable);
}

TEST_CASE("A frame's descriptors are handed over when it is refused, also an empty one's") {
  Pair pair;
  for (const size_t size : {size_t{0}, shm::kFrameBytesMax + 1}) {
    SendAny(pair.a.get(), std::string(size, 'x'), pair.a.get());
    std::vector<UniqueFd> refused;
    CHECK_FALSE(shm::ReceiveFrame(pair.b.get(), &refused).ok());
    CHECK(refused.size() == 1);
  }
}

TEST_CASE("EndWithoutDescriptors says whether some lie in a connection, behind whatever") {
  const size_t behind = GENERATE(size_t{0}, size_t{1}, size_t{50});
  const size_t size = GENERATE(size_t{0}, size_t{1}, size_t{5000});
  const bool some = GENERATE(false, true), peer_gone = GENERATE(false, true);
  Pair pair;
  for (size_t i = 0; i < behind; ++i) SendAny(pair.a.get(), std::string(i % 3, 'x'), -1);
  const UniqueFd sent(::dup(2));
  if (some) SendAny(pair.a.get(), std::string(size, 'x'), sent.get());
  if (peer_gone) pair.a.reset();
  const size_t before = OpenFds();
  CHECK(shm::EndWithoutDescriptors(pair.b.get()) == !some);
  CHECK(OpenFds() == before);
  if (!peer_gone) {
    CHECK(::send(pair.a.get(), "x", 1, MSG_NOSIGNAL) < 0);
    char byte;
    CHECK(::recv(pair.a.get(), &byte, 1, 0) == 0);  // it is told at once
  }
}

TEST_CASE("A frame that is too long is refused, and its descriptors are closed") {
  Pair pair;
  const size_t before = OpenFds();
  const std::string longest(shm::kFrameBytesMax, 'x');
  REQUIRE(shm::SendFrame(pair.a.get(), longest).ok());
  CHECK(shm::ReceiveFrame(pair.b.get())->bytes == longest);
  const std::string too_long(shm::kFrameBytesMax + 1, 'x');
  REQUIRE(::send(pair.a.get(), too_long.data(), too_long.size(), 0) == static_cast<ssize_t>(too_long.size()));
  CHECK(shm::ReceiveFrame(pair.b.get()).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(OpenFds() == before);
}
