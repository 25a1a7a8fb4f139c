#ifndef KVIST_TESTS_BENCH_DAEMON_UNDER_TEST_H_
#define KVIST_TESTS_BENCH_DAEMON_UNDER_TEST_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/wiring.h"
#include "tests/support/temp_dir.h"

namespace kvist::bench {

// A whole kvistd in this process, with its sockets in a temporary directory: so that a benchmark can replace parts of it and see
// its memory.
//
// Threads: one.
class DaemonUnderTest {
 public:
  // Paths in `options` are filled in; so is what is left empty. Errors: those of the daemon.
  static absl::StatusOr<std::unique_ptr<DaemonUnderTest>> Start(daemon::Options options, daemon::Parts parts = {});

  const std::string& socket() const { return socket_; }
  // Errors: those of the node, DeadlineExceeded after 10 s.
  absl::StatusOr<rpc::NodeStatus> Status();
  rpc::NodeControl& node() { return daemon_->node(); }
  // Waits until the pool's memory has been touched. Errors: DeadlineExceeded after a minute.
  absl::Status AwaitTouched();

 private:
  DaemonUnderTest() = default;

  test::TempDir directory_;
  std::string socket_;
  std::unique_ptr<daemon::Daemon> daemon_;
};

}  // namespace kvist::bench

#endif  // KVIST_TESTS_BENCH_DAEMON_UNDER_TEST_H_
