#ifndef KVIST_DAEMON_RPC_TCP_DOOR_H_
#define KVIST_DAEMON_RPC_TCP_DOOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/rpc/tcp_peer.h"
#include "storage/base/unique_fd.h"

namespace kvist::rpc {

// Takes the connections that come to a listening socket, and gives each to whoever serves it, gRPC, which owns it then. gRPC's own listeners stop for
// good when the process has run out of descriptors (1.51); this one waits until there are some again.
//
// Bounds: so many connections at once, of which so many are strangers': of those who aren't Known. To make room a
//   stranger is sent away, the one that Strangers says; when all are known, the newcomer. The last `descriptors_left` descriptors of the process
//   are left to others. A connection takes two: its own, and one by which the door sees that it ended, and ends it.
// Says: at most a line a minute of each kind.
// Lifecycle: Create -> Open takes connections -> Close, or the destructor, takes no more; those that are there go on. Once each.
// Threads: one of its own between Open and Close, on which `take` and `warn` are called. Known and count from any.
class TcpDoor {
 public:
  struct Limits {
    uint32_t connections = 1024;
    uint32_t strangers = 512;
    uint32_t descriptors_left = 64;
    // By RLIMIT_NOFILE as it is now: of few descriptors a part only.
    static Limits OfThisProcess();
  };
  struct Options {
    UniqueFd listening;  // doesn't block
    Limits limits;
    std::function<void(UniqueFd)> take;  // the socket doesn't block
    std::function<void(const std::string&)> warn;
  };
  struct Count {
    size_t connections = 0;
    size_t strangers = 0;
  };

  // Errors: those of epoll and eventfd.
  static absl::StatusOr<std::unique_ptr<TcpDoor>> Create(Options options);
  ~TcpDoor();
  void Open();
  void Close();
  TcpDoor(const TcpDoor&) = delete;
  TcpDoor& operator=(const TcpDoor&) = delete;

  // It has shown who it is. Nothing happens when its connection isn't there any more.
  void Known(const TcpPeer& peer);
  Count count() const;

 private:
  struct State;
  explicit TcpDoor(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kvist::rpc

#endif  // KVIST_DAEMON_RPC_TCP_DOOR_H_
