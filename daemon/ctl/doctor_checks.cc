#include <fcntl.h>
#include <linux/io_uring.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "daemon/ctl/doctor.h"
#include "daemon/ctl/doctor_mends.h"
#include "daemon/ctl/human.h"
#include "storage/base/state_dir.h"

// Each check is one function; the table that holds them all is at the end.
namespace kvist::ctl {
namespace {

constexpr long kFutexWaitv = 449;  // its system call has one number on all machines; Debian 12's glibc has no name for it
constexpr Bytes kDiskLow = GiB(1);
constexpr Bytes kHugePage = MiB(2);  // as storage/pool asks for

Finding Ok(std::string text) { return {Finding::Level::kOk, std::move(text), ""}; }
Finding Warn(std::string text, std::string mend) { return {Finding::Level::kWarn, std::move(text), std::move(mend)}; }
Finding Fail(std::string text, std::string mend) { return {Finding::Level::kFail, std::move(text), std::move(mend)}; }

// The first line of a file of /proc or /sys; nothing when there is none.
std::optional<std::string> Line(const Patient& patient, const std::string& path) {
  std::ifstream file(patient.root + path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return std::string(absl::StripAsciiWhitespace(line));
}

std::string Quote(const std::string& path) { return absl::StrCat("'", path, "'"); }

// The path itself, or what is above it that exists.
std::string NearestExisting(std::string path) {
  struct stat found {};
  while (path.size() > 1 && ::stat(path.c_str(), &found) != 0) {
    const size_t slash = path.rfind('/');
    path = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  }
  return path;
}

Finding Kernel(const Patient&) {
  utsname name{};
  ::uname(&name);
  // With no words to wait for it is refused as a wrong argument, where it exists.
  const bool waitv = ::syscall(kFutexWaitv, nullptr, 0, 0, nullptr, 0) == 0 || errno != ENOSYS;
  if (waitv) return Ok(absl::StrCat("Linux ", name.release, ", with futex_waitv"));
  return Warn(absl::StrCat("Linux ", name.release,
                           " has no futex_waitv (5.16 has): kvistd hears most sessions by their doorbells, which is slower"),
              "sudo apt-get install linux-image-amd64 && sudo reboot");
}

Finding Memlock(const Patient& patient) {
  if (patient.status.has_value()) {
    if (patient.status->pool().locked()) return Ok("the running kvistd has its pool locked in memory");
    return Warn("the running kvistd could not lock its pool: the kernel may swap it out",
                EditUnit(patient, "LimitMEMLOCK=infinity", "after ulimit -l unlimited"));
  }
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  if (::geteuid() == 0) return Ok("root may lock as much memory as there is");
  if (limit.rlim_cur == RLIM_INFINITY) return Ok("no limit");
  return Warn(
      absl::StrCat("this user may lock ", HumanBytes({limit.rlim_cur}),
                   ": a larger pool of a kvistd of its own can be swapped out"),
      absl::StrCat(
          "echo \"$(id -un) - memlock unlimited\" | sudo tee /etc/security/limits.d/kvist.conf  # then log in again"));
}

Finding TransparentHugePages(const Patient& patient) {
  const std::string path = "/sys/kernel/mm/transparent_hugepage/enabled";
  const std::optional<std::string> choice = Line(patient, path);
  if (!choice.has_value())
    return Warn("this kernel has none: the pool is made of small pages",
                "sudo apt-get install linux-image-amd64 && sudo reboot");
  if (!absl::StrContains(*choice, "[never]")) return Ok(*choice);
  return Warn(absl::StrCat(*choice, ": the pool is made of small pages, and copies miss the TLB"),
              absl::StrCat("echo madvise | sudo tee ", path));
}

Finding ReservedHugePages(const Patient& patient) {
  std::ifstream file(patient.root + "/proc/meminfo");
  uint64_t total = 0, free = 0;
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.size() < 2) continue;
    if (words[0] == "HugePages_Total:") (void)absl::SimpleAtoi(words[1], &total);
    if (words[0] == "HugePages_Free:") (void)absl::SimpleAtoi(words[1], &free);
  }
  if (total == 0) return Ok("none reserved: the pool is made of transparent ones");
  const std::string text = absl::StrCat(free, " of ", total, " are free");
  if (patient.status.has_value() && kHugePage * free > Bytes{} &&
      kHugePage * total < Bytes{patient.status->pool().capacity_bytes()}) {
    const uint64_t wanted = total - free + (patient.status->pool().capacity_bytes() + kHugePage.value - 1) / kHugePage.value;
    return Warn(absl::StrCat(text, ", too few for the pool of the running kvistd: they are lost to everybody"),
                absl::StrCat("sudo sysctl vm.nr_hugepages=", wanted, "; ", Restart(patient)));
  }
  return Ok(absl::StrCat(text, ": a pool that fits takes them"));
}

Finding Numa(const Patient& patient) {
  const std::string nodes = Line(patient, "/sys/devices/system/node/online").value_or("0");
  if (nodes == "0") return Ok("one node");
  if (Line(patient, "/proc/sys/kernel/numa_balancing").value_or("0") == "0") return Ok(absl::StrCat("nodes ", nodes));
  return Warn(absl::StrCat("nodes ", nodes,
                           ", and the kernel moves pages between them: copies stall on pages that are on their way"),
              "sudo sysctl kernel.numa_balancing=0");
}

Finding IoUring(const Patient& patient) {
  // What a running kvistd has found is what counts: its limits and filters are its own.
  if (patient.status.has_value()) {
    const node::v1::SsdTier& ssd = patient.status->ssd();
    bool used = false;
    for (const auto& directory : ssd.directories()) {
      if (absl::StartsWith(directory.how(), "io_uring")) {
        used = true;
      } else if (!directory.how().empty()) {
        return Warn(
            absl::StrCat("the running kvistd drives ", directory.path(), " by ", directory.how(), ", which is slower"),
            absl::StrCat(
                "sudo sysctl kernel.io_uring_disabled=0; ",
                Restart(patient, "in a container: a seccomp profile that allows io_uring_setup, _enter and _register")));
      }
    }
    if (used) return Ok("the running kvistd uses it");
  }
  io_uring_params parameters{};
  // No entries is a wrong argument where it may be used.
  if (::syscall(SYS_io_uring_setup, 0, &parameters) >= 0 || errno == EINVAL) return Ok("available");
  const std::string why = std::strerror(errno);
  if (Line(patient, "/proc/sys/kernel/io_uring_disabled").value_or("0") != "0")
    return Warn("switched off: an SSD tier can't use it", "sudo sysctl kernel.io_uring_disabled=0");
  return Warn(
      absl::StrCat("not available (", why, "; containers often forbid it): an SSD tier can't use it"),
      "docker run --security-opt seccomp=unconfined ...  # or a profile that allows io_uring_setup, _enter and _register");
}

Finding Daemon(const Patient& patient) {
  if (patient.status.has_value()) {
    return Ok(absl::StrCat("pid ", patient.status->pid(), ", up ",
                           HumanDuration(absl::Seconds(patient.status->uptime_seconds()))));
  }
  struct stat socket {};
  if (::stat(patient.admin_socket.c_str(), &socket) != 0 && errno == ENOENT)
    return Warn(absl::StrCat("none runs: there is no ", patient.admin_socket), Start(patient));
  const std::string why(patient.why_no_status.message());
  if (absl::IsPermissionDenied(patient.why_no_status)) return Fail(why, LetIn(patient.admin_socket, "admin"));
  // Nobody is behind the socket, or somebody who is stuck.
  return Fail(why, absl::IsFailedPrecondition(patient.why_no_status) ? Start(patient) : Restart(patient));
}

// As connect() will see it.
bool MayConnect(const std::string& path) { return ::faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) == 0; }

