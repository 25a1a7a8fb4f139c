#ifndef KVIST_DAEMON_CTL_TARGET_H_
#define KVIST_DAEMON_CTL_TARGET_H_

#include <string>

#include "daemon/endpoint/address.h"
#include "daemon/endpoint/tls_files.h"

namespace kvist::ctl {

inline constexpr char kNodeProgram[] = "kvistd";
inline constexpr char kControllerProgram[] = "kvist-controller";

// Whom kvistctl speaks to, and by which files if that is by TLS.
struct Target {
  endpoint::Address address = {};
  endpoint::TlsFiles tls = {};
  std::string program = kNodeProgram;  // what it is called in messages

  // As messages name it: the path of a socket, or tls:HOST:PORT.
  std::string text() const { return address.is_tls() ? address.text() : address.socket; }
};

}  // namespace kvist::ctl

#endif  // KVIST_DAEMON_CTL_TARGET_H_
