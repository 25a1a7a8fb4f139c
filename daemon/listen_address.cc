#include "daemon/listen_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace kvist::daemon {

std::optional<ListenAddress> ParseListenAddress(absl::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return std::nullopt;
  const absl::string_view port_text = text.substr(colon + 1);
  uint32_t port = 0;
  // As decimal without sign or leading zeros, the only spelling.
  if (!absl::SimpleAtoi(port_text, &port) || absl::StrCat(port) != port_text || port == 0 || port > 65535)
    return std::nullopt;
  absl::string_view host = text.substr(0, colon);
  ListenAddress address;
  address.port = static_cast<uint16_t>(port);
  in_addr v4{};
  if (::inet_pton(AF_INET, std::string(host).c_str(), &v4) == 1) {
    char written[INET_ADDRSTRLEN];
    address.host = ::inet_ntop(AF_INET, &v4, written, sizeof written);
    address.loopback = ntohl(v4.s_addr) >> 24 == 127;
    return address;
  }
  if (host.size() < 2 || host.front() != '[' || host.back() != ']') return std::nullopt;
  host = host.substr(1, host.size() - 2);
  in6_addr v6{};
  if (::inet_pton(AF_INET6, std::string(host).c_str(), &v6) != 1) return std::nullopt;
  char written[INET6_ADDRSTRLEN];
  address.host = ::inet_ntop(AF_INET6, &v6, written, sizeof written);
  address.loopback = IN6_IS_ADDR_LOOPBACK(&v6);
  return address;
}

}  // namespace kvist::daemon