Finding Socket(const Patient& patient, const std::string& path, const char* section) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) {
    if (errno == EACCES) return Fail(absl::StrCat(path, ": this user may not look there"), LetIn(path, section));
    if (!patient.status.has_value()) return Ok(absl::StrCat(path, " isn't there; kvistd makes it"));
    return Fail(absl::StrCat(path, ": ", std::strerror(errno), ", although kvistd runs"), Restart(patient));
  }
  if (!S_ISSOCK(found.st_mode))
    return Fail(absl::StrCat(path, " is no socket"), absl::StrCat("sudo rm ", Quote(path), "; ", Restart(patient)));
  const std::string who =
      absl::StrFormat("%s, mode %04o, uid %d, gid %d", path, found.st_mode & 07777, found.st_uid, found.st_gid);
  if (!MayConnect(path)) return Fail(absl::StrCat(who, ": this user may not connect"), LetIn(path, section));
  if ((found.st_mode & 0002) != 0) {
    return Warn(absl::StrCat(who, ": every user of this machine may connect"),
                absl::StrCat("sudo chmod o-rwx ", Quote(path), "  # and [", section, "] socket_mode = \"0660\""));
  }
  return Ok(who);
}

Finding AdminSocket(const Patient& patient) { return Socket(patient, patient.admin_socket, "admin"); }
Finding EngineSocket(const Patient& patient) {
  // Operators are none of the engines' users.
  if (MayConnect(patient.admin_socket) && ::access(patient.engine_socket.c_str(), F_OK) == 0 &&
      !MayConnect(patient.engine_socket))
    return Ok(absl::StrCat(patient.engine_socket, ": for engines' users; this one, an operator, needs no right to it"));
  return Socket(patient, patient.engine_socket, "session");
}

