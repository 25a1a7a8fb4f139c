#ifndef KVIST_TESTS_SUPPORT_SLOW_CALLERS_H_
#define KVIST_TESTS_SUPPORT_SLOW_CALLERS_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "storage/base/unique_fd.h"

namespace kvist::test {

// A socket that is connected, or soon will be, to a port of 127.0.0.1. `flags`: of socket().
inline UniqueFd ConnectTo(uint16_t port, int flags = 0) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = ::htons(port);
  address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0));
  ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  return socket;
}

// A thread that holds as many connections to a port of 127.0.0.1 as it is told, sends a byte of `says` on each once a second, and makes
// each again that ends or has said all.
class SlowCallers {
 public:
  SlowCallers(uint16_t port, size_t count, std::string says) : port_(port), says_(std::move(says)), callers_(count) {
    for (Caller& caller : callers_) Call(&caller);
    thread_ = std::thread([this] { Loop(); });
  }
  ~SlowCallers() {
    ended_ = true;
    thread_.join();
  }
  SlowCallers(const SlowCallers&) = delete;
  SlowCallers& operator=(const SlowCallers&) = delete;

  // How many were made again so far, because they ended.
  size_t made_again() const { return made_again_; }

 private:
  struct Caller {
    UniqueFd socket;
    size_t said = 0;
  };

  void Call(Caller* caller) const {
    caller->socket = ConnectTo(port_, SOCK_NONBLOCK);  // else a port that doesn't accept could keep this thread
    caller->said = 0;
  }

  void Loop() {
    for (int tenths = 0; !ended_; ++tenths) {
      for (Caller& caller : callers_) {
        char c;
        const ssize_t n = ::recv(caller.socket.get(), &c, 1, MSG_DONTWAIT);
        const bool ends = n == 0 || (n < 0 && errno != EAGAIN);
        if (ends) ++made_again_;
        if (ends || (!says_.empty() && caller.said == says_.size())) Call(&caller);
        if (tenths % 10 == 0 && !says_.empty() && ::send(caller.socket.get(), &says_[caller.said], 1, MSG_NOSIGNAL) == 1)
          ++caller.said;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the slowness that it is for
    }
  }

  const uint16_t port_;
  const std::string says_;
  std::vector<Caller> callers_;
  std::atomic<size_t> made_again_{0};
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_SLOW_CALLERS_H_
