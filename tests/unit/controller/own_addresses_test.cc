#include "daemon/controller/own_addresses.h"

#include <arpa/inet.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace kvist::controller {
namespace {

TEST_CASE("OwnAddresses are addresses, none of them loopback when there are others") {
  const std::vector<std::string> addresses = OwnAddresses();
  REQUIRE_FALSE(addresses.empty());
  const auto is_loopback = [](const std::string& ip) { return ip.rfind("127.", 0) == 0 || ip == "::1"; };
  CHECK((std::all_of(addresses.begin(), addresses.end(), is_loopback) ||
         std::none_of(addresses.begin(), addresses.end(), is_loopback)));
  for (const std::string& ip : addresses) {
    INFO(ip);
    in6_addr parsed{};
    CHECK((inet_pton(AF_INET, ip.c_str(), &parsed) == 1 || inet_pton(AF_INET6, ip.c_str(), &parsed) == 1));
  }
}

}  // namespace
}  // namespace kvist::controller
