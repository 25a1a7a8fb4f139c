#ifndef KVIST_DAEMON_SOCKET_DIR_H_
#define KVIST_DAEMON_SOCKET_DIR_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace kvist::daemon {

// Whether sockets in `dir` are safe from other users' tricks: /tmp/kvist-UID, the default of last resort, must be a private
// directory when it is there. Other directories are the operator's choice.
// Errors: FailedPrecondition  it isn't; names the keys to set.
absl::Status CheckSocketDir(const std::string& dir);

// Makes the directory of `socket` when it isn't there: only its last part; open to all for root's daemon (the modes of the sockets
// decide who gets in), private for others. Then checks it as above. `key` is the setting that names the socket, for errors.
absl::Status MakeSocketDir(absl::string_view key, const std::string& socket);

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_SOCKET_DIR_H_
