#include "daemon/rpc/admin_socket.h"

#include <grp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "storage/base/status.h"
#include "storage/base/unique_fd.h"

namespace kvist::rpc {
namespace {

absl::Status CheckDirectory(const std::string& path, const std::string& section) {
  const size_t slash = path.rfind('/');
  const std::string dir = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  if (access(dir.c_str(), W_OK | X_OK) == 0) return absl::OkStatus();
  return ErrnoStatus(absl::StrCat(section, ".socket: can't make a socket in ", dir), errno);
}

}  // namespace

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

absl::Status FreeSocketPath(const std::string& path, const std::string& section) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return absl::InvalidArgumentError(absl::StrCat(section, ".socket: ", path, " has ", path.size(),
                                                   " bytes; allowed: 1 to ", sizeof address.sun_path - 1));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  KVIST_RETURN_IF_ERROR(CheckDirectory(path, section));
  struct stat found {};
  if (lstat(path.c_str(), &found) != 0)
    return errno == ENOENT ? absl::OkStatus() : ErrnoStatus(absl::StrCat(section, ".socket: ", path), errno);
  if (!S_ISSOCK(found.st_mode)) {
    return absl::AlreadyExistsError(
        absl::StrCat(section, ".socket: ", path, " is there and is no socket: remove it, or name another path"));
  }
  const UniqueFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe) return ErrnoStatus("can't make a socket", errno);
  // Only "refused" says that nobody is behind it; a full backlog or another kind of socket are signs of life.
  if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 || errno != ECONNREFUSED) {
    return absl::AlreadyExistsError(
        absl::StrCat(section, ".socket: another process answers at ", path, ": stop it, or give this one another path"));
  }
  if (unlink(path.c_str()) != 0 && errno != ENOENT)
    return ErrnoStatus(absl::StrCat("can't remove the stale socket ", path), errno);
  return absl::OkStatus();
}

absl::Status OpenSocketTo(const std::string& path, const std::string& group, uint32_t mode, const std::string& section) {
  if (!group.empty()) {
    const struct group* entry = getgrnam(group.c_str());
    if (entry == nullptr)
      return absl::InvalidArgumentError(absl::StrCat(section, ".socket_group: this machine has no group ", group));
    if (chown(path.c_str(), static_cast<uid_t>(-1), entry->gr_gid) != 0) {
      return ErrnoStatus(absl::StrCat(section, ".socket_group: can't give ", path, " to group ", group), errno);
    }
  }
  if (chmod(path.c_str(), static_cast<mode_t>(mode)) != 0)
    return ErrnoStatus(absl::StrCat("can't set the mode of ", path), errno);
  return absl::OkStatus();
}

}  // namespace kvist::rpc
