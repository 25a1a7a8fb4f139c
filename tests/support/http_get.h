#ifndef KVIST_TESTS_SUPPORT_HTTP_GET_H_
#define KVIST_TESTS_SUPPORT_HTTP_GET_H_

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <string>

namespace kvist::test {

// What 127.0.0.1 answers there, head and all; empty: nobody does.
inline std::string HttpGet(uint16_t port, const std::string& path) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  const std::string request = "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
  std::string answer;
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      ::send(fd, request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size())) {
    char part[4096];
    for (ssize_t n = 0; (n = ::read(fd, part, sizeof part)) > 0;) answer.append(part, static_cast<size_t>(n));
  }
  ::close(fd);
  return answer;
}

// What a kvistd's /metrics there says of a series, named with its labels: "kvist_operations". NaN: it has none of that name.
inline double Metric(uint16_t port, const std::string& series) {
  const std::string page = HttpGet(port, "/metrics");
  const size_t at = page.find("\n" + series + " ");
  return at == std::string::npos ? std::nan("") : std::stod(page.substr(at + series.size() + 2));
}

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_HTTP_GET_H_
