#include "daemon/wiring.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "cuda/shared_memory_engine.h"
#include "daemon/available_memory.h"
#include "daemon/config_keys.h"
#include "daemon/core/core.h"
#include "daemon/observation.h"
#include "daemon/rpc/admin_server.h"
#include "daemon/session/listener.h"
#include "daemon/session/reactor.h"
#include "daemon/socket_dir.h"
#include "spdlog/spdlog.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"
#include "storage/base/status.h"
#include "storage/pool/pinned_region.h"
#include "storage/pool/slot_allocator.h"

namespace kvist::daemon {
namespace {

std::string Hex(const SpaceDigest& digest) {
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size()));
}

rpc::Traffic ToRpc(const session::Traffic& from) {
  rpc::Traffic to;
  to.lookups = from.lookups();
  to.chunks_asked = from.chunks_asked;
  to.chunks_hit = from.chunks_hit;
  to.chunks_loaded = from.chunks_loaded;
  to.chunks_stored = from.chunks_stored;
  to.bytes_loaded = from.bytes_loaded;
  to.bytes_stored = from.bytes_stored;
  for (const uint64_t failed : from.failed) to.failed += failed;
  return to;
}

rpc::JobStatus ToRpc(const core::Job& from, const std::vector<core::CoreStatus::SpaceRow>& spaces) {
  rpc::JobStatus to;
  to.id = from.id.value;
  switch (from.kind) {
    case core::JobKind::kClear: to.kind = "clear"; break;
  }
  if (from.space.has_value()) to.space = Hex(spaces.at(from.space->value).digest);
  switch (from.state) {
    case core::JobState::kRunning: to.state = "running"; break;
    case core::JobState::kDone: to.state = "done"; break;
    case core::JobState::kCancelled: to.state = "cancelled"; break;
  }
  to.done = from.done;
  to.total = from.total;
  to.chunks = from.chunks;
  to.request = from.request;
  return to;
}

// The pool's memory, one region per NUMA node.
absl::StatusOr<std::vector<std::unique_ptr<pool::PinnedRegion>>> MakeRegions(const Options::Pool& options) {
  const std::vector<int> nodes = pool::UsableNumaNodes();
  std::vector<std::unique_ptr<pool::PinnedRegion>> regions;
  for (const int node : nodes) {
    pool::PinnedRegion::Options region;
    region.length = options.bytes / nodes.size();
    region.numa_node = nodes.size() > 1 ? node : -1;
    region.touch_threads = options.touch_threads;
    region.lock = options.lock;
    KVIST_ASSIGN_OR_RETURN(regions.emplace_back(), pool::PinnedRegion::Create(region));
    for (const std::string& warning : regions.back()->report().warnings) spdlog::warn("pool: {}", warning);
  }
  return regions;
}

// Why a tenant's quota does not do what its author seems to want; "" when it does.
std::string NoteOn(const std::string& tenant, Bytes quota, const core::CoreStatus& core, Bytes pool) {
  if (quota > pool) return absl::StrCat("more than the pool, ", PrintBytes(pool), ": limits nothing");
  for (const core::CoreStatus::SpaceRow& space : core.spaces) {
    if (space.tenant != tenant || space.chunk_bytes <= quota) continue;
    return absl::StrCat("less than one chunk of ", space.model, ", ", PrintBytes(space.chunk_bytes), ": it can't store");
  }
  return "";
}

core::CoreOptions ToCoreOptions(const Options& options) {
  core::CoreOptions core;
  core.lease_max = options.lease.max;
  core.lease_share = options.lease.share;
  core.fill_timeout = options.lease.half_store;
  core.pin_share = options.pin.share;
  core.private_share = options.swap.share;
  core.quotas = options.quotas;
  return core;
}

// Chunk keys are nobody's business outside the node, so pins are named by a hash of theirs that is seeded anew in each process.
std::string PinIdOf(const core::PinRow& pin) {
  const size_t hash = absl::HashOf(pin.space.value, pin.name.owner, pin.name.key.bytes, pin.name.asked);
  return absl::StrCat(absl::Hex(hash, absl::kZeroPad16));
}

rpc::PinStatus ToRpc(const core::PinRow& pin, const std::vector<core::CoreStatus::SpaceRow>& spaces) {
  const core::CoreStatus::SpaceRow& space = spaces[pin.space.value];
  return {.id = PinIdOf(pin),
          .owner = pin.name.owner,
          .tenant = space.tenant,
          .space = Hex(space.digest),
          .model = space.model,
          .chunks = pin.chunks,
          .asked = pin.name.asked,
          .bytes = pin.bytes,
          .count = pin.count,
          .age = pin.age};
}

