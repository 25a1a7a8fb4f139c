#ifndef KVIST_TESTS_SUPPORT_SCRIPTED_SERVER_H_
#define KVIST_TESTS_SUPPORT_SCRIPTED_SERVER_H_

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/temp_dir.h"

namespace kvist::test {

inline int ConnectTo(const std::string& path) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return fd;
  ::close(fd);
  return -1;
}

// A server on a unix socket, or a port of loopback, that does with each connection what the test says, on a thread of its own. When it ends, the connections are
// shut down, and the work has to end by that.
class ScriptedServer {
 public:
  explicit ScriptedServer(std::function<void(int connection)> work, bool tcp = false) : work_(std::move(work)) {
    listener_ = ::socket(tcp ? AF_INET : AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    tcp ? BindPort() : BindPath();
    REQUIRE(::listen(listener_, 16) == 0);
    acceptor_ = std::thread([this] {
      for (int fd = ::accept(listener_, nullptr, nullptr); fd >= 0; fd = ::accept(listener_, nullptr, nullptr)) {
        const std::lock_guard lock(mutex_);
        connections_.emplace_back(fd, std::thread([this, fd] {
                                    work_(fd);
                                    ::shutdown(fd, SHUT_RDWR);
                                  }));
      }
    });
  }
  ~ScriptedServer() {
    ::shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    for (auto& [fd, thread] : connections_) {
      ::shutdown(fd, SHUT_RDWR);
      thread.join();
      ::close(fd);
    }
    ::close(listener_);
  }
  const std::string& address() const { return address_; }
  std::string path() const { return folder_ / "socket"; }  // of a unix socket

 private:
  void BindPath() {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, (folder_ / "socket").c_str(), sizeof address.sun_path - 1);
    REQUIRE(::bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    address_ = "unix:" + (folder_ / "socket");
  }
  void BindPort() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    REQUIRE(::bind(listener_, reinterpret_cast<const sockaddr*>(&address), length) == 0);
    REQUIRE(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length) == 0);
    address_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  }

  const std::function<void(int)> work_;
  TempDir folder_;
  std::string address_;
  int listener_ = -1;
  std::mutex mutex_;
  std::vector<std::pair<int, std::thread>> connections_;
  std::thread acceptor_;
};

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_SCRIPTED_SERVER_H_
