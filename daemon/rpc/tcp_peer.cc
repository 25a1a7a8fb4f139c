#include "daemon/rpc/tcp_peer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace kvist::rpc {
namespace {

constexpr size_t kNetBytes = 8;
constexpr std::array<uint8_t, 12> kIpv4Inside = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

bool IsIpv4(const std::array<uint8_t, 16>& address) {
  return std::equal(kIpv4Inside.begin(), kIpv4Inside.end(), address.begin());
}

std::array<uint8_t, 16> Inside(const in_addr& v4) {
  std::array<uint8_t, 16> address{};
  std::copy(kIpv4Inside.begin(), kIpv4Inside.end(), address.begin());
  std::memcpy(address.data() + kIpv4Inside.size(), &v4, sizeof v4);
  return address;
}

}  // namespace

std::array<uint8_t, 16> TcpPeer::net() const {
  std::array<uint8_t, 16> net = address;
  if (!IsIpv4(address)) std::fill(net.begin() + kNetBytes, net.end(), uint8_t{0});
  return net;
}

std::string NetText(const std::array<uint8_t, 16>& net) {
  char text[INET6_ADDRSTRLEN];
  if (IsIpv4(net)) return ::inet_ntop(AF_INET, net.data() + kIpv4Inside.size(), text, sizeof text);
  return absl::StrCat(::inet_ntop(AF_INET6, net.data(), text, sizeof text), "/64");
}

std::optional<TcpPeer> PeerOf(int socket) {
  sockaddr_storage found{};
  socklen_t size = sizeof found;
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&found), &size) != 0) return std::nullopt;
  TcpPeer peer;
  if (found.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(found);
    peer.address = Inside(v4.sin_addr);
    peer.port = ntohs(v4.sin_port);
    return peer;
  }
  if (found.ss_family != AF_INET6) return std::nullopt;
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(found);
  std::memcpy(peer.address.data(), &v6.sin6_addr, sizeof v6.sin6_addr);
  peer.port = ntohs(v6.sin6_port);
  return peer;
}

std::optional<TcpPeer> PeerNamed(absl::string_view grpc_name) {
  const bool v4 = absl::ConsumePrefix(&grpc_name, "ipv4:");
  if (!v4 && !absl::ConsumePrefix(&grpc_name, "ipv6:")) return std::nullopt;
  const size_t colon = grpc_name.rfind(':');
  if (colon == absl::string_view::npos) return std::nullopt;
  TcpPeer peer;
  uint32_t port = 0;
  if (!absl::SimpleAtoi(grpc_name.substr(colon + 1), &port) || port > 65535) return std::nullopt;
  peer.port = static_cast<uint16_t>(port);
  const std::string decoded = absl::StrReplaceAll(grpc_name.substr(0, colon),
                                                  {{"%5B", "["}, {"%5D", "]"}, {"%5b", "["}, {"%5d", "]"}, {"%25", "%"}});
  absl::string_view host = decoded;
  if (v4) {
    in_addr address{};
    if (::inet_pton(AF_INET, std::string(host).c_str(), &address) != 1) return std::nullopt;
    peer.address = Inside(address);
    return peer;
  }
  absl::ConsumePrefix(&host, "[");
  absl::ConsumeSuffix(&host, "]");
  const std::string without_scope(host.substr(0, host.find('%')));  // fe80::1%eth0
  if (::inet_pton(AF_INET6, without_scope.c_str(), peer.address.data()) != 1) return std::nullopt;
  return peer;
}

}  // namespace kvist::rpc