// The admin API's view of the node: each call is a task on the reactor, waited for.
class Node : public rpc::NodeControl {
 public:
  Node(session::Reactor* reactor, const pool::SlotAllocator* slots,
       const std::vector<std::unique_ptr<pool::PinnedRegion>>* regions, const Options& options,
       decltype(Parts::reload) reload)
      : reactor_(*reactor), slots_(*slots), regions_(*regions), options_(options), reload_(std::move(reload)) {}

  absl::StatusOr<rpc::NodeStatus> Status(absl::Time deadline) override {
    return Ask<rpc::NodeStatus>(deadline, [this](Answer<rpc::NodeStatus> answer) { answer(StatusNow()); });
  }
  absl::StatusOr<std::vector<rpc::SessionStatus>> Sessions(absl::Time deadline) override {
    return Ask<std::vector<rpc::SessionStatus>>(
        deadline, [this](Answer<std::vector<rpc::SessionStatus>> answer) { answer(SessionsNow()); });
  }
  absl::StatusOr<rpc::JobStatus> Clear(const std::string& space, const std::string& request, absl::Time deadline) override {
    return Ask<rpc::JobStatus>(deadline, [this, space, request](Answer<rpc::JobStatus> answer) {
      std::optional<SpaceId> id;
      if (!space.empty()) {
        const std::vector<core::CoreStatus::SpaceRow> rows = reactor_.core().status().spaces;
        for (uint32_t i = 0; i < rows.size(); ++i) {
          if (Hex(rows[i].digest) == space) id = SpaceId{i};
        }
        if (!id.has_value()) return answer(absl::NotFoundError(absl::StrCat("no space ", space)));
      }
      const absl::StatusOr<core::JobId> job = reactor_.Clear(id, request);
      if (!job.ok()) return answer(job.status());
      answer(JobNow(*job));
    });
  }
  absl::StatusOr<std::vector<rpc::JobStatus>> Jobs(absl::Time deadline) override {
    return Ask<std::vector<rpc::JobStatus>>(deadline, [this](Answer<std::vector<rpc::JobStatus>> answer) {
      std::vector<rpc::JobStatus> jobs;
      const std::vector<core::CoreStatus::SpaceRow> spaces = reactor_.core().status().spaces;
      reactor_.core().jobs().ForEach([&](const core::Job& job) { jobs.push_back(ToRpc(job, spaces)); });
      answer(std::move(jobs));
    });
  }
  absl::StatusOr<rpc::JobStatus> Job(uint64_t id, absl::Time deadline) override {
    return Ask<rpc::JobStatus>(deadline, [this, id](Answer<rpc::JobStatus> answer) { answer(JobNow(core::JobId{id})); });
  }
  absl::StatusOr<rpc::JobStatus> CancelJob(uint64_t id, absl::Time deadline) override {
    return Ask<rpc::JobStatus>(deadline, [this, id](Answer<rpc::JobStatus> answer) {
      reactor_.CancelJob(core::JobId{id});
      answer(JobNow(core::JobId{id}));
    });
  }

