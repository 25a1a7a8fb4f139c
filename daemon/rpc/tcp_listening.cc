#include "daemon/rpc/tcp_listening.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "storage/base/status.h"

namespace kvist::rpc {
namespace {

// After which a client that acknowledges nothing is gone, as gRPC has it on its own listeners.
constexpr int kUnansweredMillis = 20'000;

struct Where {
  sockaddr_storage address = {};
  socklen_t size = 0;
  std::string host;
};

std::optional<Where> Parse(const std::string& text) {
  const size_t colon = text.rfind(':');
  uint32_t port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(text.substr(colon + 1), &port) || port > 65535) return std::nullopt;
  Where where;
  where.host = text.substr(0, colon);
  auto& v4 = reinterpret_cast<sockaddr_in&>(where.address);
  if (::inet_pton(AF_INET, where.host.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(static_cast<uint16_t>(port));
    where.size = sizeof v4;
    return where;
  }
  if (where.host.size() < 2 || where.host.front() != '[' || where.host.back() != ']') return std::nullopt;
  where.host = where.host.substr(1, where.host.size() - 2);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(where.address);
  if (::inet_pton(AF_INET6, where.host.c_str(), &v6.sin6_addr) != 1) return std::nullopt;
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(static_cast<uint16_t>(port));
  where.size = sizeof v6;
  return where;
}

absl::Status Refused(const std::string& setting, const std::string& address, const std::string& host, int error) {
  const std::string what = absl::StrCat(setting, ": can't listen at ", address, ": ");
  switch (error) {
    case EADDRINUSE: return absl::UnavailableError(absl::StrCat(what, "another process has the port; `ss -ltnp` names it"));
    case EADDRNOTAVAIL:
      return absl::UnavailableError(
          absl::StrCat(what, "this machine hasn't the address ", host, "; `ip address` lists those that it has"));
    case EAFNOSUPPORT:
      return absl::UnavailableError(
          absl::StrCat(what, "this process may make no socket of ", host.find(':') == std::string::npos ? "IPv4" : "IPv6",
                       ": RestrictAddressFamilies= of its unit leaves that out, or this machine hasn't it"));
    case EACCES:
      return absl::PermissionDeniedError(absl::StrCat(
          what, "this user may not take the port; those below 1024 take CAP_NET_BIND_SERVICE: name a higher one"));
    default: return ErrnoStatus(absl::StrCat(setting, ": listening at ", address), error);
  }
}

}  // namespace

absl::StatusOr<UniqueFd> ListenByTcp(const std::string& address, const std::string& setting) {
  const std::optional<Where> where = Parse(address);
  if (!where.has_value())
    return absl::InvalidArgumentError(absl::StrCat(setting, ": ", address, " is no IP address and port"));
  UniqueFd fd(::socket(where->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return Refused(setting, address, where->host, errno);
  const auto set = [&](int level, int option, int value) {
    return ::setsockopt(fd.get(), level, option, &value, sizeof value) == 0;
  };
  // A port whose last connections still die away is free. SO_REUSEPORT would let another process of this user take a part of the clients.
  bool good = set(SOL_SOCKET, SO_REUSEADDR, 1);
  // Not as the machine's net.ipv6.bindv6only has it.
  if (where->address.ss_family == AF_INET6) good = good && set(IPPROTO_IPV6, IPV6_V6ONLY, 0);
  // Its connections have these from it.
  good = good && set(IPPROTO_TCP, TCP_NODELAY, 1) && set(IPPROTO_TCP, TCP_USER_TIMEOUT, kUnansweredMillis);
  if (!good || ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&where->address), where->size) != 0 ||
      ::listen(fd.get(), SOMAXCONN) != 0)
    return Refused(setting, address, where->host, errno);
  return fd;
}

}  // namespace kvist::rpc
