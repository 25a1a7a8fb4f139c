#include "daemon/node.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/config_keys.h"
#include "daemon/core/core.h"
#include "daemon/node_rows.h"
#include "daemon/remote_view.h"
#include "daemon/ssd_view.h"
#include "storage/base/byte_text.h"
#include "storage/base/status.h"

namespace kvist::daemon {
namespace {

// Why a tenant's quota does not do what its author seems to want; "" when it does.
std::string NoteOn(const std::string& tenant, Bytes quota, const core::CoreStatus& core, Bytes pool) {
  if (quota > pool) return absl::StrCat("more than the pool, ", PrintBytes(pool), ": limits nothing");
  double together = 0;  // might not fit into an integer
  for (const auto& [other, bytes] : core.quotas) together += static_cast<double>(bytes.value);
  for (const core::CoreStatus::SpaceRow& space : core.spaces) {
    if (space.tenant != tenant || space.chunk_bytes <= quota) continue;
    return absl::StrCat("less than one chunk of ", space.model, ", ", PrintBytes(space.chunk_bytes), ": it can't store");
  }
  if (together > static_cast<double>(pool.value))
    return absl::StrCat("all quotas are more than the pool, ", PrintBytes(pool),
                        ": limits, and keeps nothing for the tenant");
  return "";
}

}  // namespace

Node::Node(session::Reactor* reactor, const pool::SlotAllocator* slots, const Regions* regions, Below below,
           const cuda::Gpus* gpus, JobKeeper* jobs, const Options& options, ReloadCall reload)
    : reactor_(*reactor),
      slots_(*slots),
      regions_(*regions),
      below_(std::move(below)),
      gpus_(gpus),
      jobs_(jobs),
      options_(options),
      reload_(std::move(reload)) {}

void Node::Configure(const Options& options) {
  configured_tenants_ = options.tenants;
  configured_quotas_ = options.quotas;
  for (const auto& [tenant, quota] : reactor_.core().status().quotas) {
    if (!options.quotas.contains(tenant)) reactor_.SetQuota(tenant, std::nullopt);
  }
  for (const auto& [tenant, quota] : options.quotas) reactor_.SetQuota(tenant, quota);
}

// ---- From other threads -----------------------------------------------------------------------------------------------------

absl::StatusOr<rpc::NodeStatus> Node::Status(absl::Time deadline) {
  return Ask<rpc::NodeStatus>(deadline, [this] { return StatusNow(); });
}

absl::StatusOr<rpc::SsdStatus> Node::Ssd(absl::Time deadline) {
  return Ask<rpc::SsdStatus>(
      deadline, [this] { return RowOf(below_.ssd, below_.why_no_ssd, reactor_.core().status(), options_.ssd); });
}

absl::StatusOr<rpc::Page<rpc::SessionStatus>> Node::Sessions(uint64_t after, absl::Time deadline) {
  return Ask<rpc::Page<rpc::SessionStatus>>(deadline, [this, after] { return SessionsNow(after); });
}

absl::StatusOr<rpc::JobStatus> Node::Clear(const rpc::ClearWish& wish, const std::string& request, absl::Time deadline) {
  KVIST_ASSIGN_OR_RETURN(const std::optional<core::Tier> tier, TierOf(wish));
  const absl::StatusOr<rpc::JobStatus> job =
      Ask<rpc::JobStatus>(deadline, [this, space = wish.space, tier, request] { return ClearNow(space, tier, request); });
  SettleJobs(deadline);
  return job;
}

absl::StatusOr<rpc::ReloadResult> Node::Reload(absl::Time deadline) {
  if (!reload_) return absl::UnimplementedError("this kvistd can't reload");
  return reload_(deadline);
}

absl::StatusOr<std::vector<rpc::JobStatus>> Node::Jobs(absl::Time deadline) {
  return Ask<std::vector<rpc::JobStatus>>(deadline, [this] {
    std::vector<rpc::JobStatus> jobs;
    const core::Core& core = reactor_.core();
    core.jobs().ForEach([&](const core::Job& job) { jobs.push_back(RowOf(job, RemoteName(), MonotonicNow())); });
    return jobs;
  });
}

absl::StatusOr<rpc::JobStatus> Node::Job(uint64_t id, absl::Time deadline) {
  return Ask<rpc::JobStatus>(deadline, [this, id] { return JobNow({id}); });
}

absl::StatusOr<rpc::JobStatus> Node::CancelJob(uint64_t id, absl::Time deadline) {
  const absl::StatusOr<rpc::JobStatus> job = Ask<rpc::JobStatus>(deadline, [this, id] {
    reactor_.CancelJob({id});
    return JobNow({id});
  });
  SettleJobs(deadline);
  return job;
}

// Whoever is told of a job finds it after a restart, too. A disk that is too slow for that, or fails, keeps nobody from the job itself.
void Node::SettleJobs(absl::Time deadline) {
  if (jobs_ != nullptr) jobs_->Settle(std::min(deadline, MonotonicNow() + kSettleTime));
}

// As of jobs: whoever is told of a pin, or of its end, finds that after a restart, too.
void Node::SettlePins(absl::Time deadline) {
  if (below_.ssd != nullptr) below_.ssd->SettlePins(std::min(deadline, MonotonicNow() + kSettleTime));
}

absl::StatusOr<std::vector<rpc::QuotaStatus>> Node::Quotas(absl::Time deadline) {
  return Ask<std::vector<rpc::QuotaStatus>>(deadline, [this] { return QuotasNow(); });
}

absl::StatusOr<rpc::QuotaStatus> Node::SetQuota(const std::string& tenant, Bytes bytes, absl::Time deadline) {
  return Ask<rpc::QuotaStatus>(deadline, [this, tenant, bytes] { return SetQuotaNow(tenant, bytes); });
}

absl::StatusOr<rpc::Page<rpc::PinStatus>> Node::Pins(uint64_t after, absl::Time deadline) {
  return Ask<rpc::Page<rpc::PinStatus>>(deadline, [this, after] { return PinsNow(after); });
}

absl::StatusOr<rpc::PinStatus> Node::RemovePin(uint64_t id, absl::Time deadline) {
  const absl::StatusOr<rpc::PinStatus> removed = Ask<rpc::PinStatus>(deadline, [this, id] { return RemovePinNow(id); });
  SettlePins(deadline);
  return removed;
}

// ---- On the reactor's thread ------------------------------------------------------------------------------------------------

rpc::NodeStatus Node::StatusNow() const {
  const core::CoreStatus core = reactor_.core().status();
  rpc::NodeStatus status;
  status.engine_socket = options_.session.socket;
  status.state_dir = options_.daemon.state_dir;
  status.uptime = MonotonicNow() - started_;
  status.pool_capacity = slots_.capacity();
  status.pool_used = slots_.live_bytes();
  status.pool_slots = slots_.live_slots();
  status.slab = slots_.slab_bytes();
  status.pool_regions = static_cast<uint32_t>(regions_.size());
  status.pool_locked = !regions_.empty();
  for (const auto& region : regions_) {
    status.pool_touched += region->touched();
    status.pool_page = region->report().page_size;
    status.pool_locked = status.pool_locked && region->report().locked;
  }
  for (const core::CoreStatus::SpaceRow& row : core.spaces)
    status.spaces.push_back({Hex(row.digest), row.tenant, row.model, row.chunks, row.bytes});
  status.sessions = core.sessions;
  status.instances = core.instances;
  status.leases = core.leases;
  status.pins = core.pins;
  status.allocations = core.allocations;
  status.pool_private = core.private_bytes;
  status.ops = core.ops;
  status.filling = core.filling;
  status.index = core.index_bytes;
  if (gpus_ != nullptr) {
    const cuda::Gpus::Figures gpus = gpus_->figures();
    status.pool_pinned = gpus.pinned;
    for (const auto& gpu : gpus.gpus) status.gpus.push_back({gpu.name, gpu.imported, std::string(gpu.lost.message())});
  }
  status.ssd = ShortRowOf(below_.ssd, below_.why_no_ssd, core, options_.ssd);
  if (below_.remote != nullptr) {
    status.remote = RowOf(below_.remote->status(), core);
  } else if (!below_.why_no_remote.empty()) {
    status.remote.emplace();
    status.remote->name = absl::StrCat("remote:", options_.remote.name);
    status.remote->store = options_.remote.store;
    status.remote->why_not = below_.why_no_remote;
  }
  status.lookups = core.lookups;
  status.chunks_asked = core.lookup_chunks_asked;
  status.chunks_hit = core.lookup_chunks_hit;
  status.chunks_stored = core.chunks_stored;
  status.chunks_loaded = core.chunks_loaded;
  status.chunks_refused = core.stores_refused;
  status.evictions = core.evictions;
  const session::Activity::Rows traffic = reactor_.Traffics();
  status.traffic = RowOf(traffic.Total());
  for (size_t i = 0; i < std::min(status.spaces.size(), traffic.spaces.size()); ++i)
    status.spaces[i].traffic = RowOf(traffic.spaces[i]);
  for (const session::Hook hook : session::kAllHooks)
    status.latencies.push_back({session::NameOf(hook), reactor_.latencies().hooks[static_cast<size_t>(hook)]});
  for (const session::Queue queue : session::kAllQueues)
    status.waits.push_back({session::NameOf(queue), reactor_.latencies().waits[static_cast<size_t>(queue)]});
  return status;
}

rpc::Page<rpc::SessionStatus> Node::SessionsNow(uint64_t after) const {
  std::vector<const session::EngineSession*> found;  // at most core::Sessions::kSessionsMax
  reactor_.ForEachSession([&](const session::EngineSession& session) {
    if (session.identity().id.value > after) found.push_back(&session);
  });
  const size_t shown = std::min(found.size(), rpc::kPageRows);
  std::partial_sort(found.begin(), found.begin() + static_cast<ptrdiff_t>(shown), found.end(),
                    [](const auto* a, const auto* b) { return a->identity().id < b->identity().id; });
  rpc::Page<rpc::SessionStatus> page;
  for (size_t i = 0; i < shown; ++i) page.rows.push_back(RowOf(*found[i]));
  if (shown < found.size()) page.next = page.rows.back().id;
  return page;
}

absl::StatusOr<rpc::JobStatus> Node::ClearNow(const std::string& space, std::optional<core::Tier> tier,
                                              const std::string& request) {
  std::optional<SpaceId> id;
  if (!space.empty()) {
    const std::vector<core::CoreStatus::SpaceRow> rows = reactor_.core().status().spaces;
    for (uint32_t i = 0; i < rows.size(); ++i) {
      if (Hex(rows[i].digest) == space) id = SpaceId{i};
    }
    if (!id.has_value()) return absl::NotFoundError(absl::StrCat("no space ", space));
  }
  const absl::StatusOr<core::JobId> job =
      tier.has_value() ? reactor_.ClearTier({.job = {}, .tier = *tier, .space = id}, request) : reactor_.Clear(id, request);
  if (!job.ok()) return job.status();
  return JobNow(*job);
}

absl::StatusOr<rpc::JobStatus> Node::JobNow(core::JobId id) const {
  const core::Job* job = reactor_.core().jobs().Find(id);
  if (job == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("no job ", id.value, " is listed: it never was, or ended before the last ", core::Jobs::kEndedKept));
  }
  return RowOf(*job, RemoteName(), MonotonicNow());
}

