#ifndef KVIST_TESTS_SUPPORT_NOTIFY_SOCKET_H_
#define KVIST_TESTS_SUPPORT_NOTIFY_SOCKET_H_

#include <string>

namespace kvist::test {

// A service manager's end of sd_notify: a datagram socket, in $NOTIFY_SOCKET for as long as this object lives.
class NotifySocket {
 public:
  explicit NotifySocket(const std::string& path);
  ~NotifySocket();
  NotifySocket(const NotifySocket&) = delete;
  NotifySocket& operator=(const NotifySocket&) = delete;

  // The next message, or "" when none comes within the time.
  std::string Receive(int timeout_ms) const;

 private:
  std::string path_;
  int fd_;
};

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_NOTIFY_SOCKET_H_