  absl::StatusOr<std::vector<rpc::QuotaStatus>> Quotas(absl::Time deadline) override {
    return Ask<std::vector<rpc::QuotaStatus>>(deadline,
                                              [this](Answer<std::vector<rpc::QuotaStatus>> answer) { answer(QuotasNow()); });
  }
  absl::StatusOr<rpc::QuotaStatus> SetQuota(const std::string& tenant, Bytes bytes, absl::Time deadline) override {
    return Ask<rpc::QuotaStatus>(deadline, [this, tenant, bytes](Answer<rpc::QuotaStatus> answer) {
      if (const std::string allowed = CheckQuota(bytes); bytes != Bytes{} && !allowed.empty()) {
        return answer(absl::InvalidArgumentError(
            absl::StrCat("a quota of ", PrintBytes(bytes), "; allowed: ", allowed, "; or unset it")));
      }
      const std::vector<rpc::QuotaStatus> before = QuotasNow();
      const bool known = std::any_of(before.begin(), before.end(), [&](const auto& row) { return row.tenant == tenant; });
      if (!known && !IsTenant(tenant, configured_tenants_)) {
        return answer(absl::InvalidArgumentError(absl::StrCat("no engine can be of tenant ", Quoted(tenant),
                                                              "; allowed: one that [tenants] gives to a uid, or uid:N")));
      }
      reactor_.SetQuota(tenant, bytes == Bytes{} ? std::nullopt : std::optional(bytes));
      rpc::QuotaStatus now;  // as it is when it has none and hasn't come
      now.tenant = tenant;
      for (rpc::QuotaStatus& row : QuotasNow()) {
        if (row.tenant == tenant) now = std::move(row);
      }
      answer(std::move(now));
    });
  }
  absl::StatusOr<std::vector<rpc::PinStatus>> Pins(absl::Time deadline) override {
    return Ask<std::vector<rpc::PinStatus>>(deadline, [this](Answer<std::vector<rpc::PinStatus>> answer) {
      std::vector<rpc::PinStatus> pins;
      const std::vector<core::CoreStatus::SpaceRow> spaces = reactor_.core().status().spaces;
      for (const core::PinRow& pin : reactor_.core().pins()) pins.push_back(ToRpc(pin, spaces));
      answer(std::move(pins));
    });
  }
  absl::StatusOr<rpc::PinStatus> RemovePin(const std::string& id, absl::Time deadline) override {
    return Ask<rpc::PinStatus>(deadline, [this, id](Answer<rpc::PinStatus> answer) {
      for (const core::PinRow& pin : reactor_.core().pins()) {
        if (PinIdOf(pin) != id) continue;
        rpc::PinStatus was = ToRpc(pin, reactor_.core().status().spaces);
        reactor_.RemovePin(pin.space, pin.name);
        return answer(std::move(was));
      }
      answer(absl::NotFoundError(absl::StrCat("no pin ", Quoted(id), ": kvistctl pins lists them")));
    });
  }
  // The tenants and quotas of the configuration are in force from now on, and no others. On the reactor's thread.
  void Configure(const Options& options) {
    configured_tenants_ = options.tenants;
    configured_quotas_ = options.quotas;
    for (const auto& [tenant, quota] : reactor_.core().status().quotas) {
      if (!options.quotas.contains(tenant)) reactor_.SetQuota(tenant, std::nullopt);
    }
    for (const auto& [tenant, quota] : options.quotas) reactor_.SetQuota(tenant, quota);
  }

  absl::StatusOr<rpc::ReloadResult> Reload(absl::Time deadline) override {
    if (!reload_) return absl::UnimplementedError("this kvistd can't reload");
    return reload_(deadline);
  }

 private:
  template <class T>
  using Answer = std::function<void(absl::StatusOr<T>)>;

  // Has `question` asked on the reactor's thread, and waits for its answer; the answer may come after nobody waits any more.
  template <class T>
  absl::StatusOr<T> Ask(absl::Time deadline, std::function<void(Answer<T>)> question) {
    struct Waiting {
      absl::Notification answered;
      absl::StatusOr<T> answer = absl::UnavailableError("kvistd is stopping");
    };
    auto waiting = std::make_shared<Waiting>();
    reactor_.Run([question = std::move(question), waiting] {
      question([waiting](absl::StatusOr<T> answer) {
        waiting->answer = std::move(answer);
        waiting->answered.Notify();
      });
    });
    if (!waiting->answered.WaitForNotificationWithTimeout(deadline - MonotonicNow())) {
      return absl::DeadlineExceededError("the node didn't answer in time; what it was asked to do goes on");
    }
    return waiting->answer;
  }

  absl::StatusOr<rpc::JobStatus> JobNow(core::JobId id) {
    const core::Job* job = reactor_.core().jobs().Find(id);
    if (job == nullptr) {
      return absl::NotFoundError(
          absl::StrCat("no job ", id.value, " is listed: it never was, or ended before the last ", core::Jobs::kEndedKept));
    }
    return ToRpc(*job, reactor_.core().status().spaces);
  }

  rpc::NodeStatus StatusNow() {
    const core::CoreStatus core = reactor_.core().status();
    rpc::NodeStatus status;
    status.engine_socket = options_.session.socket;
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
    status.lookups = core.lookups;
    status.chunks_asked = core.lookup_chunks_asked;
    status.chunks_hit = core.lookup_chunks_hit;
    status.chunks_stored = core.chunks_stored;
    status.chunks_loaded = core.chunks_loaded;
    status.chunks_refused = core.stores_refused;
    status.evictions = core.evictions;
    const session::Activity::Rows traffic = reactor_.Traffics();
    status.traffic = ToRpc(traffic.Total());
    for (size_t i = 0; i < std::min(status.spaces.size(), traffic.spaces.size()); ++i)
      status.spaces[i].traffic = ToRpc(traffic.spaces[i]);
    for (const session::Hook hook : session::kAllHooks)
      status.latencies.push_back({session::NameOf(hook), reactor_.latencies().hooks[static_cast<size_t>(hook)]});
    for (const session::Queue queue : session::kAllQueues)
      status.waits.push_back({session::NameOf(queue), reactor_.latencies().waits[static_cast<size_t>(queue)]});
    return status;
  }

