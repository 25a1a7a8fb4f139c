#include "daemon/config_machine.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "daemon/config_keys.h"
#include "storage/base/byte_text.h"
#include "storage/base/usable_cpus.h"

namespace kvist::daemon {
namespace {

bool IsDirectory(const std::string& path) {
  struct stat found {};
  return stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
}

std::string DirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == 0 ? "/" : path.substr(0, slash);
}

// Why a file can't be read by this process; "" when it can.
std::string WhyUnreadable(const std::string& path) {
  if (IsDirectory(path)) return "it is a directory";
  return faccessat(AT_FDCWD, path.c_str(), R_OK, AT_EACCESS) == 0 ? "" : std::strerror(errno);
}

class Lacks {
 public:
  explicit Lacks(const Machine& machine) : machine_(machine) {}

  void AskCpu(absl::string_view section, absl::string_view name, int cpu) {
    if (std::binary_search(machine_.cpus.begin(), machine_.cpus.end(), cpu)) return;
    Add(section, name, absl::StrCat("CPU ", cpu),
        absl::StrCat("CPUs that this process may use here, ", PrintRanges(machine_.cpus)));
  }

  void AskMemory(absl::string_view section, absl::string_view name, Bytes bytes) {
    if (bytes <= machine_.memory.bytes) return;
    Add(section, name, PrintBytes(bytes),
        absl::StrCat("at most ", PrintBytes(machine_.memory.bytes), ", by ", machine_.memory.source));
  }

  void AskGroup(absl::string_view section, absl::string_view name, const std::string& group) {
    if (group.empty() || getgrnam(group.c_str()) != nullptr) return;
    Add(section, name, absl::StrCat(Quoted(group), ", which no group is called here"),
        "a group of this machine that kvistd is a member of, or \"\" for the daemon's own");
  }

  // kvistd makes this one, and all that lack above it, before any socket's.
  void WillBeMade(std::string dir) {
    for (; dir.size() > 1 && dir.find('/') != std::string::npos; dir = DirectoryOf(dir)) made_.insert(dir);
  }

  // The last part of a socket's directory is made (socket_dir.h), in the order in which they are asked for.
  void AskDirectoryOf(absl::string_view section, absl::string_view name, const std::string& socket) {
    if (socket.empty()) return;
    const std::string dir = DirectoryOf(socket), above = DirectoryOf(dir);
    struct stat found {};
    const bool is_there = stat(dir.c_str(), &found) == 0;
    if (is_there ? S_ISDIR(found.st_mode) : IsDirectory(above) || made_.contains(above) || made_.contains(dir)) {
      made_.insert(dir);
      return;
    }
    Add(section, name,
        is_there ? absl::StrCat(Quoted(socket), ", where ", dir, " is no directory")
                 : absl::StrCat(Quoted(socket), ", where there is neither ", dir, " nor ", above, " to make it in"),
        "a path in a directory that is there, or that lacks only its last part");
  }

  void AskFile(absl::string_view section, absl::string_view name, const std::string& path) {
    if (path.empty()) return;
    const std::string why = WhyUnreadable(path);
    if (!why.empty()) Add(section, name, absl::StrCat(Quoted(path), ": ", why), "a file that kvistd can read");
  }

  std::vector<ConfigProblem> Take() && { return std::move(lacks_); }

 private:
  void Add(absl::string_view section, absl::string_view name, absl::string_view found, absl::string_view allowed) {
    lacks_.push_back({section, name, absl::StrCat(found, "; allowed: ", allowed)});
  }

  const Machine& machine_;
  std::set<std::string> made_;  // directories that will be there
  std::vector<ConfigProblem> lacks_;
};

}  // namespace

Machine ThisMachine() { return {UsableCpus(), pool::FindMemoryLimit()}; }

std::vector<ConfigProblem> FindLacks(const Options& options, const Machine& machine) {
  Lacks lacks(machine);
  lacks.WillBeMade(options.daemon.state_dir);
  lacks.AskDirectoryOf("session", "socket", options.session.socket);
  lacks.AskGroup("session", "socket_group", options.session.socket_group);
  if (options.session.reactor_cpu >= 0) lacks.AskCpu("session", "reactor_cpu", options.session.reactor_cpu);
  lacks.AskDirectoryOf("admin", "socket", options.admin.socket);
  lacks.AskGroup("admin", "socket_group", options.admin.socket_group);
  if (!options.admin.listen.empty()) {
    lacks.AskFile("tls", "certificate_file", options.tls.certificate_file);
    lacks.AskFile("tls", "key_file", options.tls.key_file);
    lacks.AskFile("tls", "ca_file", options.tls.ca_file);
  }
  lacks.AskMemory("pool", "bytes", options.pool.bytes);
  if (!options.remote.store.empty()) {
    lacks.AskFile("remote", "secret_file", options.remote.secret_file);
    lacks.AskFile("remote", "credentials_file", options.remote.credentials_file);
    const bool by_tls =
        !absl::StartsWith(options.remote.store, "file://") && !absl::StartsWith(options.remote.store, "redis://");
    if (by_tls) lacks.AskFile("remote", "ca_file", options.remote.ca_file);
  }
  for (const int cpu : options.copy.cpus) lacks.AskCpu("copy", "cpus", cpu);
  return std::move(lacks).Take();
}

}  // namespace kvist::daemon
