#include "examples/replay/private_daemon.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "examples/replay/stop_signal.h"

namespace kvist::replay {
namespace {

namespace fs = std::filesystem;

// A daemon is ready before its memory is touched: it takes far less.
constexpr absl::Duration kReadyTimeout = absl::Seconds(30);
constexpr absl::Duration kStopTimeout = absl::Seconds(15);

// A slot is a 4 KiB header place and the payload, in whole 4 KiB.
constexpr uint64_t kSlotUnit = 4096;
constexpr uint64_t kSsdBytesMin = uint64_t{64} << 20;  // the smallest tier that kvistd makes
uint64_t SlotBytes(uint64_t chunk_bytes) { return kSlotUnit + (chunk_bytes + kSlotUnit - 1) / kSlotUnit * kSlotUnit; }

absl::StatusOr<std::string> FindProgram() {
  if (const char* named = std::getenv("KVISTD"); named != nullptr && *named != '\0') {
    if (access(named, X_OK) == 0) return std::string(named);
    return absl::NotFoundError(absl::StrCat("$KVISTD is ", named, ", which can't be executed"));
  }
  std::error_code error;
  const fs::path beside = fs::read_symlink("/proc/self/exe", error).replace_filename("kvistd");
  if (!error && access(beside.c_str(), X_OK) == 0) return beside.string();
  return absl::NotFoundError(
      absl::StrCat("no kvistd at ", beside.string(), ": build it, set KVISTD to it, or name a running one by --socket"));
}

// Whether fd becomes readable (or is hung up) before the deadline; false also when a stop signal came.
bool AwaitReadable(int fd, absl::Time deadline) {
  while (StopSignal() == 0) {
    const int64_t left_ms =
        std::max<int64_t>(0, absl::ToInt64Milliseconds(absl::Ceil(deadline - absl::Now(), absl::Milliseconds(1))));
    // In slices: a signal that came just before poll would not wake it.
    pollfd poll_fd{fd, POLLIN, 0};
    if (poll(&poll_fd, 1, static_cast<int>(std::min<int64_t>(left_ms, 100))) > 0) return true;
    if (left_ms == 0) return false;
  }
  return false;
}

}  // namespace

PrivateDaemon::PrivateDaemon(std::string directory)
    : directory_(std::move(directory)), socket_(absl::StrCat(directory_, "/engine.sock")) {}

PrivateDaemon::~PrivateDaemon() {
  (void)Stop();  // who wants to know has called it
  if (output_ >= 0) close(output_);
  std::error_code ignored;
  fs::remove_all(directory_, ignored);
}

absl::StatusOr<std::unique_ptr<PrivateDaemon>> PrivateDaemon::Start(const Options& options) {
  absl::StatusOr<std::string> program = FindProgram();
  if (!program.ok()) return program.status();
  std::error_code error;
  std::string directory = (fs::temp_directory_path(error) / "kvist-replay-XXXXXX").string();
  if (error) return absl::NotFoundError(absl::StrCat("no directory for temporary files (TMPDIR): ", error.message()));
  if (mkdtemp(directory.data()) == nullptr) return absl::ErrnoToStatus(errno, absl::StrCat("making ", directory));
  std::unique_ptr<PrivateDaemon> daemon(new PrivateDaemon(directory));
  if (daemon->socket_.size() >= sizeof(sockaddr_un{}.sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrCat(daemon->socket_, " is too long for a socket's name: set TMPDIR to a shorter path"));
  }
  if (absl::Status status = daemon->WriteConfiguration(options); !status.ok()) return status;
  if (absl::Status status = daemon->Spawn(*program); !status.ok()) return status;
  if (absl::Status status = daemon->AwaitReady(); !status.ok()) return status;
  return daemon;
}

absl::Status PrivateDaemon::WriteConfiguration(const Options& options) const {
  const uint64_t slot_bytes = SlotBytes(options.chunk_bytes);
  std::ofstream file(directory_ + "/kvistd.toml");
  const auto quoted = [this](const char* name) {
    return absl::StrCat("'", directory_, "/", name, "'");
  };  // TOML's literal string
  file << "[daemon]\nstate_dir = " << quoted("state") << "\n"
       << "[session]\nsocket = " << quoted("engine.sock") << "\n"
       << "[admin]\nsocket = " << quoted("admin.sock")
       << "\n"
       // A slab of one slot: the pool has as many slots as were asked for, no more.
       << "[pool]\nbytes = " << options.slots * slot_bytes << "\nslab_bytes = " << slot_bytes
       << "\n"
       // One engine alone: its hits may be as long as the pool.
       << "[lease]\nshare = 1.0\n";
  if (options.ssd_slots == 0) {
    // LRU is exactly known, so that hits can be compared with a model's.
    file << "[ssd]\nenabled = false\n[eviction]\npolicy = 'lru'\n";
  } else {
    file << "[ssd]\npath = " << quoted("ssd") << "\ncapacity = " << std::max(options.ssd_slots * slot_bytes, kSsdBytesMin)
         << "\nstop_flush = '0s'\n";
  }
  // Not at the port that a kvistd of this machine has for its figures.
  file << "[metrics]\nlisten = ''\n"
       << "[log]\nlevel = 'warn'\n";
  file.close();
  if (!file) return absl::UnavailableError(absl::StrCat("can't write ", directory_, "/kvistd.toml: is the disk full?"));
  return absl::OkStatus();
}

absl::Status PrivateDaemon::Spawn(const std::string& program) {
  int pipe_ends[2];
  if (pipe2(pipe_ends, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "pipe2");
  output_ = pipe_ends[0];
  const std::string config = directory_ + "/kvistd.toml";
  const std::string log = directory_ + "/kvistd.log";
  const int log_fd = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  const char* argv[] = {program.c_str(), "--config", config.c_str(), nullptr};
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) {
    // Only async-signal-safe calls. A group of its own: Ctrl-C at the terminal is for the replay, which ends the daemon afterwards.
    setpgid(0, 0);
    signal(SIGPIPE, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1);  // it died before prctl
    dup2(pipe_ends[1], STDOUT_FILENO);
    if (log_fd >= 0) dup2(log_fd, STDERR_FILENO);
    execv(argv[0], const_cast<char* const*>(argv));
    constexpr char kMessage[] = "can't be executed\n";
    (void)!write(STDERR_FILENO, kMessage, sizeof kMessage - 1);
    _exit(127);
  }
  const int fork_error = errno;
  close(pipe_ends[1]);
  if (log_fd >= 0) close(log_fd);
  if (pid_ < 0) return absl::ErrnoToStatus(fork_error, "fork");
  pidfd_ = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
  if (pidfd_ < 0) return absl::ErrnoToStatus(errno, "pidfd_open");
  return absl::OkStatus();
}

absl::Status PrivateDaemon::AwaitReady() {
  const absl::Time deadline = absl::Now() + kReadyTimeout;
  while (AwaitReadable(output_, deadline)) {
    char buffer[4096];
    const ssize_t got = read(output_, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return absl::UnavailableError(absl::StrCat("kvistd ended before it was ready", LogEnd()));
    printed_.append(buffer, static_cast<size_t>(got));
    if (printed_.starts_with("READY\n") || printed_.find("\nREADY\n") != std::string::npos) return absl::OkStatus();
  }
  if (StopSignal() != 0) return absl::CancelledError("stopped by a signal while kvistd was starting");
  return absl::DeadlineExceededError(
      absl::StrCat("kvistd was not ready after ", absl::FormatDuration(kReadyTimeout), LogEnd()));
}

std::string PrivateDaemon::LogEnd() const {
  std::ifstream file(directory_ + "/kvistd.log");
  std::ostringstream content;
  content << file.rdbuf();
  std::string text = printed_ + content.str();
  constexpr size_t kEnd = 4000;
  if (text.size() > kEnd) text.erase(0, text.size() - kEnd);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.empty() ? "; it said nothing" : "; it said:\n" + text;
}

absl::Status PrivateDaemon::Stop() {
  if (pid_ < 0) return absl::OkStatus();
  const pid_t pid = std::exchange(pid_, -1);
  kill(pid, SIGTERM);
  bool in_time = pidfd_ < 0;
  if (pidfd_ >= 0) {
    const absl::Time deadline = absl::Now() + kStopTimeout;
    pollfd poll_fd{pidfd_, POLLIN, 0};
    // A stop signal doesn't cut this short: it is bounded, and leaves nothing behind.
    while (!in_time && absl::Now() < deadline) in_time = poll(&poll_fd, 1, 100) > 0;
    close(std::exchange(pidfd_, -1));
  }
  if (!in_time) kill(pid, SIGKILL);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
  if (!in_time) {
    return absl::InternalError(
        absl::StrCat("kvistd did not end within ", absl::FormatDuration(kStopTimeout), " and was killed", LogEnd()));
  }
  if (WIFSIGNALED(status))
    return absl::InternalError(absl::StrCat("kvistd was ended by signal ", WTERMSIG(status), LogEnd()));
  if (WEXITSTATUS(status) != 0)
    return absl::InternalError(absl::StrCat("kvistd ended with status ", WEXITSTATUS(status), LogEnd()));
  return absl::OkStatus();
}

}  // namespace kvist::replay
