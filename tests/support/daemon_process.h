#ifndef KVIST_TESTS_SUPPORT_DAEMON_PROCESS_H_
#define KVIST_TESTS_SUPPORT_DAEMON_PROCESS_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace kvist::test {

// A temporary folder, removed with its content.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// What starts a kvistd in a folder of the test's, see DaemonProcess; for tests that expect it to refuse.
std::vector<std::string> KvistdCommand(const std::string& dir, const std::vector<std::string>& settings = {},
                                       const std::string& config = "", const std::string& before = "");

// A real kvistd in a folder of the test's, found beside the test's own executable (or at $KVISTD).
class DaemonProcess {
 public:
  // `settings`: more --set arguments, e.g. "pool.bytes=64MiB"; `config`: a file that stands below them; `before`: what a shell does in the
  // process before it becomes kvistd, e.g. "ulimit -l 64". Aborts the test when it isn't READY within 20 s.
  DaemonProcess(const std::string& dir, std::vector<std::string> settings = {}, const std::string& config = "",
                const std::string& before = "");
  ~DaemonProcess();  // SIGKILL
  DaemonProcess(const DaemonProcess&) = delete;
  DaemonProcess& operator=(const DaemonProcess&) = delete;

  void Kill();                    // SIGKILL and reap
  int Terminate();                // SIGTERM; its exit status
  void Signal(int number) const;  // SIGSTOP: returns when all its threads stand
  void Start();                   // again, after it has ended
  // How it has ended by itself, as RunProgram says it; nothing while it runs. Reaps it.
  std::optional<int> Ended();
  pid_t pid() const { return pid_; }
  std::string socket() const { return dir_ + "/engine.sock"; }
  std::string admin_socket() const { return dir_ + "/admin.sock"; }
  // Open descriptors of the process.
  size_t OpenFds() const;

 private:
  std::string dir_;
  std::vector<std::string> settings_;
  std::string config_;
  std::string before_;
  pid_t pid_ = -1;
};

// Runs a program with its output captured. Returns the exit status (-signal when killed).
int RunProgram(const std::vector<std::string>& argv, std::string* out);
// The folder of this executable.
std::string BinDir();

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_DAEMON_PROCESS_H_