  std::vector<rpc::QuotaStatus> QuotasNow() {
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

  std::vector<rpc::SessionStatus> SessionsNow() {
    std::vector<rpc::SessionStatus> rows;
    reactor_.ForEachSession([&](const session::EngineSession& s) {
      rpc::SessionStatus row;
      row.id = s.identity().id.value;
      row.instance = s.registration().instance;
      row.role = s.registration().role == core::Role::kScheduler ? "scheduler" : "worker";
      row.rank = s.registration().rank.value;
      row.tenant = s.registration().space.tenant;
      row.pid = static_cast<uint32_t>(s.identity().pid);
      row.uid = s.identity().uid;
      row.space = Hex(s.registration().space.digest);
      row.model = s.registration().space.model;
      row.age = MonotonicNow() - s.identity().opened;
      row.ops = s.ops_in_flight();
      row.requests = s.requests();
      row.traffic = ToRpc(s.traffic());
      rows.push_back(std::move(row));
    });
    std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
    return rows;
  }

  session::Reactor& reactor_;
  const pool::SlotAllocator& slots_;
  const std::vector<std::unique_ptr<pool::PinnedRegion>>& regions_;
  const Options options_;
  const decltype(Parts::reload) reload_;
  std::map<std::string, std::string> configured_tenants_ = options_.tenants;  // the reactor thread's own, as are the quotas
  std::map<std::string, Bytes> configured_quotas_ = options_.quotas;
  const absl::Time started_ = MonotonicNow();
};

}  // namespace

// In the order in which they depend on each other; destroyed the other way round.
struct Daemon::State {
  std::vector<std::unique_ptr<pool::PinnedRegion>> regions;
  std::optional<pool::SlotAllocator> slots;
  std::unique_ptr<core::Core> core;
  std::unique_ptr<session::Reactor> reactor;
  std::unique_ptr<Observation> observation;  // the first that is there, and gone only when the reactor has stopped
  std::unique_ptr<cuda::CopyEngine> copy_engine;
  std::unique_ptr<Node> node;
  std::unique_ptr<session::Listener> listener;
  std::unique_ptr<rpc::AdminServer> admin;

  ~State() {
    if (observation) observation->Stopping();
    admin.reset();
    listener.reset();  // ends the sessions, returns when they are drained
    if (reactor) reactor->Stop();
    observation.reset();
  }
};

Daemon::Daemon() : state_(std::make_unique<State>()) {}
Daemon::~Daemon() = default;

rpc::NodeControl& Daemon::node() { return *state_->node; }

void Daemon::RunOnReactor(std::function<void()> task) { state_->reactor->Run(std::move(task)); }