// What lets kvistd write there: its unit shuts it out of all but its state directory.
std::string LetWrite(const Patient& patient, const std::string& path) {
  return EditUnit(patient, absl::StrCat("ReadWritePaths=", path), absl::StrCat("its user has to be able to write ", path));
}

Finding StateDir(const Patient& patient) {
  const std::string& dir = patient.state_dir;
  struct stat found {};
  if (::stat(dir.c_str(), &found) != 0) {
    if (errno == EACCES) return Warn(absl::StrCat(dir, ": this user may not look at it"), "sudo kvistctl doctor");
    if (errno != ENOENT)
      return Fail(absl::StrCat(dir, ": ", std::strerror(errno)),
                  Reconfigure(patient, "[daemon] state_dir = another directory"));
    if (patient.status.has_value()) return Fail(absl::StrCat(dir, " isn't there, although kvistd runs"), Restart(patient));
    const std::string above = NearestExisting(dir);
    if (::access(above.c_str(), W_OK) == 0) return Ok(absl::StrCat(dir, " isn't there; kvistd makes it"));
    if (dir == kSystemStateDir) return Ok(absl::StrCat(dir, " isn't there; kvistd's unit makes it"));
    return Fail(absl::StrCat(dir, " isn't there, and this user may not make it in ", above),
                absl::StrCat("sudo install -d -m 0700 -o $(id -un) ", Quote(dir)));
  }
  if (!S_ISDIR(found.st_mode))
    return Fail(absl::StrCat(dir, " is no directory"), absl::StrCat("sudo mv ", Quote(dir), " ", Quote(dir + ".old")));
  if ((found.st_mode & 0022) != 0) {
    return Fail(absl::StrFormat("%s has mode %04o: others may change what kvistd keeps", dir, found.st_mode & 07777),
                absl::StrCat("sudo chmod go-w ", Quote(dir)));
  }
  return Ok(absl::StrFormat("%s, mode %04o, uid %d", dir, found.st_mode & 07777, found.st_uid));
}

Finding Disk(const Patient& patient) {
  const std::string place = NearestExisting(patient.state_dir);
  const std::string mend = Reconfigure(patient, "[daemon] state_dir = where there is room, unless it can be made here");
  struct statvfs disk {};
  if (::statvfs(place.c_str(), &disk) != 0) return Fail(absl::StrCat(place, ": ", std::strerror(errno)), mend);
  const Bytes free{uint64_t{disk.f_bavail} * disk.f_frsize};
  const std::string text = absl::StrCat(HumanBytes(free), " free for ", patient.state_dir);
  if (free == Bytes{}) return Fail(text, mend);
  return free < kDiskLow ? Warn(text, mend) : Ok(text);
}

// What an operator of an SSD tier would do about its trouble, of which the message tells the kind: the system's, or that of the tier,
// which stops before its file system is full.
std::string MendOf(const Patient& patient, const node::v1::SsdTier& ssd) {
  const std::string path = ssd.directories().empty() ? "" : ssd.directories(0).path();
  if (absl::StrContains(ssd.trouble(), std::strerror(EROFS)) || absl::StrContains(ssd.trouble(), std::strerror(EACCES)))
    return LetWrite(patient, path);
  if (absl::StrContains(ssd.trouble(), std::strerror(ENOSPC)) || absl::StrContains(ssd.trouble(), "free some space")) {
    return Reconfigure(
        patient,
        "[ssd] path = where there is room, or a smaller capacity; when there is room here again kvistd goes on by itself");
  }
  return Reconfigure(patient, "[ssd] path = another directory; kvistctl ssd and kvistd's log tell more");
}

