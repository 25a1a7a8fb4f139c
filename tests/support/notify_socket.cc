#include "tests/support/notify_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace kvist::test {

NotifySocket::NotifySocket(const std::string& path) : path_(path), fd_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (fd_ < 0 || path.size() >= sizeof address.sun_path) std::abort();
  std::memcpy(address.sun_path, path.data(), path.size());
  if (::bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) std::abort();
  ::setenv("NOTIFY_SOCKET", path.c_str(), 1);
}

NotifySocket::~NotifySocket() {
  ::unsetenv("NOTIFY_SOCKET");
  ::close(fd_);
  ::unlink(path_.c_str());
}

std::string NotifySocket::Receive(int timeout_ms) const {
  pollfd readable{fd_, POLLIN, 0};
  if (::poll(&readable, 1, timeout_ms) <= 0) return "";
  char message[4096];
  const ssize_t size = ::recv(fd_, message, sizeof message, 0);
  return size < 0 ? "" : std::string(message, static_cast<size_t>(size));
}

}  // namespace kvist::test
