#ifndef KVIST_TESTS_SUPPORT_FREE_PORT_H_
#define KVIST_TESTS_SUPPORT_FREE_PORT_H_

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

namespace kvist::test {

// A TCP port of 127.0.0.1 that nobody has, nor is given by the system while this process lives: it stays bound here, by a socket that doesn't
// listen. Who listens on it sets SO_REUSEADDR, as servers do.
inline uint16_t FreePort() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto must = [](int result) {
    if (result != 0) std::abort();
  };
  const int yes = 1;
  must(::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  must(::bind(fd, reinterpret_cast<const sockaddr*>(&address), size));
  must(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size));
  return ntohs(address.sin_port);
}

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_FREE_PORT_H_
