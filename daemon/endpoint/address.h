#ifndef KVIST_DAEMON_ENDPOINT_ADDRESS_H_
#define KVIST_DAEMON_ENDPOINT_ADDRESS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace kvist::endpoint {

// Where a gRPC service of kvist is: on a unix socket of this machine, or at a TCP port, by TLS and by no other way.
struct Address {
  std::string socket = {};  // path; empty: by TLS
  std::string host =
      {};  // a name of the DNS, or an IP address (IPv6 without brackets): what the server's certificate has to be of
  uint16_t port = 0;

  bool is_tls() const { return socket.empty(); }
  std::string text() const;  // as ParseAddress reads it
  bool operator==(const Address&) const = default;
};

inline constexpr char kAddressAllowed[] =
    "unix:PATH, the absolute path of a socket, or tls:HOST:PORT, a name or an IP address ([IPv6]) and a port";

// "unix:/run/kvist/admin.sock", "tls:node-b.example:9416", "tls:[fd00::7]:9416"; nothing when `text` is none of them.
std::optional<Address> ParseAddress(absl::string_view text);

}  // namespace kvist::endpoint

#endif  // KVIST_DAEMON_ENDPOINT_ADDRESS_H_
