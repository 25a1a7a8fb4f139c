#include "daemon/wiring.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "cuda/shared_memory_engine.h"
#include "daemon/core/core.h"
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

// The admin API's view of the node: each call is a task on the reactor, waited for.
class Node : public rpc::NodeControl {
 public:
  Node(session::Reactor* reactor, const pool::SlotAllocator* slots,
       const std::vector<std::unique_ptr<pool::PinnedRegion>>* regions, const Options& options)
      : reactor_(*reactor), slots_(*slots), regions_(*regions), options_(options) {}

  absl::StatusOr<rpc::NodeStatus> Status(absl::Time deadline) override {
    return Ask<rpc::NodeStatus>(deadline, [this](Answer<rpc::NodeStatus> answer) { answer(StatusNow()); });
  }
  absl::StatusOr<std::vector<rpc::SessionStatus>> Sessions(absl::Time deadline) override {
    return Ask<std::vector<rpc::SessionStatus>>(
        deadline, [this](Answer<std::vector<rpc::SessionStatus>> answer) { answer(SessionsNow()); });
  }
  absl::StatusOr<uint64_t> Clear(const std::string& space, absl::Time deadline) override {
    return Ask<uint64_t>(deadline, [this, space](Answer<uint64_t> answer) {
      std::optional<SpaceId> id;
      if (!space.empty()) {
        const std::vector<core::CoreStatus::SpaceRow> rows = reactor_.core().status().spaces;
        for (uint32_t i = 0; i < rows.size(); ++i) {
          if (Hex(rows[i].digest) == space) id = SpaceId{i};
        }
        if (!id.has_value()) return answer(absl::NotFoundError(absl::StrCat("no space ", space)));
      }
      reactor_.Clear(id, [answer](uint64_t chunks) { answer(chunks); });
    });
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
    return status;
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
      rows.push_back(std::move(row));
    });
    std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
    return rows;
  }

  session::Reactor& reactor_;
  const pool::SlotAllocator& slots_;
  const std::vector<std::unique_ptr<pool::PinnedRegion>>& regions_;
  const Options options_;
  const absl::Time started_ = MonotonicNow();
};

}  // namespace

// In the order in which they depend on each other; destroyed the other way round.
struct Daemon::State {
  std::vector<std::unique_ptr<pool::PinnedRegion>> regions;
  std::optional<pool::SlotAllocator> slots;
  std::unique_ptr<core::Core> core;
  std::unique_ptr<session::Reactor> reactor;
  std::unique_ptr<cuda::CopyEngine> copy_engine;
  std::unique_ptr<Node> node;
  std::unique_ptr<session::Listener> listener;
  std::unique_ptr<rpc::AdminServer> admin;

  ~State() {
    admin.reset();
    listener.reset();  // ends the sessions, returns when they are drained
    if (reactor) reactor->Stop();
  }
};

Daemon::Daemon() : state_(std::make_unique<State>()) {}
Daemon::~Daemon() = default;

rpc::NodeControl& Daemon::node() { return *state_->node; }

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(const Options& options, Parts parts) {
  auto daemon = std::unique_ptr<Daemon>(new Daemon);
  State& s = *daemon->state_;

  pool::SlotAllocator::Options slots;
  slots.slab_bytes = options.pool.slab_bytes;
  if (parts.pool_without_memory) {
    KVIST_CHECK(parts.copy_engine != nullptr);
    slots.regions.push_back(options.pool.bytes);
  } else {
    KVIST_ASSIGN_OR_RETURN(s.regions, MakeRegions(options.pool));
    slots.regions.assign(s.regions.size(), options.pool.bytes / s.regions.size());
  }
  KVIST_ASSIGN_OR_RETURN(pool::SlotAllocator allocator, pool::SlotAllocator::Create(std::move(slots)));
  s.slots.emplace(std::move(allocator));

  core::CoreOptions core;
  core.lease_max = options.lease.max;
  core.lease_share = options.lease.share;
  core.fill_timeout = options.lease.half_store;
  if (::getrandom(&core.seed, sizeof core.seed, 0) != sizeof core.seed) return ErrnoStatus("getrandom", errno);
  KVIST_RETURN_IF_ERROR(core.Validate());
  s.core = std::make_unique<core::Core>(core, &*s.slots);

  session::Reactor::Options reactor;
  reactor.cpu = options.session.reactor_cpu;
  const auto slot_memory = [&s](SlotRef slot) -> std::byte* {
    if (s.regions.empty()) return nullptr;
    const pool::SlotAllocator::Place place = s.slots->PlaceOf(slot);
    return s.regions[place.region]->data() + place.offset.value;
  };
  KVIST_ASSIGN_OR_RETURN(s.reactor, session::Reactor::Create(reactor, s.core.get(), slot_memory));

  auto copy_done = [raw = s.reactor.get()](OpId op, absl::Status status) { raw->CopyDone(op, std::move(status)); };
  if (parts.copy_engine) {
    s.copy_engine = parts.copy_engine(copy_done);
  } else {
    s.copy_engine = cuda::MakeSharedMemoryEngine({options.copy.threads, options.copy.cpus}, copy_done);
  }
  s.reactor->SetCopyEngine(s.copy_engine.get());
  s.node = std::make_unique<Node>(s.reactor.get(), &*s.slots, &s.regions, options);

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
  KVIST_ASSIGN_OR_RETURN(s.listener, session::Listener::Create(std::move(listener), s.reactor.get()));
  s.reactor->Start();

  KVIST_RETURN_IF_ERROR(MakeSocketDir(options.admin.socket));
  rpc::AdminServer::Options admin;
  admin.socket = options.admin.socket;
  admin.mode = options.admin.socket_mode;
  admin.group = options.admin.socket_group;
  admin.node = s.node.get();
  KVIST_ASSIGN_OR_RETURN(s.admin, rpc::AdminServer::Create(std::move(admin)));
  return daemon;
}

}  // namespace kvist::daemon
