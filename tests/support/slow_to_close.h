#ifndef KVIST_TESTS_SUPPORT_SLOW_TO_CLOSE_H_
#define KVIST_TESTS_SUPPORT_SLOW_TO_CLOSE_H_

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>

#include "storage/base/unique_fd.h"

namespace kvist::test {

// A socket whose last close takes `seconds`: it has data that nobody reads, and was told to linger. In tests only, whose requirements it
// makes. The peer must live as long.
struct SlowToClose {
  explicit SlowToClose(int seconds) : listening(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    REQUIRE(::bind(listening.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0);
    REQUIRE(::listen(listening.get(), 1) == 0);
    REQUIRE(::getsockname(listening.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
    socket = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    const linger told{1, seconds};
    REQUIRE(::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &told, sizeof told) == 0);
    static const char data[1 << 16] = {};
    while (::send(socket.get(), data, sizeof data, MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {}
  }

  UniqueFd listening, socket;
};

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_SLOW_TO_CLOSE_H_