absl::Status Daemon::Apply(const Options& options, absl::Time deadline) {
  struct Taken {  // they may come after nobody waits any more
    absl::Notification core, listener;
  };
  const auto taken = std::make_shared<Taken>();
  state_->reactor->Run([reactor = state_->reactor.get(), node = state_->node.get(), options, taken] {
    reactor->core().Retune(ToCoreOptions(options));
    node->Configure(options);
    taken->core.Notify();
  });
  state_->listener->Retune(options.session.connections_max, options.tenants, [taken] { taken->listener.Notify(); });
  if (!taken->core.WaitForNotificationWithTimeout(deadline - MonotonicNow()) ||
      !taken->listener.WaitForNotificationWithTimeout(deadline - MonotonicNow())) {
    return absl::DeadlineExceededError(
        "kvistd is busy: the configuration was taken over, but isn't in force everywhere yet");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(const Options& options, Parts parts) {
  auto daemon = std::unique_ptr<Daemon>(new Daemon);
  State& s = *daemon->state_;
  KVIST_ASSIGN_OR_RETURN(s.observation, Observation::Start(options));

  pool::SlotAllocator::Options slots;
  slots.slab_bytes = options.pool.slab_bytes;
  if (parts.pool_without_memory) {
    KVIST_CHECK(parts.copy_engine != nullptr);
    slots.regions.push_back(options.pool.bytes);
  } else {
    KVIST_RETURN_IF_ERROR(CheckAddressSpace(options.pool.bytes));
    KVIST_ASSIGN_OR_RETURN(s.regions, MakeRegions(options.pool));
    slots.regions.assign(s.regions.size(), options.pool.bytes / s.regions.size());
  }
  KVIST_ASSIGN_OR_RETURN(pool::SlotAllocator allocator, pool::SlotAllocator::Create(std::move(slots)));
  s.slots.emplace(std::move(allocator));
  s.observation->PoolMapped(s.slots->capacity());

  core::CoreOptions core = ToCoreOptions(options);
  if (::getrandom(&core.seed, sizeof core.seed, 0) != sizeof core.seed) return ErrnoStatus("getrandom", errno);
  KVIST_RETURN_IF_ERROR(core.Validate());
  s.core = std::make_unique<core::Core>(core, &*s.slots);

  session::Reactor::Options reactor;
  reactor.cpu = options.session.reactor_cpu;
  reactor.tenants = TenantsWithSeries(options);
  const auto slot_memory = [&s](SlotRef slot) -> std::byte* {
    if (s.regions.empty()) return nullptr;
    const pool::SlotAllocator::Place place = s.slots->PlaceOf(slot);
    return s.regions[place.region]->data() + place.offset.value;
  };
  KVIST_ASSIGN_OR_RETURN(s.reactor, session::Reactor::Create(reactor, s.core.get(), slot_memory));

  s.reactor->OnCorruption([raw = s.core.get()](SpaceId space, uint32_t chunks) {
    spdlog::error(
        "{} in DRAM held other bytes than were stored (pool.verify) and will not be served again: space {}; memory may be "
        "failing",
        chunks == 1 ? "a chunk" : absl::StrCat(chunks, " chunks"), Hex(raw->status().spaces[space.value].digest));
  });
  auto copy_done = [raw = s.reactor.get()](OpId op, cuda::CopyEnd end) { raw->CopyDone(op, std::move(end)); };
  if (parts.copy_engine) {
    s.copy_engine = parts.copy_engine(copy_done);
  } else {
    const auto verify = options.pool.verify == "always" ? cuda::Verify::kAlways : cuda::Verify::kNever;
    s.copy_engine = cuda::MakeSharedMemoryEngine({options.copy.threads, options.copy.cpus, verify}, copy_done);
  }
  s.reactor->SetCopyEngine(s.copy_engine.get());
  s.node = std::make_unique<Node>(s.reactor.get(), &*s.slots, &s.regions, options, std::move(parts.reload));

  KVIST_RETURN_IF_ERROR(MakeSocketDir(options.session.socket));
  session::Listener::Options listener;
  listener.socket = options.session.socket;
  listener.mode = options.session.socket_mode;
  listener.group = options.session.socket_group;
  listener.connections_max = options.session.connections_max;
  listener.connections_per_uid = options.session.connections_per_uid;
  listener.tenants = options.tenants;
  listener.log = [](bool warning, const std::string& text) {
    spdlog::log(warning ? spdlog::level::warn : spdlog::level::info, "{}", text);
  };
  listener.ended = [observation = s.observation.get()](session::Ending ending) { observation->Count(ending); };
  KVIST_ASSIGN_OR_RETURN(s.listener, session::Listener::Create(std::move(listener), s.reactor.get()));
  s.reactor->Start();
  s.observation->EngineSocketOpen(options.session.socket);
  s.observation->ReactorStarted(s.reactor.get(), [&s, started = MonotonicNow()](metrics::Figures* figures) {
    figures->pool_capacity = s.slots->capacity();
    figures->pool_used = s.slots->live_bytes();
    figures->pool_slots = s.slots->live_slots();
    for (const auto& region : s.regions) figures->pool_touched += region->touched();
    figures->uptime = MonotonicNow() - started;
  });

  KVIST_RETURN_IF_ERROR(MakeSocketDir(options.admin.socket));
  rpc::AdminServer::Options admin;
  admin.socket = options.admin.socket;
  admin.mode = options.admin.socket_mode;
  admin.group = options.admin.socket_group;
  admin.node = s.node.get();
  KVIST_ASSIGN_OR_RETURN(s.admin, rpc::AdminServer::Create(std::move(admin)));
  s.observation->AdminSocketOpen(options.admin.socket);
  return daemon;
}

}  // namespace kvist::daemon
