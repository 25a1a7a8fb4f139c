#include "tests/support/redis_server.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace kvist::test {

RedisServer::RedisServer(std::vector<std::string> settings) : settings_(std::move(settings)) { Start(); }

void RedisServer::Start() {
  std::vector<std::string> words{"redis-server", "--port", "0", "--unixsocket", socket(), "--dir",
                                 folder_.path(), "--save", "",  "--appendonly", "no"};
  words.insert(words.end(), settings_.begin(), settings_.end());
  ::unlink(socket().c_str());
  const std::string log = folder_ / "redis.log";
  std::vector<char*> argv;  // before the fork: a thread of the test may have a lock of malloc's
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  process_ = std::make_unique<ChildProcess>([&] {
    const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    ::dup2(out, STDOUT_FILENO);
    ::dup2(out, STDERR_FILENO);
    ::execvp("redis-server", argv.data());
    return 127;
  });
  for (int i = 0; i < 1000; ++i) {
    if (!Command({"PING"}).empty()) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  std::fprintf(stderr, "redis-server doesn't answer at %s; deploy/install_dependencies.sh test installs it\n",
               socket().c_str());
  std::abort();
}

std::string RedisServer::Command(const std::vector<std::string>& words) const {
  std::string text = "*" + std::to_string(words.size()) + "\r\n";
  for (const std::string& word : words) text += "$" + std::to_string(word.size()) + "\r\n" + word + "\r\n";
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, socket().c_str(), sizeof address.sun_path - 1);
  std::string reply;
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
    for (size_t sent = 0; sent < text.size();) {
      const ssize_t n = ::send(fd, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) break;
      sent += static_cast<size_t>(n);
    }
    char buffer[4096];
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n > 0) reply.assign(buffer, static_cast<size_t>(n));
  }
  ::close(fd);
  return reply;
}

}  // namespace kvist::test
