#ifndef KVIST_DAEMON_LISTEN_ADDRESS_H_
#define KVIST_DAEMON_LISTEN_ADDRESS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace kvist::daemon {

// Where a TCP server listens: an IP address, not a name, because a name can mean another address tomorrow.
struct ListenAddress {
  std::string host;  // as inet_ntop writes it
  uint16_t port = 0;
  bool loopback = false;  // nobody outside this machine reaches it
};

// "127.0.0.1:9415" or "[::1]:9415", with a port from 1 on; nothing when `text` is no such address.
std::optional<ListenAddress> ParseListenAddress(absl::string_view text);

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_LISTEN_ADDRESS_H_
