#include "tests/support/memory_cgroup.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

namespace kvist::test {
namespace {

bool Write(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text << std::flush;
  return file.good();
}

// This process's own cgroup: of the hierarchy that limits memory, which is mounted at the usual place.
struct Own {
  int version = 0;
  std::string path;
};
Own FindOwn() {
  std::ifstream file("/proc/self/cgroup");
  Own own;
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string number, controllers, path;
    std::getline(fields, number, ':');
    std::getline(fields, controllers, ':');
    std::getline(fields, path);
    if (path == "/") path.clear();
    if (("," + controllers + ",").find(",memory,") != std::string::npos) return {1, "/sys/fs/cgroup/memory" + path};
    if (controllers.empty()) own = {2, "/sys/fs/cgroup" + path};
  }
  return own;
}

}  // namespace

MemoryCgroup::MemoryCgroup(uint64_t limit_bytes) {
  const Own own = FindOwn();
  version_ = own.version;
  if (version_ == 0) {
    why_ = "/proc/self/cgroup names no cgroup";
    return;
  }
  const std::string path = own.path + "/kvist-test-" + std::to_string(::getpid());
  if (::mkdir(path.c_str(), 0755) != 0) {
    why_ = "no cgroup can be made: mkdir " + path + ": " + std::strerror(errno);
    return;
  }
  path_ = path;
  if (!Write(limit_file(), std::to_string(limit_bytes))) {
    why_ = "its memory can't be limited: " + limit_file() + ": " + std::strerror(errno) + " (is the memory controller on?)";
    return;
  }
  if (version_ == 2) Write(path_ + "/memory.swap.max", "0");
}

MemoryCgroup::~MemoryCgroup() {
  // The last process has been reaped, but the kernel may yet be taking it apart.
  for (int i = 0; !path_.empty() && ::rmdir(path_.c_str()) != 0 && errno == EBUSY && i < 1000; ++i) ::usleep(1000);
}

std::string MemoryCgroup::limit_file() const { return path_ + (version_ == 1 ? "/memory.limit_in_bytes" : "/memory.max"); }

bool MemoryCgroup::SetHigh(uint64_t bytes) const {
  return version_ == 2 && Write(path_ + "/memory.high", std::to_string(bytes));
}

bool MemoryCgroup::EnterSelf() const { return Write(path_ + "/cgroup.procs", std::to_string(::getpid())); }

uint64_t MemoryCgroup::Kills() const {
  std::ifstream file(path_ + (version_ == 1 ? "/memory.oom_control" : "/memory.events"));
  for (std::string word; file >> word;) {
    uint64_t count = 0;
    if (word == "oom_kill" && file >> count) return count;
  }
  return 0;
}

}  // namespace kvist::test
