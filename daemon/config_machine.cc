#include "daemon/config_machine.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "daemon/config_keys.h"
#include "daemon/endpoint/tls_files.h"
#include "daemon/listen_address.h"
#include "daemon/state_dir.h"
#include "daemon/writable_dir.h"
#include "storage/base/byte_text.h"
#include "storage/base/unique_fd.h"
#include "storage/base/usable_cpus.h"

namespace kvist::daemon {
namespace {

bool IsDirectory(const std::string& path) {
  struct stat found {};
  return stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
}

// Why a file can't be read by this process; "" when it can.
std::string WhyUnreadable(const std::string& path) {
  if (IsDirectory(path)) return "it is a directory";
  return faccessat(AT_FDCWD, path.c_str(), R_OK, AT_EACCESS) == 0 ? "" : std::strerror(errno);
}

// Whether this process can give a file of its own to a group: one that it is in, or any (CAP_CHOWN).
bool CanGiveTo(gid_t group) {
  if (group == getegid()) return true;
  std::vector<gid_t> groups(static_cast<size_t>(std::max(0, getgroups(0, nullptr))));
  const int count = getgroups(static_cast<int>(groups.size()), groups.data());
  if (count > 0 && std::find(groups.begin(), groups.begin() + count, group) != groups.begin() + count) return true;
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct has[_LINUX_CAPABILITY_U32S_3]{};
  return syscall(SYS_capget, &header, has) == 0 && (has[CAP_CHOWN / 32].effective & (1U << CAP_CHOWN % 32)) != 0;
}

// Why no socket of this machine can have the address; "" when one can. A port that is taken may be free by then.
std::string WhyNoAddress(const std::string& host) {
  sockaddr_in6 v6{.sin6_family = AF_INET6, .sin6_port = 0, .sin6_flowinfo = 0, .sin6_addr = {}, .sin6_scope_id = 0};
  sockaddr_in v4{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {}, .sin_zero = {}};
  const bool is_v4 = inet_pton(AF_INET, host.c_str(), &v4.sin_addr) == 1;
  if (!is_v4 && inet_pton(AF_INET6, host.c_str(), &v6.sin6_addr) != 1) return "";
  const UniqueFd fd(socket(is_v4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return errno == EAFNOSUPPORT ? std::strerror(errno) : "";
  const auto* address = is_v4 ? reinterpret_cast<const sockaddr*>(&v4) : reinterpret_cast<const sockaddr*>(&v6);
  const bool bound = bind(fd.get(), address, is_v4 ? sizeof v4 : sizeof v6) == 0;
  return !bound && errno == EADDRNOTAVAIL ? "this machine hasn't that address" : "";
}

// Paths that name the same file; links in directories count.
bool IsSameFile(const std::string& a, const std::string& b) {
  std::error_code error;
  const auto first = std::filesystem::weakly_canonical(a, error), second = std::filesystem::weakly_canonical(b, error);
  return a == b || (!error && first == second);
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
    if (group.empty()) return;
    const struct group* entry = getgrnam(group.c_str());
    if (entry != nullptr && CanGiveTo(entry->gr_gid)) return;
    Add(section, name,
        absl::StrCat(Quoted(group),
                     entry == nullptr ? ", which no group is called here" : ", of which this process is no member"),
        "a group of this machine that kvistd is a member of, or \"\" for the daemon's own");
  }

  void AskAddress(absl::string_view section, absl::string_view name, const std::string& listen) {
    if (!machine_.asks_all)
      return;  // a network may be late: then the start fails in a way that is tried again, or does without
    const std::optional<ListenAddress> address = ParseListenAddress(listen);
    const std::string why = address.has_value() ? WhyNoAddress(address->host) : "";
    if (!why.empty())
      Add(section, name, absl::StrCat(Quoted(listen), ": ", why),
          "an address that `ip address` lists, or one for all of them");
  }

  // kvistd makes it before any socket's directory.
  void AskStateDir(const std::string& dir) {
    if (dir.empty()) return;
    WillBeMade(dir);
    const absl::Status status = CheckStateDir(dir);
    if (!status.ok()) AddSaid("daemon", "state_dir", status);
  }

  // The last part of a socket's directory is made (socket_dir.h), in the order in which they are asked for.
  void AskSocket(absl::string_view section, absl::string_view name, const std::string& socket) {
    if (socket.empty()) return;
    const std::string dir = DirectoryOf(socket), above = DirectoryOf(dir);
    struct stat found {};
    if (lstat(socket.c_str(), &found) == 0 && !S_ISSOCK(found.st_mode))
      return Add(section, name, absl::StrCat(Quoted(socket), ", which is there and is no socket"),
                 "a path where nothing is, or a socket");
    const bool is_there = stat(dir.c_str(), &found) == 0;
    if (is_there ? S_ISDIR(found.st_mode) : IsDirectory(above) || made_.contains(above) || made_.contains(dir)) {
      const std::string why = made_.contains(dir) || made_.contains(above) ? "" : WhyNoDirectory(dir);
      if (!why.empty())
        Add(section, name, absl::StrCat(Quoted(socket), ": ", why), "a path in a directory that kvistd can write to");
      made_.insert(dir);
      return;
    }
    Add(section, name,
        is_there ? absl::StrCat(Quoted(socket), ", where ", dir, " is no directory")
                 : absl::StrCat(Quoted(socket), ", where there is neither ", dir, " nor ", above, " to make it in"),
        "a path in a directory that is there, or that lacks only its last part");
  }

  void AskOtherSocket(const std::string& admin, const std::string& session) {
    if (admin.empty() || session.empty() || admin == session || !IsSameFile(admin, session)) return;
    Add("admin", "socket", absl::StrCat(Quoted(admin), ", which is session.socket, ", Quoted(session)),
        "another path than session.socket", {"session.socket"});
  }

  void AskFile(absl::string_view section, absl::string_view name, const std::string& path) {
    if (path.empty()) return;
    const std::string why = WhyUnreadable(path);
    if (!why.empty()) Add(section, name, absl::StrCat(Quoted(path), ": ", why), "a file that kvistd can read");
  }

  // Once each of them can be read.
  void AskTls(const endpoint::TlsFiles& files) {
    const bool unread = std::any_of(lacks_.begin(), lacks_.end(), [](const auto& lack) { return lack.section == "tls"; });
    if (unread || !files.complete()) return;
    const absl::StatusOr<endpoint::TlsTexts> texts = endpoint::ReadTlsFiles(files);
    if (!texts.ok()) {
      for (const absl::string_view name : {"certificate_file", "key_file", "ca_file"}) {
        if (absl::StartsWith(texts.status().message(), absl::StrCat("tls.", name, ":")))
          return AddSaid("tls", name, texts.status());
      }
      return AddSaid("tls", "certificate_file", texts.status());
    }
    if (machine_.asks_all && endpoint::HasRunOut(texts->certificate))
      Add("tls", "certificate_file", absl::StrCat(Quoted(files.certificate), ", whose time is over"),
          "a certificate in time");
  }

  // Their directories are made, but nothing above them; one in the state directory is asked for there.
  void AskDisks(const Options& options) {
    if (!options.ssd.enabled || options.ssd.path.empty()) return;
    struct Disk {
      Bytes total, wanted{};
      std::vector<std::string> directories;
    };
    std::map<dev_t, Disk> disks;
    const std::vector<std::string> directories = absl::StrSplit(options.ssd.path, ':');
    for (const std::string& directory : directories) {
      const std::string& state_dir = options.daemon.state_dir;
      const bool in_state_dir = !state_dir.empty() && absl::StartsWith(directory, state_dir + "/");
      const std::string above = DirectoryOf(directory), there = DeepestThere(directory);
      std::string why = in_state_dir ? "" : WhyNoDirectory(directory);
      if (why.empty() && !in_state_dir && !IsDirectory(directory) && !IsDirectory(above))
        why = absl::StrCat("there is no directory ", above, " to make it in");
      if (!why.empty())
        Add("ssd", "path", absl::StrCat(Quoted(directory), ": ", why), "directories that kvistd can write to");
      struct stat found {};
      struct statvfs room {};
      if (stat(there.c_str(), &found) != 0 || statvfs(there.c_str(), &room) != 0) continue;
      Disk& disk = disks[found.st_dev];
      disk.total = Bytes{uint64_t{room.f_blocks} * room.f_frsize};
      disk.wanted = disk.wanted + options.ssd.capacity / directories.size();
      disk.directories.push_back(directory);
    }
    for (const auto& [device, disk] : disks) {
      if (disk.wanted <= disk.total) continue;
      Add("ssd", "capacity",
          absl::StrCat(PrintBytes(options.ssd.capacity), ", of which ", PrintBytes(disk.wanted), " in ssd.path ",
                       Quoted(absl::StrJoin(disk.directories, ":"))),
          absl::StrCat("less than what that file system has in all, ", PrintBytes(disk.total)), {"ssd.path"});
    }
  }

  std::vector<ConfigProblem> Take() && { return std::move(lacks_); }

 private:
  void Add(absl::string_view section, absl::string_view name, absl::string_view found, absl::string_view allowed,
           std::vector<absl::string_view> others = {}) {
    lacks_.push_back({section, name, absl::StrCat(found, "; allowed: ", allowed), std::move(others)});
  }
  // In the words of an error that may begin with the setting's name.
  void AddSaid(absl::string_view section, absl::string_view name, const absl::Status& error) {
    const std::string begin = absl::StrCat(section, ".", name, ": ");
    lacks_.push_back({section, name, std::string(absl::StripPrefix(error.message(), begin))});
  }
  void WillBeMade(std::string dir) {
    for (; dir.size() > 1 && dir.find('/') != std::string::npos; dir = DirectoryOf(dir)) {
      if (!IsDirectory(dir)) made_.insert(dir);
    }
  }

  const Machine& machine_;
  std::set<std::string> made_;  // directories that will be there
  std::vector<ConfigProblem> lacks_;
};

}  // namespace

Machine ThisMachine() { return {.cpus = UsableCpus(), .memory = pool::FindMemoryLimit()}; }

std::vector<ConfigProblem> FindLacks(const Options& options, const Machine& machine) {
  Lacks lacks(machine);
  lacks.AskStateDir(options.daemon.state_dir);
  lacks.AskSocket("session", "socket", options.session.socket);
  lacks.AskGroup("session", "socket_group", options.session.socket_group);
  if (options.session.reactor_cpu >= 0) lacks.AskCpu("session", "reactor_cpu", options.session.reactor_cpu);
  lacks.AskSocket("admin", "socket", options.admin.socket);
  lacks.AskOtherSocket(options.admin.socket, options.session.socket);
  lacks.AskGroup("admin", "socket_group", options.admin.socket_group);
  if (!options.admin.listen.empty()) {
    lacks.AskFile("tls", "certificate_file", options.tls.certificate_file);
    lacks.AskFile("tls", "key_file", options.tls.key_file);
    lacks.AskFile("tls", "ca_file", options.tls.ca_file);
    lacks.AskTls(TlsFilesOf(options));
    lacks.AskAddress("admin", "listen", options.admin.listen);
  }
  lacks.AskAddress("metrics", "listen", options.metrics.listen);
  if (machine.asks_all) lacks.AskDisks(options);
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
