#ifndef KVIST_STORAGE_BASE_RUNTIME_DIR_H_
#define KVIST_STORAGE_BASE_RUNTIME_DIR_H_

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace kvist {

// Where the daemon of root, or of the system's service, has its sockets.
inline constexpr char kSystemRuntimeDir[] = "/run/kvist";
inline constexpr char kEngineSocketName[] = "engine.sock";
inline constexpr char kAdminSocketName[] = "admin.sock";

// Where a daemon that this user starts has its sockets by default: /run/kvist for root, $XDG_RUNTIME_DIR/kvist for others, and
// /tmp/kvist-UID when that variable is not set to an absolute path. Whoever uses the last one asks IsPrivateDir first: in /tmp
// anybody can make a directory of that name.
inline std::string DefaultRuntimeDir() {
  const uid_t uid = geteuid();
  if (uid == 0) return kSystemRuntimeDir;
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && runtime[0] == '/') return std::string(runtime) + "/kvist";
  return "/tmp/kvist-" + std::to_string(uid);
}

// Whether `path` is a directory (no link) that belongs to this user and is closed to everybody else.
inline bool IsPrivateDir(const std::string& path) {
  struct stat found {};
  return lstat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == geteuid() &&
         (found.st_mode & 0077) == 0;
}

}  // namespace kvist

#endif  // KVIST_STORAGE_BASE_RUNTIME_DIR_H_