Finding SsdTier(const Patient& patient) {
  if (!patient.status.has_value()) return Ok("no kvistd to ask");
  const node::v1::SsdTier& ssd = patient.status->ssd();
  std::string paths;
  for (const auto& directory : ssd.directories()) absl::StrAppend(&paths, paths.empty() ? "" : ", ", directory.path());
  if (ssd.state() == "off" && ssd.directories().empty()) return Ok(absl::StrCat("off: ", ssd.trouble()));
  const std::string text = absl::StrCat(ssd.state(), ", in ", paths);
  if (ssd.trouble().empty()) return Ok(text);
  return Warn(absl::StrCat(text, ": ", ssd.trouble()), MendOf(patient, ssd));
}

Finding RemoteStore(const Patient& patient) {
  if (!patient.status.has_value()) return Ok("no kvistd to ask");
  if (!patient.status->has_remote()) return Ok("none");
  const node::v1::RemoteTier& remote = patient.status->remote();
  const std::string text = absl::StrCat(remote.name(), ", ", remote.store());
  if (remote.reachable()) return Ok(absl::StrCat(text, ", answers"));
  constexpr absl::string_view kFile = "file://";
  const std::string mend =
      absl::StartsWith(remote.store(), kFile)
          ? LetWrite(patient, absl::StrCat(remote.store().substr(kFile.size()),
                                           ", when it is mounted and kvistd's user may write it"))
          : EditUnit(patient,
                     "IPAddressAllow=the store's addresses, when it runs: kvistd's unit lets this machine's through only",
                     "when the store runs and is reached from here");
  return Warn(absl::StrCat(text, ", doesn't answer, and what it has is missed: ", remote.why_not()), mend);
}

Finding Gpus(const Patient& patient) {
  const bool driver = ::access((patient.root + "/proc/driver/nvidia/version").c_str(), F_OK) == 0;
  if (!patient.status.has_value() || patient.status->gpus().empty()) {
    if (!driver) return Ok("no NVIDIA driver here: engines on CPUs are served");
    return Ok("an NVIDIA driver is here; kvistd opens it when the first engine on a GPU comes");
  }
  const auto& pool = patient.status->pool();
  for (const auto& gpu : patient.status->gpus()) {
    if (!gpu.lost().empty())
      return Fail(absl::StrCat(gpu.name(), " is lost to the running kvistd: ", gpu.lost()), Restart(patient));
  }
  const std::string text = absl::StrFormat("%d served, %s of the pool's %s pinned for them", patient.status->gpus_size(),
                                           HumanBytes({pool.pinned_bytes()}), HumanBytes({pool.capacity_bytes()}));
  if (pool.pinned_bytes() >= pool.capacity_bytes()) return Ok(text);
  return Warn(absl::StrCat(text, ": copies of the rest are slow; it takes some seconds after the first engine"),
              EditUnit(patient, "LimitMEMLOCK=infinity, if it stays so", "after ulimit -l unlimited, if it stays so"));
}

Finding Versions(const Patient& patient) {
  if (!patient.status.has_value()) return Ok("kvistctl " KVIST_VERSION "; no kvistd to compare with");
  if (patient.status->version() == KVIST_VERSION) return Ok("kvistd and kvistctl are " KVIST_VERSION);
  return Warn(absl::StrCat("kvistd is ", patient.status->version(),
                           ", kvistctl is " KVIST_VERSION ": one was upgraded without the other"),
              Restart(patient, "runs the kvistd that is installed"));
}

}  // namespace

const std::vector<Check>& Checks() {
  static const auto* const checks = new std::vector<Check>{
      {"kernel", Kernel},
      {"memlock", Memlock},
      {"transparent huge pages", TransparentHugePages},
      {"reserved huge pages", ReservedHugePages},
      {"NUMA", Numa},
      {"io_uring", IoUring},
      {"state directory", StateDir},
      {"disk", Disk},
      {"kvistd", Daemon},
      {"SSD tier", SsdTier},
      {"remote store", RemoteStore},
      {"admin socket", AdminSocket},
      {"engine socket", EngineSocket},
      {"GPUs", Gpus},
      {"versions", Versions},
  };
  return *checks;
}

}  // namespace kvist::ctl
