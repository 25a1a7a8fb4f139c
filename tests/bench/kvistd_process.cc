#include "tests/bench/kvistd_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/clock.h"
#include "storage/base/status.h"
#include "storage/base/unique_fd.h"

namespace kvist::bench {
namespace {

constexpr int64_t kStartNanos = 30'000'000'000;

// Until the line READY has come. False: the writer has ended, or it is too late.
bool AwaitReady(int fd) {
  const int64_t deadline = MonotonicNanos() + kStartNanos;
  std::string said;
  while (said.find("READY\n") == std::string::npos) {
    const int64_t left_ms = (deadline - MonotonicNanos()) / 1'000'000;
    pollfd readable{fd, POLLIN, 0};
    if (left_ms <= 0 || ::poll(&readable, 1, static_cast<int>(left_ms)) <= 0) return false;
    char buffer[256];
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n <= 0) return false;
    said.append(buffer, static_cast<size_t>(n));
  }
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<KvistdProcess>> KvistdProcess::Start(const std::vector<std::string>& settings,
                                                                    const std::string& before) {
  std::error_code error;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / "kvistd";
  if (::access(program.c_str(), X_OK) != 0)
    return absl::NotFoundError(absl::StrCat("no kvistd at ", program, ": build the target kvistd"));

  auto process = std::unique_ptr<KvistdProcess>(new KvistdProcess);
  const std::string& path = process->directory_.path();
  process->socket_ = absl::StrCat(path, "/engine.sock");
  std::vector<std::string> words = {program};
  if (!before.empty()) words = {"/bin/sh", "-ec", before + "\nexec \"$0\" \"$@\"", program};
  const auto set = [&](std::string setting) { words.insert(words.end(), {"--set", std::move(setting)}); };
  set(absl::StrCat("daemon.state_dir=", path, "/state"));
  set(absl::StrCat("session.socket=", process->socket_));
  set(absl::StrCat("admin.socket=", path, "/admin.sock"));
  set("metrics.listen=");  // runs beside others have the port
  set("log.level=warn");
  for (const std::string& setting : settings) set(setting);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);

  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus("pipe2", errno);
  const UniqueFd output(ends[0]);
  UniqueFd input(ends[1]);
  const pid_t parent = ::getpid();
  process->pid_ = ::fork();
  if (process->pid_ < 0) return ErrnoStatus("fork", errno);
  if (process->pid_ == 0) {  // only what is safe between fork and exec
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    ::dup2(input.get(), STDOUT_FILENO);
    ::execv(arguments[0], arguments.data());
    ::_exit(127);
  }
  input.reset();
  if (!AwaitReady(output.get())) return absl::UnavailableError("kvistd did not become ready; stderr says why");
  return process;
}

void KvistdProcess::Kill() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

KvistdProcess::~KvistdProcess() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGTERM);
  const int64_t deadline = MonotonicNanos() + 10'000'000'000;
  while (::waitpid(pid_, nullptr, WNOHANG) == 0) {
    if (MonotonicNanos() > deadline) ::kill(pid_, SIGKILL);
    ::poll(nullptr, 0, 10);
  }
}

absl::StatusOr<double> KvistdProcess::CpuSeconds() const {
  clockid_t clock;
  if (const int error = ::clock_getcpuclockid(pid_, &clock); error != 0)
    return ErrnoStatus("clock_getcpuclockid of kvistd", error);
  timespec used;
  if (::clock_gettime(clock, &used) != 0) return ErrnoStatus("clock_gettime of kvistd's processor time", errno);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

}  // namespace kvist::bench
