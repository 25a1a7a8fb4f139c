#include "daemon/rpc/socket_address.h"

#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"

namespace kvist::rpc {

std::string SocketAddress(const std::string& path) {
  std::string address = "unix:";
  for (const char c : path) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c)) || std::strchr("/._-~", c) != nullptr) {
      address += c;
    } else {
      absl::StrAppendFormat(&address, "%%%02X", static_cast<unsigned char>(c));
    }
  }
  return address;
}

}  // namespace kvist::rpc
