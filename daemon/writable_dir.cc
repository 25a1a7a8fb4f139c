#include "daemon/writable_dir.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace kvist::daemon {
namespace {

// Where the kernel makes the files; modes say there to root that it may.
bool IsOfTheKernel(const std::string& directory) {
  struct statfs found {};
  if (statfs(directory.c_str(), &found) != 0) return false;
  return found.f_type == PROC_SUPER_MAGIC || found.f_type == SYSFS_MAGIC || found.f_type == CGROUP_SUPER_MAGIC ||
         found.f_type == CGROUP2_SUPER_MAGIC;
}

}  // namespace

std::string DirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == 0 || slash == std::string::npos ? "/" : path.substr(0, slash);
}

std::string DeepestThere(std::string path) {
  struct stat found {};
  while (path != "/" && lstat(path.c_str(), &found) != 0) path = DirectoryOf(path);
  return path;
}

std::string WhyNoDirectory(const std::string& path) {
  struct stat found {};
  if (lstat(path.c_str(), &found) != 0 && errno != ENOENT && errno != ENOTDIR) return std::strerror(errno);
  const std::string there = DeepestThere(path);
  if (stat(there.c_str(), &found) != 0) return absl::StrCat(there, ": ", std::strerror(errno));  // a link to nothing
  if (!S_ISDIR(found.st_mode)) return absl::StrCat(there, " is no directory");
  if (faccessat(AT_FDCWD, there.c_str(), W_OK | X_OK, AT_EACCESS) != 0)
    return absl::StrCat("this user can't write to ", there, ": ", std::strerror(errno));
  if (IsOfTheKernel(there)) return absl::StrCat(there, " is the kernel's, and takes no files");
  return "";
}

}  // namespace kvist::daemon
