#include "daemon/node_rows.h"

#include <catch2/catch.hpp>

#include "daemon/rpc/replies.h"

namespace kvist::daemon {
namespace {

TEST_CASE("A job says how fast it is and how long it will take, as it did so far; and no more once it has ended") {
  const absl::Time now = absl::FromUnixSeconds(1'700'000'000);
  core::Job job{.id = core::JobId{7}, .kind = core::JobKind::kCompress};
  job.done = 30;
  job.total = 120;
  job.bytes = MiB(10);
  job.bytes_after = MiB(4);
  job.loss = {0.01, 0.002};
  CHECK(rpc::ToReply(RowOf(job, "remote:shared", now)).seconds_left() == 0);  // it hasn't begun to work
  job.began = now - absl::Seconds(2);
  const node::v1::Job running = rpc::ToReply(RowOf(job, "remote:shared", now));
  CHECK(running.state() == "running");
  CHECK(running.seconds() == 2);
  CHECK(running.bytes_per_second() == static_cast<double>(MiB(5).value));
  CHECK(running.seconds_left() == 6);
  CHECK(running.bytes_after() == MiB(4).value);
  CHECK(running.relative_error() == 0.01);
  CHECK(running.attention_error() == 0.002);
  job.state = core::JobState::kCancelled;
  job.ended = now - absl::Seconds(1);
  const node::v1::Job ended = rpc::ToReply(RowOf(job, "remote:shared", now));
  CHECK(ended.seconds() == 1);
  CHECK(ended.bytes_per_second() == static_cast<double>(MiB(10).value));
  CHECK(ended.seconds_left() == 0);
}

}  // namespace
}  // namespace kvist::daemon