std::vector<rpc::QuotaStatus> Node::QuotasNow() const {
  const core::CoreStatus core = reactor_.core().status();
  std::map<std::string, rpc::QuotaStatus> rows;
  for (const core::CoreStatus::TenantRow& tenant : core.tenants) {
    rows[tenant.name].used = tenant.used;
    rows[tenant.name].evictions = tenant.evictions;
  }
  for (const auto& [tenant, quota] : core.quotas) {
    rpc::QuotaStatus& row = rows[tenant];
    row.bytes = quota;
    const auto configured = configured_quotas_.find(tenant);
    row.origin = configured != configured_quotas_.end() && configured->second == quota ? "configuration" : "runtime";
    row.note = NoteOn(tenant, quota, core, slots_.capacity());
  }
  std::vector<rpc::QuotaStatus> list;
  for (auto& [tenant, row] : rows) {
    row.tenant = tenant;
    list.push_back(std::move(row));
  }
  return list;
}

absl::StatusOr<rpc::QuotaStatus> Node::SetQuotaNow(const std::string& tenant, Bytes bytes) {
  if (const std::string allowed = CheckQuota(bytes); bytes != Bytes{} && !allowed.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a quota of ", PrintBytes(bytes), "; allowed: ", allowed, "; or unset it"));
  }
  const std::vector<rpc::QuotaStatus> before = QuotasNow();
  const bool known = std::any_of(before.begin(), before.end(), [&](const auto& row) { return row.tenant == tenant; });
  if (!known && !IsTenant(tenant, configured_tenants_)) {
    return absl::InvalidArgumentError(absl::StrCat("no engine can be of tenant ", Quoted(tenant),
                                                   "; allowed: one that [tenants] gives to a uid, or uid:N"));
  }
  reactor_.SetQuota(tenant, bytes == Bytes{} ? std::nullopt : std::optional(bytes));
  rpc::QuotaStatus now;  // as it is when it has none and hasn't come
  now.tenant = tenant;
  for (rpc::QuotaStatus& row : QuotasNow()) {
    if (row.tenant == tenant) now = std::move(row);
  }
  return now;
}

rpc::Page<rpc::PinStatus> Node::PinsNow(uint64_t after) const {
  const core::Core& core = reactor_.core();
  const core::PinPage found = core.PinsAfter(after, rpc::kPageRows);
  rpc::Page<rpc::PinStatus> page{.rows = {}, .next = found.next};
  for (const core::PinRow& pin : found.rows) page.rows.push_back(RowOf(pin, core));
  return page;
}

absl::StatusOr<rpc::PinStatus> Node::RemovePinNow(uint64_t id) {
  const core::Core& core = reactor_.core();
  const std::vector<core::PinRow> next = id == 0 ? std::vector<core::PinRow>() : core.PinsAfter(id - 1, 1).rows;
  if (next.empty() || next.front().number != id)
    return absl::NotFoundError(absl::StrCat("no pin ", id, ": `kvistctl pins` lists them"));
  rpc::PinStatus was = RowOf(next.front(), core);
  reactor_.RemovePin(next.front().space, next.front().name);
  return was;
}

}  // namespace kvist::daemon
