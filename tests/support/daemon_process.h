#ifndef KVIST_TESTS_SUPPORT_DAEMON_PROCESS_H_
#define KVIST_TESTS_SUPPORT_DAEMON_PROCESS_H_

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvist::test {

// Settings of a kvistd that is to be provoked: a small pool that it doesn't touch beforehand, so that its resident memory stands still,
// and no log of what engines do wrong.
inline const std::vector<std::string> kProvoked{"pool.bytes=64MiB", "pool.touch_threads=0", "log.level=error"};

// What starts a kvistd in a folder of the test's, see DaemonProcess; for tests that expect it to refuse.
std::vector<std::string> KvistdCommand(const std::string& dir, const std::vector<std::string>& settings = {},
                                       const std::string& config = "", const std::string& before = "");

// A real kvistd in a folder of the test's, found beside the test's own executable (or at $KVISTD).
class DaemonProcess {
 public:
  // `settings`: more --set arguments, e.g. "pool.bytes=64MiB"; `config`: a file that stands below them; `before`: what a shell does
  // in the process before it becomes kvistd, e.g. "ulimit -l 64". Aborts the test when it isn't READY within 20 s.
  DaemonProcess(const std::string& dir, std::vector<std::string> settings = {}, const std::string& config = "",
                const std::string& before = "");
  ~DaemonProcess();  // SIGKILL
  DaemonProcess(const DaemonProcess&) = delete;
  DaemonProcess& operator=(const DaemonProcess&) = delete;

  void Kill();                    // SIGKILL and reap
  int Terminate();                // SIGTERM; its exit status
  void Signal(int number) const;  // SIGSTOP: returns when all its threads stand
  void Start();                   // again, after it has ended
  // How it has ended, as RunProgram says it; nothing while it runs. Reaps it.
  std::optional<int> Ended();
  pid_t pid() const { return pid_; }
  std::string socket() const { return dir_ + "/engine.sock"; }
  std::string admin_socket() const { return dir_ + "/admin.sock"; }
  // Open descriptors of the process, and its resident memory.
  size_t OpenFds() const;
  uint64_t ResidentBytes() const;

 private:
  int End(int number);

  std::string dir_;
  std::vector<std::string> settings_;
  std::string config_;
  std::string before_;
  pid_t pid_ = -1;
  std::optional<int> end_;
};

// Runs a program with its output captured. Returns the exit status (-signal when killed). One that has not ended within `most`, as a
// kvistd that should have refused to start, is killed.
int RunProgram(const std::vector<std::string>& argv, std::string* out,
               std::chrono::seconds most = std::chrono::seconds(120));
// The folder of this executable.
std::string BinDir();

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_DAEMON_PROCESS_H_
