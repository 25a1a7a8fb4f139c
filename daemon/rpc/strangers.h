#ifndef KVIST_DAEMON_RPC_STRANGERS_H_
#define KVIST_DAEMON_RPC_STRANGERS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "daemon/rpc/tcp_peer.h"

namespace kvist::rpc {

// The connections of those who haven't made a call yet that they may make, and which of them goes first when there are too many: of the net
// (TcpPeer::net) that has most, the one that has waited longest. So a flood from one machine sends its own away, and somebody from elsewhere is left
// the time to say who he is.
//
// Numbers are the caller's, in the order in which they came. Threads: one at a time.
class Strangers {
 public:
  void Came(uint64_t number, const TcpPeer& peer);
  // It has said who it is, or has gone; or was no stranger.
  void Forget(uint64_t number);

  size_t size() const { return nets_.size(); }
  // Nothing when there are none.
  std::optional<uint64_t> FirstToGo() const;

 private:
  using Net = std::array<uint8_t, 16>;
  std::map<uint64_t, Net> nets_;  // by number
  std::map<Net, size_t> of_net_;  // how many; never 0
};

}  // namespace kvist::rpc

#endif  // KVIST_DAEMON_RPC_STRANGERS_H_
