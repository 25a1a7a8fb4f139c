#ifndef KVIST_DAEMON_CONTROLLER_OWN_ADDRESSES_H_
#define KVIST_DAEMON_CONTROLLER_OWN_ADDRESSES_H_

#include <string>
#include <vector>

namespace kvist::controller {

// The IP addresses of this machine's interfaces that are up, IPv4 first, without those that mean nothing elsewhere: loopback ones, unless there
// are no others, and link-local ones of IPv6.
// Asks through an IPv4 socket and /proc/net: kvistd's service has no netlink.
std::vector<std::string> OwnAddresses();

}  // namespace kvist::controller

#endif  // KVIST_DAEMON_CONTROLLER_OWN_ADDRESSES_H_
