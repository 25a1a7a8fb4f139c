#include "daemon/rpc/replies.h"

#include <unistd.h>

#include <algorithm>

#include <string>

#include "absl/strings/escaping.h"
#include "absl/time/time.h"
#include "daemon/rpc/space_prefix.h"
#include "storage/base/utf8.h"

namespace kvist::rpc {
namespace {

void Put(const Traffic& from, node::v1::Traffic* to) {
  to->set_lookups(from.lookups);
  to->set_chunks_asked(from.chunks_asked);
  to->set_chunks_hit(from.chunks_hit);
  to->set_chunks_loaded(from.chunks_loaded);
  to->set_chunks_stored(from.chunks_stored);
  to->set_bytes_loaded(from.bytes_loaded.value);
  to->set_bytes_stored(from.bytes_stored.value);
  to->set_failed(from.failed);
}

void Put(const NodeStatus::Latency& from, node::v1::Latency* to) {
  to->set_name(from.name);
  to->set_count(from.durations.count());
  to->set_seconds(static_cast<double>(from.durations.sum_nanos()) * 1e-9);
  for (uint32_t i = 0; i < LatencyHistogram::kBuckets; ++i) {
    if (from.durations.count(i) == 0) continue;
    node::v1::Latency::Bucket& bucket = *to->add_buckets();
    bucket.set_upper_nanos(static_cast<uint64_t>(LatencyHistogram::UpperNanos(i)));
    bucket.set_count(from.durations.count(i));
  }
}

std::string Text(const std::string& text) { return IsUtf8(text) ? text : absl::CHexEscape(text); }

void Put(const SsdTierStatus& from, node::v1::SsdTier* to) {
  to->set_state(from.state);
  to->set_trouble(Text(from.trouble));
  to->set_recovering(from.recovering);
  to->set_chunks(from.chunks);
  to->set_live_bytes(from.live.value);
  to->set_capacity_bytes(from.capacity.value);
  for (const SsdTierStatus::Directory& from_directory : from.directories) {
    node::v1::SsdTier::Directory& directory = *to->add_directories();
    directory.set_path(Text(from_directory.path));
    directory.set_how(Text(from_directory.how));
  }
}

void Put(const SsdStatus::Device& from, node::v1::SsdReply::Device* to) {
  to->set_directory(Text(from.directory));
  to->set_how(Text(from.how));
  to->set_writable(from.writable);
  to->set_why(Text(from.why));
  to->set_segments(from.segments);
  to->set_segments_free(from.free);
  to->set_segments_fenced(from.fenced);
  to->set_segments_released(from.released);
  to->set_capacity_bytes(from.capacity.value);
  to->set_live_bytes(from.live.value);
  to->set_written_bytes(from.written.value);
  to->set_read_bytes(from.read.value);
  to->set_moved_bytes(from.moved.value);
  if (from.written > from.moved) {
    to->set_write_amplification(static_cast<double>(from.written.value) /
                                static_cast<double>((from.written - from.moved).value));
  }
  to->set_records_written(from.records_written);
  to->set_records_read(from.records_read);
  to->set_syncs(from.syncs);
  to->set_write_errors(from.write_errors);
  to->set_sync_errors(from.sync_errors);
  to->set_read_errors(from.read_errors);
  for (const auto& [name, count] : from.verdicts) {
    node::v1::SsdReply::Device::Verdict& verdict = *to->add_verdicts();
    verdict.set_name(name);
    verdict.set_count(count);
  }
  to->set_in_flight_bytes(from.in_flight.value);
  to->set_waiting(from.waiting);
}

void Put(const SsdStatus::Recovery& from, node::v1::SsdReply::Recovery* to) {
  to->set_ended(from.ended);
  to->set_error(Text(from.error));
  to->set_message(Text(from.message));
  to->set_rebuilt(from.rebuilt);
  to->set_chunks(from.chunks);
  to->set_cleared(from.cleared);
  to->set_skipped(from.skipped);
  to->set_seconds(absl::ToDoubleSeconds(from.elapsed));
}

void Put(const SsdStatus::Scrub& from, node::v1::SsdReply::Scrub* to) {
  to->set_passes(from.passes);
  to->set_records(from.records);
  to->set_bytes(from.read.value);
  to->set_damaged(from.damaged);
  to->set_unreadable(from.unreadable);
  to->set_last_seconds(absl::ToDoubleSeconds(from.last));
}

void Put(const RemoteStatus& from, node::v1::RemoteTier* to) {
  to->set_name(Text(from.name));
  to->set_store(Text(from.store));
  to->set_reachable(from.reachable);
  to->set_why_not(Text(from.why_not));
  to->set_encrypted(from.encrypted);
  to->set_lookups_asked(from.lookups_asked);
  to->set_lookups_unanswered(from.lookups_unanswered);
  to->set_chunks_found(from.chunks_found);
  to->set_chunks_read(from.chunks_read);
  to->set_reads_failed(from.reads_failed);
  to->set_chunks_missing(from.chunks_missing);
  to->set_chunks_corrupt(from.chunks_corrupt);
  to->set_chunks_written(from.chunks_written);
  to->set_writes_failed(from.writes_failed);
  to->set_chunks_dropped(from.chunks_dropped);
  to->set_chunks_waiting(from.chunks_waiting);
  to->set_bytes_read(from.read.value);
  to->set_bytes_written(from.written.value);
  to->set_bytes_on_their_way(from.on_their_way.value);
  to->set_breaker_opened(from.breaker_opened);
  for (const auto& [name, count] : from.verdicts) {
    node::v1::RemoteTier::Verdict& verdict = *to->add_verdicts();
    verdict.set_name(name);
    verdict.set_count(count);
  }
}

}  // namespace

node::v1::StatusReply ToReply(const NodeStatus& status) {
  node::v1::StatusReply reply;
  reply.set_version(KVIST_VERSION);
  reply.set_pid(static_cast<uint64_t>(getpid()));
  reply.set_uptime_seconds(absl::ToDoubleSeconds(status.uptime));
  reply.set_engine_socket(Text(status.engine_socket));
  reply.set_state_dir(Text(status.state_dir));

  node::v1::StatusReply::Pool& pool = *reply.mutable_pool();
  pool.set_capacity_bytes(status.pool_capacity.value);
  pool.set_used_bytes(status.pool_used.value);
  pool.set_slots(status.pool_slots);
  pool.set_touched_bytes(status.pool_touched.value);
  pool.set_locked(status.pool_locked);
  pool.set_page_bytes(status.pool_page.value);
  pool.set_slab_bytes(status.slab.value);
  pool.set_regions(status.pool_regions);
  pool.set_private_bytes(status.pool_private.value);
  pool.set_pinned_bytes(status.pool_pinned.value);

  for (const NodeStatus::Gpu& from : status.gpus) {
    node::v1::StatusReply::Gpu& gpu = *reply.add_gpus();
    gpu.set_name(Text(from.name));
    gpu.set_imported_bytes(from.imported.value);
    gpu.set_lost(Text(from.lost));
  }
  for (const NodeStatus::Space& from : status.spaces) {
    node::v1::StatusReply::Space& space = *reply.add_spaces();
    space.set_digest(from.digest.substr(0, kShownDigits));
    space.set_tenant(Text(from.tenant));
    space.set_model(Text(from.model));
    space.set_chunks(from.chunks);
    space.set_bytes(from.bytes.value);
    Put(from.traffic, space.mutable_traffic());
  }
  reply.set_sessions(status.sessions);
  reply.set_instances(status.instances);
  reply.set_leases(status.leases);
  reply.set_pins(status.pins);
  reply.set_allocations(status.allocations);
  Put(status.ssd, reply.mutable_ssd());
  if (status.remote.has_value()) Put(*status.remote, reply.mutable_remote());
  reply.set_ops(status.ops);
  reply.set_filling(status.filling);
  reply.set_index_bytes(status.index.value);
  reply.set_lookups(status.lookups);
  reply.set_chunks_asked(status.chunks_asked);
  reply.set_chunks_hit(status.chunks_hit);
  reply.set_chunks_stored(status.chunks_stored);
  reply.set_chunks_loaded(status.chunks_loaded);
  reply.set_chunks_refused(status.chunks_refused);
  reply.set_evictions(status.evictions);
  Put(status.traffic, reply.mutable_traffic());
  for (const NodeStatus::Latency& latency : status.latencies) Put(latency, reply.add_latencies());
  for (const NodeStatus::Latency& wait : status.waits) Put(wait, reply.add_waits());
  return reply;
}

node::v1::SsdReply ToReply(const SsdStatus& ssd) {
  node::v1::SsdReply reply;
  Put(ssd.tier, reply.mutable_tier());
  for (const SsdStatus::Device& from : ssd.devices) {
    node::v1::SsdReply::Device& device = *reply.add_devices();
    device.set_number(static_cast<uint32_t>(reply.devices_size()) - 1);
    Put(from, &device);
  }
  reply.set_commits(ssd.commits);
  reply.set_commits_failed(ssd.commits_failed);
  reply.set_catalog(Text(ssd.catalog));
  reply.set_catalogs_set_aside(ssd.catalogs_set_aside);
  Put(ssd.recovery, reply.mutable_recovery());
  Put(ssd.scrub, reply.mutable_scrub());
  reply.set_chunks_written(ssd.chunks_written);
  reply.set_chunks_moved(ssd.chunks_moved);
  reply.set_chunks_reclaimed(ssd.chunks_reclaimed);
  reply.set_chunks_read(ssd.chunks_read);
  reply.set_writes_failed(ssd.writes_failed);
  reply.set_reads_failed(ssd.reads_failed);
  reply.set_chunks_corrupt(ssd.chunks_corrupt);
  reply.mutable_encoded()->set_chunks(ssd.encoded.chunks);
  reply.mutable_encoded()->set_bytes(ssd.encoded.bytes.value);
  reply.mutable_encoded()->set_slot_bytes(ssd.encoded.slot_bytes.value);
  return reply;
}

node::v1::SessionsReply ToReply(const Page<SessionStatus>& sessions) {
  node::v1::SessionsReply reply;
  reply.set_next(sessions.next);
  for (const SessionStatus& from : sessions.rows) {
    node::v1::SessionsReply::Session& session = *reply.add_sessions();
    session.set_id(from.id);
    session.set_instance(Text(from.instance));
    session.set_role(Text(from.role));
    session.set_rank(from.rank);
    session.set_tenant(Text(from.tenant));
    session.set_pid(from.pid);
    session.set_uid(from.uid);
    session.set_space(from.space.substr(0, kShownDigits));
    session.set_model(Text(from.model));
    session.set_age_seconds(absl::ToDoubleSeconds(from.age));
    session.set_ops(from.ops);
    session.set_requests(from.requests);
    Put(from.traffic, session.mutable_traffic());
  }
  return reply;
}

node::v1::ReloadReply ToReply(const ReloadResult& result) {
  node::v1::ReloadReply reply;
  for (const std::string& key : result.in_force) reply.add_in_force(Text(key));
  for (const std::string& key : result.needs_restart) reply.add_needs_restart(Text(key));
  return reply;
}

node::v1::Job ToReply(const JobStatus& job) {
  node::v1::Job reply;
  reply.set_id(job.id);
  reply.set_kind(job.kind);
  reply.set_space(job.space.substr(0, kShownDigits));
  reply.set_state(job.state);
  reply.set_done(job.done);
  reply.set_total(job.total);
  reply.set_chunks(job.chunks);
  reply.set_request(Text(job.request));
  reply.set_bytes(job.bytes.value);
  reply.set_already_there(job.already);
  reply.set_not_moved(job.left);
  reply.set_bytes_after(job.bytes_after.value);
  reply.set_relative_error(job.relative_error);
  reply.set_attention_error(job.attention_error);
  reply.set_trouble(Text(job.trouble));
  reply.set_tier(Text(job.tier));
  reply.set_resumed(job.resumed);
  const double seconds = absl::ToDoubleSeconds(job.took);
  reply.set_seconds(seconds);
  if (seconds > 0) reply.set_bytes_per_second(static_cast<double>(job.bytes.value) / seconds);
  if (job.running() && job.done > 0 && job.total > job.done)
    reply.set_seconds_left(seconds * static_cast<double>(job.total - job.done) / static_cast<double>(job.done));
  return reply;
}

node::v1::PromptJobsReply ToReply(const PromptJobs& jobs) {
  node::v1::PromptJobsReply reply;
  for (const JobStatus& job : jobs.jobs) *reply.add_jobs() = ToReply(job);
  reply.set_spaces(jobs.spaces);
  return reply;
}

node::v1::ListJobsReply ToReply(const std::vector<JobStatus>& jobs) {
  node::v1::ListJobsReply reply;
  for (const JobStatus& job : jobs) *reply.add_jobs() = ToReply(job);
  return reply;
}

node::v1::Quota ToReply(const QuotaStatus& quota) {
  node::v1::Quota reply;
  reply.set_tenant(Text(quota.tenant));
  reply.set_bytes(quota.bytes.value);
  reply.set_origin(quota.origin);
  reply.set_used_bytes(quota.used.value);
  reply.set_evictions(quota.evictions);
  reply.set_note(Text(quota.note));
  return reply;
}

node::v1::ListQuotasReply ToReply(const std::vector<QuotaStatus>& quotas) {
  node::v1::ListQuotasReply reply;
  for (const QuotaStatus& quota : quotas) *reply.add_quotas() = ToReply(quota);
  return reply;
}

node::v1::LookupReply ToReply(const std::vector<Found>& found) {
  node::v1::LookupReply reply;
  for (const Found& from : found) {
    node::v1::LookupReply::InSpace& space = *reply.add_spaces();
    space.set_digest(from.digest);
    space.set_tenant(Text(from.tenant));
    space.set_model(Text(from.model));
    space.set_chunk_tokens(from.chunk_tokens);
    space.set_key_scheme(Prompt::kKeyScheme);
    space.set_prompt_chunks(from.asked);
    space.set_chunks(from.chunks);
    space.set_tokens(uint64_t{from.chunks} * from.chunk_tokens);
    space.set_dram_tokens(uint64_t{from.chunks - from.on_disk} * from.chunk_tokens);
    space.set_ssd_tokens(uint64_t{from.on_disk} * from.chunk_tokens);
    space.set_remote_tokens(uint64_t{from.remote} * from.chunk_tokens);
    space.set_remote_tier(Text(from.remote_tier));
  }
  return reply;
}

node::v1::AddPinReply ToReply(const Pinned& pinned) {
  node::v1::AddPinReply reply;
  for (const PinStatus& pin : pinned.pins) *reply.add_pins() = ToReply(pin);
  reply.set_spaces(pinned.spaces);
  return reply;
}

node::v1::Pin ToReply(const PinStatus& pin) {
  node::v1::Pin reply;
  reply.set_id(pin.id);
  reply.set_owner(Text(pin.owner));
  reply.set_tenant(Text(pin.tenant));
  reply.set_space(pin.space.substr(0, kShownDigits));
  reply.set_model(Text(pin.model));
  reply.set_chunks(pin.chunks);
  reply.set_asked(pin.asked);
  reply.set_bytes(pin.bytes.value);
  reply.set_count(pin.count);
  reply.set_age_seconds(absl::ToDoubleSeconds(pin.age));
  if (pin.lasts != absl::InfiniteDuration())
    reply.set_seconds_left(std::max(absl::ToDoubleSeconds(pin.lasts), 1e-9));  // 0 is none
  return reply;
}

node::v1::ListPinsReply ToReply(const Page<PinStatus>& pins) {
  node::v1::ListPinsReply reply;
  reply.set_next(pins.next);
  for (const PinStatus& pin : pins.rows) *reply.add_pins() = ToReply(pin);
  return reply;
}

}  // namespace kvist::rpc
