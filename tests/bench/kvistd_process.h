#ifndef KVIST_TESTS_BENCH_KVISTD_PROCESS_H_
#define KVIST_TESTS_BENCH_KVISTD_PROCESS_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/support/temp_dir.h"

namespace kvist::bench {

// The kvistd that lies beside this executable, as a process of its own with its files in a temporary directory. Ends with this.
//
// Threads: the one that made it, which must live as long (the kernel kills the child when it dies).
class KvistdProcess {
 public:
  // `settings`: "section.key=value"; `before`: what a shell does in the process before it becomes kvistd. Returns when it serves.
  // Errors: NotFound  no kvistd there.  Unavailable  it didn't start; what it said is on stderr.  DeadlineExceeded  not within 30 s.
  static absl::StatusOr<std::unique_ptr<KvistdProcess>> Start(const std::vector<std::string>& settings,
                                                              const std::string& before = "");
  ~KvistdProcess();
  KvistdProcess(const KvistdProcess&) = delete;
  KvistdProcess& operator=(const KvistdProcess&) = delete;

  void Kill();  // kill -9; it is gone when this returns
  const std::string& socket() const { return socket_; }
  std::string admin_socket() const { return directory_ / "admin.sock"; }
  // Seconds of processor time that it has used so far, with threads that have ended. Errors: those of its clock.
  absl::StatusOr<double> CpuSeconds() const;

 private:
  KvistdProcess() = default;

  test::TempDir directory_;
  std::string socket_;
  pid_t pid_ = -1;
};

}  // namespace kvist::bench

#endif  // KVIST_TESTS_BENCH_KVISTD_PROCESS_H_
