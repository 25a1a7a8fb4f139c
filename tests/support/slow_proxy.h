#ifndef KVIST_TESTS_SUPPORT_SLOW_PROXY_H_
#define KVIST_TESTS_SUPPORT_SLOW_PROXY_H_

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>

#include "tests/support/scripted_server.h"

namespace kvist::test {

// Between clients and a server on a unix socket: passes bytes on both ways, later or slower than they come, as it is told at any time.
class SlowProxy {
 public:
  // `server`: the path of its socket.
  explicit SlowProxy(std::string server) : upstream_(std::move(server)), proxy_([this](int client) { Pass(client); }) {}

  const std::string& address() const { return proxy_.address(); }
  std::string path() const { return proxy_.path(); }

  // Of what comes from now on.
  void Delay(std::chrono::milliseconds delay) { delay_ms_ = delay.count(); }
  // Each connection, each way; 0: as they come.
  void BytesPerSecond(uint64_t rate) { rate_ = rate; }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kHeldMost = 1 << 18;  // of one way of a connection; beyond that its sender waits

  struct Way {
    int from, to;
    std::deque<std::pair<Clock::time_point, std::string>> held = {};
    size_t bytes = 0;
    Clock::time_point next = {};  // when the rate lets more pass
  };

  // false: it has ended.
  bool Take(Way* way) const {
    std::string taken(64 << 10, '\0');
    const ssize_t n = ::recv(way->from, taken.data(), taken.size(), 0);
    if (n <= 0) return false;
    taken.resize(static_cast<size_t>(n));
    way->bytes += taken.size();
    way->held.emplace_back(Clock::now() + std::chrono::milliseconds(delay_ms_), std::move(taken));
    return true;
  }
  bool Give(Way* way) const {
    for (auto now = Clock::now(); !way->held.empty() && way->held.front().first <= now && way->next <= now;
         now = Clock::now()) {
      std::string& first = way->held.front().second;
      const uint64_t rate = rate_;
      // A twentieth of a second's, one byte at least.
      const size_t size = rate == 0 ? first.size() : std::min<size_t>(first.size(), std::max<uint64_t>(rate / 20, 1));
      if (::send(way->to, first.data(), size, MSG_NOSIGNAL) != static_cast<ssize_t>(size)) return false;
      if (rate != 0) way->next = now + std::chrono::microseconds(1'000'000 * size / rate);
      way->bytes -= size;
      first.erase(0, size);
      if (first.empty()) way->held.pop_front();
    }
    return true;
  }
  void Pass(int client) const {
    const int server = ConnectTo(upstream_);
    if (server < 0) return;
    std::array<Way, 2> ways{{{client, server}, {server, client}}};
    bool open = true;
    while (open) {
      std::array<pollfd, 2> ready{};
      for (size_t i = 0; i < 2; ++i)
        ready[i] = {ways[i].from, static_cast<int16_t>(ways[i].bytes < kHeldMost ? POLLIN : POLLRDHUP), 0};
      const bool holds = !ways[0].held.empty() || !ways[1].held.empty();
      ::poll(ready.data(), ready.size(), holds ? 5 : 1000);
      for (size_t i = 0; i < 2 && open; ++i) {
        if ((ready[i].revents & POLLIN) != 0) open = Take(&ways[i]);
        if ((ready[i].revents & (POLLERR | POLLHUP | POLLRDHUP | POLLNVAL)) != 0 && (ready[i].revents & POLLIN) == 0)
          open = false;
      }
      for (size_t i = 0; i < 2 && open; ++i) open = Give(&ways[i]);
    }
    ::close(server);
  }

  const std::string upstream_;
  std::atomic<int64_t> delay_ms_{0};
  std::atomic<uint64_t> rate_{0};
  ScriptedServer proxy_;  // last: its end ends the connections' threads
};

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_SLOW_PROXY_H_
