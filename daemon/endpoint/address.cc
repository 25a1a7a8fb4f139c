#include "daemon/endpoint/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace kvist::endpoint {
namespace {

constexpr size_t kUnixPathMax = sizeof(sockaddr_un::sun_path) - 1;
constexpr size_t kHostMax = 253;  // of the DNS

bool IsHostName(absl::string_view host) {
  return !host.empty() && host.size() <= kHostMax && host.front() != '-' && host.front() != '.' &&
         std::all_of(host.begin(), host.end(),
                     [](char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-'; });
}

}  // namespace

std::string Address::text() const {
  if (!is_tls()) return absl::StrCat("unix:", socket);
  return host.find(':') == std::string::npos ? absl::StrCat("tls:", host, ":", port)
                                             : absl::StrCat("tls:[", host, "]:", port);
}

std::optional<Address> ParseAddress(absl::string_view text) {
  Address address;
  if (absl::ConsumePrefix(&text, "unix:")) {
    if (!absl::StartsWith(text, "/") || text.size() > kUnixPathMax || text.find('\0') != absl::string_view::npos)
      return std::nullopt;
    address.socket = std::string(text);
    return address;
  }
  if (!absl::ConsumePrefix(&text, "tls:")) return std::nullopt;
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return std::nullopt;
  const absl::string_view port_text = text.substr(colon + 1);
  absl::string_view host = text.substr(0, colon);
  uint32_t port = 0;
  if (!absl::SimpleAtoi(port_text, &port) || absl::StrCat(port) != port_text || port == 0 || port > 65535)
    return std::nullopt;
  in6_addr v6{};
  if (absl::ConsumePrefix(&host, "[") && absl::ConsumeSuffix(&host, "]")) {
    if (::inet_pton(AF_INET6, std::string(host).c_str(), &v6) != 1) return std::nullopt;
  } else if (!IsHostName(host)) {
    return std::nullopt;
  }
  address.host = std::string(host);
  address.port = static_cast<uint16_t>(port);
  return address;
}

}  // namespace kvist::endpoint
