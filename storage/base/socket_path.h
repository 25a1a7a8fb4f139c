#ifndef KVIST_STORAGE_BASE_SOCKET_PATH_H_
#define KVIST_STORAGE_BASE_SOCKET_PATH_H_

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/base/unique_fd.h"

namespace kvist {

// The file of a listening unix socket: who may make it, who may connect, and who removes it.
//
//   FreeSocketPath -> bind -> OpenSocketTo -> listen -> the lock goes -> ... -> RemoveSocketFile
//
// Whoever looks whether a socket is alive, and replaces a dead one, must be alone meanwhile: between its bind and its listen a live one looks
// dead. So both are done under a lock of the socket's directory, which all kvistds take.

// Makes `path` free for a new socket of `type` (SOCK_STREAM, ..): one that a dead process has left is removed. Hold what it returns until the
// new socket listens, at most for a moment: it keeps other kvistds from this directory. (Whoever holds that lock for two seconds is passed over.)
// Errors: AlreadyExists    somebody lives there, as far as can be told: only one that refuses connections is dead; or it is no socket.
//         InvalidArgument  the system allows no path of that length.  Others: its directory is missing or closed to us.
// Each begins with `key`, the setting that names the path.
absl::StatusOr<UniqueFd> FreeSocketPath(const std::string& path, const std::string& key, int type);

// Gives a fresh socket its group ("" leaves it) and then its mode. `key`: as above; errors name key_group and key_mode.
// Errors: InvalidArgument  no such group.  PermissionDenied  it may not be given to that group.
absl::Status OpenSocketTo(const std::string& path, const std::string& group, uint32_t mode, const std::string& key);

// Tells one file from its successor under the same name.
struct SocketFile {
  dev_t device = 0;
  ino_t number = 0;
  bool operator==(const SocketFile&) const = default;
};
SocketFile SocketFileAt(const std::string& path);  // {}: there is none

// Removes it, unless another one is there by now.
void RemoveSocketFile(const std::string& path, SocketFile file);

}  // namespace kvist

#endif  // KVIST_STORAGE_BASE_SOCKET_PATH_H_
