#include "tests/bench/daemon_under_test.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/config.h"
#include "storage/base/clock.h"
#include "storage/base/status.h"

namespace kvist::bench {

absl::StatusOr<std::unique_ptr<DaemonUnderTest>> DaemonUnderTest::Start(daemon::Options options, daemon::Parts parts) {
  auto test = std::unique_ptr<DaemonUnderTest>(new DaemonUnderTest);
  test->socket_ = absl::StrCat(test->directory_.path(), "/engine.sock");
  options.session.socket = test->socket_;
  options.admin.socket = absl::StrCat(test->directory_.path(), "/admin.sock");
  options.ssd.enabled = false;  // what is measured here is DRAM: `roundtrip`, `overhead` and `ssd` have kvistd with its tier
  options.daemon.state_dir = absl::StrCat(test->directory_.path(), "/state");
  options.metrics.listen = "";  // runs beside others have the port
  KVIST_RETURN_IF_ERROR(daemon::FillDefaults(&options));
  KVIST_RETURN_IF_ERROR(options.Validate());
  KVIST_ASSIGN_OR_RETURN(test->daemon_, daemon::Daemon::Start(options, std::move(parts)));
  return test;
}

absl::StatusOr<rpc::NodeStatus> DaemonUnderTest::Status() {
  return daemon_->node().Status(MonotonicNow() + absl::Seconds(10));
}

absl::Status DaemonUnderTest::AwaitTouched() {
  const absl::Time deadline = MonotonicNow() + absl::Minutes(1);
  while (MonotonicNow() < deadline) {
    KVIST_ASSIGN_OR_RETURN(const rpc::NodeStatus status, Status());
    if (status.pool_touched >= status.pool_capacity) return absl::OkStatus();
    absl::SleepFor(absl::Milliseconds(10));
  }
  return absl::DeadlineExceededError("the pool's memory was not touched within a minute");
}

}  // namespace kvist::bench
