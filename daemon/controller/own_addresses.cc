#include "daemon/controller/own_addresses.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstring>
#include <fstream>
#include <sstream>

#include "storage/base/unique_fd.h"

namespace kvist::controller {
namespace {

struct Addresses {
  std::vector<std::string> elsewhere, loopback;
  void Add(const std::string& text, bool is_loopback) { (is_loopback ? loopback : elsewhere).push_back(text); }
};

void AddIpv4(Addresses* addresses) {
  constexpr size_t kInterfacesMax = 256;
  const UniqueFd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd) return;
  std::vector<ifreq> interfaces(kInterfacesMax);
  ifconf asked{};
  asked.ifc_len = static_cast<int>(interfaces.size() * sizeof(ifreq));
  asked.ifc_req = interfaces.data();
  if (ioctl(fd.get(), SIOCGIFCONF, &asked) != 0) return;
  interfaces.resize(static_cast<size_t>(asked.ifc_len) / sizeof(ifreq));
  for (ifreq& interface : interfaces) {
    sockaddr_in address{};
    std::memcpy(&address, &interface.ifr_addr, sizeof address);
    if (address.sin_family != AF_INET || ioctl(fd.get(), SIOCGIFFLAGS, &interface) != 0) continue;
    if ((interface.ifr_flags & IFF_UP) == 0) continue;
    char text[INET_ADDRSTRLEN];
    if (inet_ntop(AF_INET, &address.sin_addr, text, sizeof text) == nullptr) continue;
    addresses->Add(text, (interface.ifr_flags & IFF_LOOPBACK) != 0);
  }
}

// Lines of: 32 hex digits, the interface's number, length of the prefix, scope and flags in hex, its name.
void AddIpv6(Addresses* addresses) {
  constexpr unsigned kScopeGlobal = 0x00, kScopeLoopback = 0x10;  // IPV6_ADDR_ANY, IPV6_ADDR_LOOPBACK of Linux's net/ipv6.h
  std::ifstream table("/proc/net/if_inet6");
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    std::string digits;
    unsigned interface = 0, prefix = 0, scope = 0;
    if (!(words >> digits >> std::hex >> interface >> prefix >> scope) || digits.size() != 32) continue;
    if (scope != kScopeGlobal && scope != kScopeLoopback) continue;
    std::string with_colons;
    for (size_t i = 0; i < digits.size(); ++i) {
      if (i > 0 && i % 4 == 0) with_colons += ':';
      with_colons += digits[i];
    }
    in6_addr address{};
    char text[INET6_ADDRSTRLEN];
    if (inet_pton(AF_INET6, with_colons.c_str(), &address) != 1) continue;
    if (inet_ntop(AF_INET6, &address, text, sizeof text) == nullptr) continue;
    addresses->Add(text, scope == kScopeLoopback);
  }
}

}  // namespace

std::vector<std::string> OwnAddresses() {
  Addresses addresses;
  AddIpv4(&addresses);
  AddIpv6(&addresses);
  return addresses.elsewhere.empty() ? addresses.loopback : addresses.elsewhere;
}

}  // namespace kvist::controller
