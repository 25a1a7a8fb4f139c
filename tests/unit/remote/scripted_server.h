#ifndef KVIST_TESTS_UNIT_REMOTE_SCRIPTED_SERVER_H_
#define KVIST_TESTS_UNIT_REMOTE_SCRIPTED_SERVER_H_

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

namespace kvist::remote {

inline int ConnectTo(const std::string& path) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return fd;
  ::close(fd);
  return -1;
}

// A server on a unix socket that does with each connection what the test says, on a thread of its own. When it ends, the connections are
// shut down, and the work has to end by that.
class ScriptedServer {
 public:
  explicit ScriptedServer(std::function<void(int connection)> work) : work_(std::move(work)) {
    listener_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, (folder_ / "socket").c_str(), sizeof address.sun_path - 1);
    REQUIRE(::bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
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
  std::string address() const { return "unix:" + (folder_ / "socket"); }

 private:
  const std::function<void(int)> work_;
  test::TempDir folder_;
  int listener_ = -1;
  std::mutex mutex_;
  std::vector<std::pair<int, std::thread>> connections_;
  std::thread acceptor_;
};

}  // namespace kvist::remote

#endif  // KVIST_TESTS_UNIT_REMOTE_SCRIPTED_SERVER_H_
