#ifndef KVIST_DAEMON_CONTROLLER_OPTIONS_H_
#define KVIST_DAEMON_CONTROLLER_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/options.h"

namespace kvist::daemon {

// Everything a kvist-controller can be told, as TOML:
//
//   [controller]
//   socket = "/run/kvist/controller.sock"   # where clients connect. Default: in the directory of this user's kvistd
//   socket_mode = "0660"                    # whoever may write to it may clear the cache of every node
//   socket_group = ""                       # "": the process's own
//   [log]
//   level = "info"                          # and format, as of kvistd
//   [nodes]
//   node-a = "unix:/run/kvist/admin.sock"   # a node's name, and the admin socket of its kvistd
struct ControllerOptions {
  struct Node {
    std::string name;
    std::string socket;  // path
    bool operator==(const Node&) const = default;
  };
  std::string socket;
  uint32_t socket_mode = 0660;
  std::string socket_group;
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
