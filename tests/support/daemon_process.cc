#include "tests/support/daemon_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace kvist::test {
namespace {

pid_t Spawn(const std::vector<std::string>& argv, int stdout_fd) {
  std::vector<char*> args;
  for (const std::string& a : argv) args.push_back(const_cast<char*>(a.c_str()));
  args.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::dup2(stdout_fd, STDOUT_FILENO);
    ::execv(args[0], args.data());
    std::perror(args[0]);
    ::_exit(127);
  }
  return pid;
}

int Reap(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace

std::string BinDir() { return std::filesystem::read_symlink("/proc/self/exe").parent_path(); }

DaemonProcess::DaemonProcess(const std::string& dir, std::vector<std::string> settings, const std::string& config,
                             const std::string& before)
    : dir_(dir), settings_(std::move(settings)), config_(config), before_(before) {
  Start();
}

DaemonProcess::~DaemonProcess() {
  if (pid_ > 0) Kill();
}

std::vector<std::string> KvistdCommand(const std::string& dir, const std::vector<std::string>& settings,
                                       const std::string& config, const std::string& before) {
  const char* named = std::getenv("KVISTD");
  std::vector<std::string> argv;
  if (!before.empty()) argv = {"/bin/sh", "-ec", before + "\nexec \"$0\" \"$@\""};
  argv.push_back(named != nullptr ? named : BinDir() + "/kvistd");
  if (!config.empty()) argv.insert(argv.end(), {"--config", config});
  std::vector<std::string> all{"daemon.state_dir=" + dir + "/state",
                               "session.socket=" + dir + "/engine.sock",
                               "admin.socket=" + dir + "/admin.sock",
                               "metrics.listen=",
                               "log.level=warn",
                               "ssd.enabled=false"};
  all.insert(all.end(), settings.begin(), settings.end());
  for (const std::string& setting : all) {
    argv.push_back("--set");
    argv.push_back(setting);
  }
  return argv;
}

void DaemonProcess::Start() {
  int out[2];
  if (::pipe2(out, O_CLOEXEC) != 0) std::abort();
  pid_ = Spawn(KvistdCommand(dir_, settings_, config_, before_), out[1]);
  end_.reset();
  ::close(out[1]);
  std::string said;
  pollfd ready{out[0], POLLIN, 0};
  while (said.find("READY") == std::string::npos && ::poll(&ready, 1, 20'000) > 0) {
    char buffer[256];
    const ssize_t n = ::read(out[0], buffer, sizeof buffer);
    if (n <= 0) break;
    said.append(buffer, static_cast<size_t>(n));
  }
  ::close(out[0]);
  if (said.find("READY") == std::string::npos) {
    std::fprintf(stderr, "kvistd didn't get ready; it said: %s\n", said.c_str());
    std::abort();
  }
}

void DaemonProcess::Signal(int number) const {
  if (pid_ <= 0) return;  // it has ended; -1 would be every process that there is
  ::kill(pid_, number);
  int status = 0;
  if (number == SIGSTOP) ::waitpid(pid_, &status, WUNTRACED);  // until all its threads stand
}

std::optional<int> DaemonProcess::Ended() {
  int status = 0;
  if (pid_ > 0 && ::waitpid(pid_, &status, WNOHANG) == pid_) {
    pid_ = -1;
    end_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  return end_;
}

void DaemonProcess::Kill() { End(SIGKILL); }

int DaemonProcess::Terminate() { return End(SIGTERM); }

int DaemonProcess::End(int number) {
  if (!end_.has_value()) {
    ::kill(pid_, number);
    end_ = Reap(pid_);
    pid_ = -1;
  }
  return *end_;
}

size_t DaemonProcess::OpenFds() const {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid_) + "/fd"))
    ++count;
  return count;
}

uint64_t DaemonProcess::ResidentBytes() const {
  std::ifstream statm("/proc/" + std::to_string(pid_) + "/statm");
  uint64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

int RunProgram(const std::vector<std::string>& argv, std::string* out, std::chrono::seconds most) {
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) std::abort();
  const pid_t pid = Spawn(argv, pipe[1]);
  ::close(pipe[1]);
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + most;
  while (true) {
    pollfd readable{pipe[0], POLLIN, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0 || ::poll(&readable, 1, static_cast<int>(left.count())) == 0) {
      ::kill(pid, SIGKILL);
      break;
    }
    char buffer[4096];
    const ssize_t n = ::read(pipe[0], buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    if (out != nullptr) out->append(buffer, static_cast<size_t>(n));
  }
  ::close(pipe[0]);
  return Reap(pid);
}

}  // namespace kvist::test
