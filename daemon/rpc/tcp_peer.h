#ifndef KVIST_DAEMON_RPC_TCP_PEER_H_
#define KVIST_DAEMON_RPC_TCP_PEER_H_

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace kvist::rpc {

// The other end of a TCP connection: an address and a port.
struct TcpPeer {
  std::array<uint8_t, 16> address = {};  // of IPv6; IPv4's stands in it as ::ffff:a.b.c.d
  uint16_t port = 0;

  // What one machine can choose addresses from at will: the address itself, and of IPv6 its first 64 bits, the rest 0.
  std::array<uint8_t, 16> net() const;
  auto operator<=>(const TcpPeer&) const = default;
};

// A net, as one writes it: "10.0.0.7", "fd00:0:0:1::/64".
std::string NetText(const std::array<uint8_t, 16>& net);

// Nothing when the other end has gone already, or the socket is none of TCP.
std::optional<TcpPeer> PeerOf(int socket);

// From what gRPC calls a client: "ipv4:10.0.0.7:41234", "ipv6:%5Bfd00::7%5D:41234"; nothing when it is neither.
std::optional<TcpPeer> PeerNamed(absl::string_view grpc_name);

}  // namespace kvist::rpc

#endif  // KVIST_DAEMON_RPC_TCP_PEER_H_
