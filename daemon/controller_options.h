#ifndef KVIST_DAEMON_CONTROLLER_OPTIONS_H_
#define KVIST_DAEMON_CONTROLLER_OPTIONS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/endpoint/address.h"
#include "daemon/endpoint/tls_files.h"
#include "daemon/options.h"

namespace kvist::daemon {

// Everything a kvist-controller can be told, as TOML:
//
//   [controller]
//   socket = "/run/kvist/controller.sock"   # where clients connect. Default: in the directory of this user's kvistd
//   socket_mode = "0660"                    # whoever may write to it may clear the cache of every node
//   socket_group = ""                       # "": the process's own
//   listen = "10.0.0.7:9417"                # the same by TLS over TCP, for clients that [roles] names. Default "": not at all
//   [tls]                                   # for that, and for nodes that are reached so
//   certificate_file = "/etc/kvistd/controller.crt"   # key_file and ca_file, as of kvistd
//   [roles]
//   "dns:router.example" = "operate"        # as of kvistd
//   [log]
//   level = "info"                          # and format, as of kvistd
//   [nodes]
//   node-a = "unix:/run/kvist/admin.sock"   # a node's name, and the admin socket of its kvistd
//   node-b = "tls:node-b.example:9416"      # or its admin.listen, whose certificate has to be of that host
struct ControllerOptions {
  struct Node {
    std::string name;
    endpoint::Address address;
    bool operator==(const Node&) const = default;
  };
  std::string socket;
  uint32_t socket_mode = 0660;
  std::string socket_group;
  std::string listen;
  endpoint::TlsFiles tls;
  std::map<std::string, std::string> roles;
  Options::Log log;
  std::vector<Node> nodes;  // by name
};

// Reads a file ("" for none), and nodes, NAME=ADDRESS each, that are added to it or replace those of the same name.
// Errors: InvalidArgument  every one, a line each, with its place, what was found and what is allowed.  Others: the file can't be read.
absl::StatusOr<ControllerOptions> LoadControllerOptions(const std::string& file, const std::vector<std::string>& nodes);

// The same for a text at hand; `name` stands for the file in messages.
absl::StatusOr<ControllerOptions> ParseControllerOptions(absl::string_view text, const std::string& name,
                                                         const std::vector<std::string>& nodes);

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_CONTROLLER_OPTIONS_H_
