#include "daemon/node_rows.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "storage/base/clock.h"

namespace kvist::daemon {

std::string Hex(const SpaceDigest& digest) {
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size()));
}

rpc::Traffic RowOf(const session::Traffic& traffic) {
  rpc::Traffic row;
  row.lookups = traffic.lookups();
  row.chunks_asked = traffic.chunks_asked;
  row.chunks_hit = traffic.chunks_hit;
  row.chunks_loaded = traffic.chunks_loaded;
  row.chunks_stored = traffic.chunks_stored;
  row.bytes_loaded = traffic.bytes_loaded;
  row.bytes_stored = traffic.bytes_stored;
  for (const uint64_t failed : traffic.failed) row.failed += failed;
  return row;
}

rpc::SessionStatus RowOf(const session::EngineSession& session) {
  const session::Registration& registration = session.registration();
  return {.id = session.identity().id.value,
          .instance = registration.instance,
          .role = registration.role == core::Role::kScheduler ? "scheduler" : "worker",
          .rank = registration.rank.value,
          .tenant = registration.space.tenant,
          .pid = static_cast<uint32_t>(session.identity().pid),
          .uid = session.identity().uid,
          .space = Hex(registration.space.digest),
          .model = registration.space.model,
          .age = MonotonicNow() - session.identity().opened,
          .ops = session.ops_in_flight(),
          .requests = session.requests(),
          .traffic = RowOf(session.traffic())};
}

rpc::JobStatus RowOf(const core::Job& job, const std::string& remote, absl::Time now) {
  rpc::JobStatus row;
  row.id = job.id.value;
  switch (job.kind) {
    case core::JobKind::kClear: row.kind = "clear"; break;
    case core::JobKind::kClearPrompt: row.kind = "clear-prompt"; break;
    case core::JobKind::kMove: row.kind = "move"; break;
    case core::JobKind::kPrefetch: row.kind = "prefetch"; break;
    case core::JobKind::kCompress: row.kind = "compress"; break;
    case core::JobKind::kDecompress: row.kind = "decompress"; break;
  }
  if (job.tier.has_value()) {
    row.tier = *job.tier == core::Tier::kDram ? "dram" : *job.tier == core::Tier::kSsd ? "ssd" : remote;
  }
  if (job.digest.has_value()) row.space = Hex(*job.digest);
  switch (job.state) {
    case core::JobState::kRunning: row.state = "running"; break;
    case core::JobState::kDone: row.state = "done"; break;
    case core::JobState::kCancelled: row.state = "cancelled"; break;
  }
  row.done = job.done;
  row.total = job.total;
  row.chunks = job.chunks;
  if (job.began.has_value()) row.took = std::max(absl::ZeroDuration(), job.ended.value_or(now) - *job.began);
  row.request = job.request;
  row.resumed = job.resumed;
  row.bytes_after = job.bytes_after;
  row.relative_error = job.loss.relative;
  row.attention_error = job.loss.attention;
  row.trouble = job.trouble;
  row.bytes = job.bytes;
  row.already = job.already;
  row.left = job.left;
  return row;
}

rpc::PinStatus RowOf(const core::PinRow& pin, const core::Core& core) {
  const core::CoreStatus::SpaceRow space = core.space(pin.space);
  return {.id = pin.number,  // chunk keys are nobody's business outside the node
          .owner = pin.name.owner,
          .tenant = space.tenant,
          .space = Hex(space.digest),
          .model = space.model,
          .chunks = pin.chunks,
          .asked = pin.name.asked,
          .bytes = pin.bytes,
          .count = pin.count,
          .age = pin.age,
          .lasts = pin.lasts};
}

}  // namespace kvist::daemon
