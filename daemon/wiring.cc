#include "daemon/wiring.h"

#include <sys/random.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "cuda/copy_engines.h"
#include "cuda/gpu_engine.h"
#include "cuda/gpus.h"
#include "cuda/shared_memory_engine.h"
#include "daemon/available_memory.h"
#include "daemon/chunk_feed.h"
#include "daemon/config_keys.h"
#include "daemon/config_rules.h"
#include "daemon/controller/controller_service.h"
#include "daemon/controller/feed_service.h"
#include "daemon/controller/local_node.h"
#include "daemon/controller/nodes.h"
#include "daemon/core/core.h"
#include "daemon/corruption_log.h"
#include "daemon/endpoint/tls_files_in_force.h"
#include "daemon/job_file.h"
#include "daemon/job_keeper.h"
#include "daemon/logging.h"
#include "daemon/node.h"
#include "daemon/node_rows.h"
#include "daemon/observation.h"
#include "daemon/remote_options.h"
#include "daemon/remote_tier.h"
#include "daemon/remote_view.h"
#include "daemon/rpc/admin_server.h"
#include "daemon/rpc/tls_server.h"
#include "daemon/session/listener.h"
#include "daemon/session/memory_proof.h"
#include "daemon/session/reactor.h"
#include "daemon/socket_dir.h"
#include "daemon/ssd_options.h"
#include "daemon/ssd_tier.h"
#include "daemon/ssd_view.h"
#include "daemon/warm_pool.h"
#include "spdlog/spdlog.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"
#include "storage/base/log_subject.h"
#include "storage/base/status.h"
#include "storage/pool/memory_file.h"
#include "storage/pool/memory_limit.h"
#include "storage/pool/pinned_region.h"
#include "storage/pool/region_plan.h"
#include "storage/pool/slot_allocator.h"

namespace kvist::daemon {
namespace {

// The pool's memory, in files where it outlives this process.
absl::StatusOr<std::vector<std::unique_ptr<pool::PinnedRegion>>> MakeRegions(const Options::Pool& options,
                                                                             const std::vector<pool::RegionPlan>& plans,
                                                                             const WarmPool* warm) {
  std::vector<std::unique_ptr<pool::PinnedRegion>> regions;
  for (const pool::RegionPlan& plan : plans) {
    pool::PinnedRegion::Options region;
    region.length = plan.length;
    region.numa_node = plan.numa_node;
    region.file = warm != nullptr ? warm->file(regions.size()) : -1;
    region.touch_threads = options.touch_threads;
    region.lock = options.lock;
    KVIST_ASSIGN_OR_RETURN(std::unique_ptr<pool::PinnedRegion> made, pool::PinnedRegion::Create(region));
    for (const std::string& warning : made->report().warnings) spdlog::warn("pool: {}", warning);
    regions.push_back(std::move(made));
  }
  return regions;
}

// The pool that outlives this process; none where it isn't to be kept, or can't be.
std::unique_ptr<WarmPool> OpenWarmPool(const Options::Pool& options, std::vector<Bytes> regions, FileKeeper keeper) {
  if (options.keep == "never") {
    for (const auto& [name, file] : keeper.kept) keeper.drop(name);
    return nullptr;
  }
  WarmPool::Shape shape{
      .regions = std::move(regions), .slab_bytes = options.slab_bytes, .checksums = options.verify == "always"};
  const bool may_make = options.keep == "always" || !pool::MemoryFileHasSmallPages(options.bytes);
  absl::StatusOr<std::unique_ptr<WarmPool>> warm = WarmPool::Open(std::move(shape), std::move(keeper), may_make);
  if (!warm.ok()) {
    spdlog::warn("what the pool holds ends with kvistd: {}", std::string(warm.status().message()));
    return nullptr;
  }
  if (*warm == nullptr) {
    spdlog::info(
        "what the pool holds ends with kvistd: to keep it over a restart without losing its huge pages, write advise to "
        "/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  }
  return *std::move(warm);
}

core::CoreOptions ToCoreOptions(const Options& options) {
  core::CoreOptions core;
  core.lease_max = options.lease.max;
  core.lease_share = options.lease.share;
  core.fill_timeout = options.lease.half_store;
  core.eviction = options.eviction.policy == "lru" ? core::Eviction::kLru : core::Eviction::kLhd;
  core.pin_share = options.pin.share;
  core.private_share = options.swap.share;
  core.quotas = options.quotas;
  core.gate = options.ssd.gate;
  return core;
}

// Without a file engines on GPUs of other users have to be started again after kvistd; nothing else depends on it.
absl::StatusOr<session::MemoryProofs> OpenProofs(const Options& options) {
  if (options.daemon.state_dir.empty()) return session::MemoryProofs::Ephemeral();
  absl::StatusOr<session::MemoryProofs> proofs = session::MemoryProofs::Open(options.daemon.state_dir + "/memory_proof.key");
  if (proofs.ok()) return proofs;
  spdlog::warn("other users' engines on GPUs will have to be restarted after kvistd was: {}",
               std::string(proofs.status().message()));
  return session::MemoryProofs::Ephemeral();
}

// A turn of the listener's loop is far shorter.
constexpr absl::Duration kListenerTime = absl::Milliseconds(500);
constexpr int kLostPinsTold = 16;  // each a line of the log

// What is pinned for GPUs at once: whole slabs, so that no slot, and so no copy, crosses a border.
Bytes PinnedAtOnce(const Options::Pool& options) {
  const uint64_t slabs = std::max<uint64_t>(1, GiB(1) / options.slab_bytes);
  return options.slab_bytes * slabs;
}

// Where the store of the SSD tier is to be, or why there is none.
struct SsdStore {
  std::optional<ssd::StoreOptions> options;
  std::string none;
};

// None, said in the log, where there is no room for a tier and none was asked for.
absl::StatusOr<SsdStore> SsdStoreOf(const Options& options, bool pool_without_memory) {
  if (!options.ssd.enabled) return SsdStore{{}, "ssd.enabled is false in kvistd's configuration"};
  if (options.ssd.path.empty()) return SsdStore{{}, "ssd.path names no directory"};
  if (pool_without_memory) return SsdStore{{}, "this kvistd's pool has no memory"};
  absl::StatusOr<ssd::StoreOptions> store = StoreOptionsOf(options);
  if (store.ok()) return SsdStore{*std::move(store), ""};
  if (!absl::IsResourceExhausted(store.status()) || options.ssd.capacity != Bytes{}) return store.status();
  spdlog::warn("no SSD tier: {}", std::string(store.status().message()));
  return SsdStore{{}, std::string(store.status().message())};
}

}  // namespace

// In the order in which they depend on each other; destroyed the other way round.
struct Daemon::State {
  std::unique_ptr<WarmPool> warm;
  std::vector<std::unique_ptr<pool::PinnedRegion>> regions;
  std::unique_ptr<cuda::Gpus> gpus;
  std::optional<session::MemoryProofs> memory_proofs;
  std::optional<pool::SlotAllocator> slots;
  std::unique_ptr<core::Core> core;
  std::unique_ptr<JobKeeper> jobs;  // none where nothing outlives the daemon
  std::unique_ptr<session::Reactor> reactor;
  std::unique_ptr<Observation> observation;  // the first that is there, and gone only when the reactor has stopped
  std::unique_ptr<cuda::CopyEngine> copy_engine;
  std::unique_ptr<session::DiskTier> disk_tier;
  SsdTier* ssd = nullptr;     // it, when it is the product's
  absl::Duration stop_flush;  // zero until there is something to flush
  std::unique_ptr<RemoteTier> remote;
  std::string why_no_remote;  // though one is configured
  std::unique_ptr<Node> node;
  std::unique_ptr<ChunkFeed> chunk_feed;
  std::unique_ptr<session::Listener> listener;
  std::unique_ptr<rpc::AdminServer> admin;
  std::unique_ptr<endpoint::TlsFilesInForce> tls_files;
  std::unique_ptr<rpc::TlsServer> admin_by_tls;

  std::vector<pool::RegionPlan> plans;  // until the reactor has them
  std::string no_ssd;                   // why there is no SSD tier

  // Start, step by step; each needs those before it. From Begin on there are threads of all parts.
  absl::Status MakePool(const Options& options, Parts* parts);
  absl::Status MakeCore(const Options& options, Parts* parts);  // and the tiers below
  absl::Status MakeReactor(const Options& options);
  absl::Status MakeCopyEngine(const Options& options, Parts* parts);
  void JoinTiers(Parts* parts);
  void MakeNode(const Options& options, Parts* parts);
  absl::Status ListenToEngines(const Options& options);
  void Begin(const Options& options);
  void Observe(const Options& options);
  absl::Status ServeOperators(const Options& options);

  // Opens the SSD tier, or says why there is none. What lies there and can't be used costs the tier, never the start: a cache that is
  // lost must not take the node with it. Errors: the configuration's.
  absl::StatusOr<std::string> OpenSsd(const Options& options, Parts* parts, core::CoreOptions* of_core);
  // Opens the tier beyond the node, where there is one; what it has on this node and can't be used costs the tier. Errors: the configuration's.
  absl::Status OpenRemote(const Options& options, core::CoreOptions* of_core);
  // Keeps jobs in `path` from now on, and goes on with those that are there.
  void GoOnWithJobs(const std::string& path);
  void FlushAll();
  ~State() {
    if (observation) observation->Stopping();
    for (const auto& region : regions) region->StopTouching();
    if (chunk_feed) chunk_feed->Close();
    admin_by_tls.reset();
    admin.reset();
    listener.reset();  // ends the sessions, returns when they are drained
    if (ssd != nullptr && stop_flush > absl::ZeroDuration()) FlushAll();
    if (reactor) reactor->Stop();
    observation.reset();
  }
};

absl::StatusOr<std::string> Daemon::State::OpenSsd(const Options& options, Parts* parts, core::CoreOptions* of_core) {
  KVIST_ASSIGN_OR_RETURN(SsdStore store, SsdStoreOf(options, regions.empty()));
  if (!store.options.has_value()) return store.none;
  const ssd::Checksums checksums = options.pool.verify == "always" ? ssd::Checksums::kKeep : ssd::Checksums::kCompute;
  if (parts->ssd_device) store.options->open_device = std::move(parts->ssd_device);
  store.options->before_step = std::move(parts->ssd_step);
  KVIST_RETURN_IF_ERROR(store.options->Validate());
  const core::CoreOptions::Disk disk{.capacity = store.options->capacity};
  absl::StatusOr<std::unique_ptr<SsdTier>> tier = SsdTier::Open(*std::move(store.options), checksums);
  if (!tier.ok()) {
    const std::string why(tier.status().message());
    spdlog::error("no SSD tier until the next start, engines are served from DRAM alone: {}", why);
    observation->SsdMissing(why);
    return why;
  }
  for (const ssd::Store::DeviceRow& device : (*tier)->status().store.devices) {
    for (const std::string& warning : device.warnings) spdlog::warn("{}: {}", device.directory, warning);
  }
  (*tier)->OnFreed(std::move(parts->ssd_freed));
  ssd = tier->get();
  disk_tier = *std::move(tier);
  of_core->disk = disk;
  return "";
}

absl::Status Daemon::State::OpenRemote(const Options& options, core::CoreOptions* of_core) {
  if (options.remote.store.empty() || regions.empty()) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<RemoteTier>> tier = OpenRemoteTier(options);
  if (!tier.ok()) {
    const bool configured_wrongly = absl::IsInvalidArgument(tier.status()) || absl::IsFailedPrecondition(tier.status()) ||
                                    absl::IsNotFound(tier.status()) || absl::IsPermissionDenied(tier.status());
    if (configured_wrongly) return tier.status();
    why_no_remote = std::string(tier.status().message());
    spdlog::error("no remote tier until the next start: {}", why_no_remote);
    observation->RemoteMissing(why_no_remote);
    return absl::OkStatus();
  }
  remote = *std::move(tier);
  // What is being written is held: a sixteenth of a small pool.
  core::CoreOptions::Remote of_remote;
  of_remote.writing = std::min(of_remote.writing, options.pool.bytes / 16);
  of_core->remote = of_remote;
  return absl::OkStatus();
}

void Daemon::State::GoOnWithJobs(const std::string& path) {
  JobFile kept = JobFile::Take(path);
  const auto ran =
      std::count_if(kept.jobs.begin(), kept.jobs.end(), [](const session::ListedJob& job) { return job.asked != nullptr; });
  if (ran > 0) spdlog::info("{} jobs that ran when kvistd ended last go on", ran);
  jobs = std::make_unique<JobKeeper>(path);
  // Numbers are never given twice: also not that of one which has left the list since.
  reactor->OnJobs([keeper = jobs.get(), last = kept.last](std::vector<session::ListedJob> listed) mutable {
    for (const session::ListedJob& job : listed) last = std::max(last, job.job.id);
    keeper->Keep({std::move(listed), last});
  });
  reactor->GoOnWith(std::move(kept.jobs), kept.last);
}

void Daemon::State::FlushAll() {
  struct Ended {
    absl::Notification said;
    absl::Status status;
    uint64_t chunks = 0;
  };
  const auto ended = std::make_shared<Ended>();  // it may come after nobody waits any more
  reactor->Flush([ended](const core::Flushed& flushed) {
    ended->status = flushed.status;
    ended->chunks = flushed.chunks;
    ended->said.Notify();
  });
  if (!ended->said.WaitForNotificationWithTimeout(stop_flush)) {
    spdlog::warn("not everything could be written to the SSD tier within ssd.stop_flush, {}",
                 absl::FormatDuration(stop_flush));
  } else if (!ended->status.ok()) {
    spdlog::warn("not everything could be written to the SSD tier: {}", std::string(ended->status.message()));
  } else {
    spdlog::info("{} chunks are on the SSD tier", ended->chunks);
  }
}

// ---- The steps of Start -----------------------------------------------------------------------------------------------------

absl::Status Daemon::State::MakePool(const Options& options, Parts* parts) {
  pool::SlotAllocator::Options of_slots;
  of_slots.slab_bytes = options.pool.slab_bytes;
  if (parts->pool_without_memory) {
    KVIST_CHECK(parts->copy_engine != nullptr);
    of_slots.regions.push_back(options.pool.bytes);
  } else {
    KVIST_RETURN_IF_ERROR(CheckAddressSpace(options.pool.bytes));
    KVIST_RETURN_IF_ERROR(pool::CheckMemoryLimit(options.pool.bytes));
    plans = pool::PlanRegions(options.pool.bytes, options.pool.slab_bytes,
                              parts->numa_nodes.empty() ? pool::UsableNumaNodes() : parts->numa_nodes);
    for (const pool::RegionPlan& plan : plans) of_slots.regions.push_back(plan.length);
    if (parts->keeper.has_value()) warm = OpenWarmPool(options.pool, of_slots.regions, *std::move(parts->keeper));
    KVIST_ASSIGN_OR_RETURN(regions, MakeRegions(options.pool, plans, warm.get()));
  }
  KVIST_ASSIGN_OR_RETURN(pool::SlotAllocator allocator, pool::SlotAllocator::Create(std::move(of_slots)));
  slots.emplace(std::move(allocator));
  observation->PoolMapped(slots->capacity());
  return absl::OkStatus();
}

absl::Status Daemon::State::MakeCore(const Options& options, Parts* parts) {
  core::CoreOptions of_core = ToCoreOptions(options);
  if (::getrandom(&of_core.seed, sizeof of_core.seed, 0) != sizeof of_core.seed) return ErrnoStatus("getrandom", errno);
  no_ssd = "another tier is in its place";
  if (parts->disk_tier != nullptr) {
    of_core.disk = parts->disk;
  } else {
    KVIST_ASSIGN_OR_RETURN(no_ssd, OpenSsd(options, parts, &of_core));
  }
  KVIST_RETURN_IF_ERROR(OpenRemote(options, &of_core));
  KVIST_RETURN_IF_ERROR(of_core.Validate());
  core = std::make_unique<core::Core>(of_core, &*slots, warm != nullptr ? warm->sections() : nullptr);
  if (warm != nullptr) {
    if (const std::optional<core::Core::TakenOver> kept = warm->TakeOver(core.get())) {
      spdlog::info("{} chunks of {} MiB are in the pool still; {} slots that were being filled rest for a while",
                   kept->chunks, kept->bytes / MiB(1), kept->in_doubt);
    }
  }
  return absl::OkStatus();
}

absl::Status Daemon::State::MakeReactor(const Options& options) {
  session::Reactor::Options of_reactor;
  of_reactor.cpu = options.session.reactor_cpu;
  of_reactor.tenants = TenantsWithSeries(options);
  of_reactor.region_near = [all = std::move(plans)](int numa_node) { return pool::RegionNear(all, numa_node); };
  const auto slot_memory = [this](SlotRef slot) -> std::byte* {
    if (regions.empty()) return nullptr;
    const pool::SlotAllocator::Place place = slots->PlaceOf(slot);
    return regions[place.region]->data() + place.offset.value;
  };
  KVIST_ASSIGN_OR_RETURN(reactor, session::Reactor::Create(of_reactor, core.get(), slot_memory));

  reactor->OnCorruption([raw = core.get(), log = CorruptionLog()](const core::CorruptionFound& found) mutable {
    log.Found(found, raw->space(found.space).digest, MonotonicNow());
  });
  reactor->OnPinLost([raw = core.get(), told = 0](const core::PinLost& lost) mutable {
    if (++told > kLostPinsTold) return;
    const LogSubject about({.space = Hex(raw->space(lost.space).digest)});
    spdlog::warn("a pin that {} {} had before the restart keeps nothing any more: {}",
                 lost.pin.by_operator ? "operator" : "engine", absl::CHexEscape(lost.pin.owner),
                 std::string(lost.why.message()));
    if (told == kLostPinsTold) spdlog::warn("further pins like that aren't named");
  });
  return absl::OkStatus();
}

absl::Status Daemon::State::MakeCopyEngine(const Options& options, Parts* parts) {
  auto copy_done = [raw = reactor.get()](OpId op, cuda::CopyEnd end) { raw->CopyDone(op, std::move(end)); };
  if (parts->copy_engine) {
    copy_engine = parts->copy_engine(copy_done);
  } else {
    const auto verify = options.pool.verify == "always" ? cuda::Verify::kAlways : cuda::Verify::kNever;
    const cuda::SharedMemoryEngineOptions shared_memory{options.copy.threads, options.copy.cpus, verify};
    KVIST_RETURN_IF_ERROR(shared_memory.Validate());
    copy_engine = cuda::JoinCopyEngines(
        cuda::MakeSharedMemoryEngine(shared_memory, copy_done),
        [this, verify, copy_done, kernel = options.copy.gpu_kernel](cuda::Gpu* gpu) {
          const auto slots_pinned = [this] { return gpus->HasPinned(slots->capacity()); };
          cuda::GpuEngineOptions of_gpu{verify, {}, slots_pinned};
          if (kernel) of_gpu.kernel.emplace();
          of_gpu.no_kernel = [](const absl::Status& why) {
            spdlog::warn("copy.gpu_kernel has no effect, small pages go by DMA: {}", std::string(why.message()));
          };
          of_gpu.found = [gpu](cuda::Direction direction, const cuda::PathChoice::Found& found) {
            spdlog::log(found.again ? spdlog::level::debug : spdlog::level::info,
                        "{}: {} of pages of {} to {} bytes go {} now: by DMA {:.1f} GB/s, staged {:.1f}", gpu->name(),
                        direction == cuda::Direction::kLoad ? "loads" : "stores", found.piece.value,
                        2 * found.piece.value - 1, found.path == cuda::PathChoice::Path::kDma ? "by DMA" : "staged",
                        found.dma_gb_per_second, found.staged_gb_per_second);
          };
          return cuda::MakeGpuEngine(gpu, std::move(of_gpu), copy_done);
        });
    gpus = std::make_unique<cuda::Gpus>(cuda::driver::kLibrary, [](bool warning, const std::string& text) {
      spdlog::log(warning ? spdlog::level::warn : spdlog::level::info, "{}", text);
    });
  }
  reactor->SetCopyEngine(copy_engine.get());
  return absl::OkStatus();
}

void Daemon::State::JoinTiers(Parts* parts) {
  if (parts->disk_tier) {
    disk_tier = parts->disk_tier(reactor.get());
    reactor->SetDiskTier(disk_tier.get());
  } else if (ssd != nullptr) {
    ssd->SpeakTo(reactor.get());
    reactor->SetDiskTier(ssd);
  }
  if (remote != nullptr) {
    remote->SpeakTo(reactor.get());
    reactor->SetRemoteTier(remote.get());
  }
}

void Daemon::State::MakeNode(const Options& options, Parts* parts) {
  if (!options.daemon.state_dir.empty()) GoOnWithJobs(options.daemon.state_dir + "/jobs");
  node = std::make_unique<Node>(reactor.get(), &*slots, &regions, Node::Below{ssd, no_ssd, remote.get(), why_no_remote},
                                gpus.get(), jobs.get(), options, std::move(parts->reload));
}

absl::Status Daemon::State::ListenToEngines(const Options& options) {
  KVIST_RETURN_IF_ERROR(MakeSocketDir("session.socket", options.session.socket));
  session::Listener::Options of_listener;
  of_listener.socket = options.session.socket;
  of_listener.mode = options.session.socket_mode;
  of_listener.group = options.session.socket_group;
  of_listener.connections_max = options.session.connections_max;
  of_listener.connections_per_uid = options.session.connections_per_uid;
  of_listener.tenants = options.tenants;
  of_listener.gpu_service = {gpus.get(), &*memory_proofs};
  of_listener.log = LogLine;
  of_listener.ended = [counts = observation.get()](session::Ending ending) { counts->Count(ending); };
  KVIST_ASSIGN_OR_RETURN(listener, session::Listener::Create(std::move(of_listener), reactor.get()));
  return absl::OkStatus();
}

void Daemon::State::Begin(const Options& options) {
  if (warm != nullptr) warm->Start();
  reactor->Start();
  if (ssd != nullptr) {
    ssd->Start();
    stop_flush = options.ssd.stop_flush;
  }
  if (remote != nullptr) remote->Start();
  for (const auto& region : regions) {
    if (gpus != nullptr && options.pool.touch_threads == 0)
      gpus->AddHostMemory({region->data(), region->length().value}, PinnedAtOnce(options.pool));
    // For GPUs and the disks' io_uring: what is touched is pinned soonest.
    region->OnTouched(
        [this, memory = std::span(region->data(), region->length().value), piece = PinnedAtOnce(options.pool)] {
          if (ssd != nullptr) ssd->Register(memory);
          if (gpus != nullptr) gpus->AddHostMemory(memory, piece);
        });
  }
}

void Daemon::State::Observe(const Options& options) {
  observation->EngineSocketOpen(options.session.socket);
  if (ssd != nullptr) observation->SsdStarted(ssd);
  if (remote != nullptr) observation->RemoteStarted(remote.get());
  observation->ReactorStarted(reactor.get(), [this, options, started = MonotonicNow()](metrics::Figures* figures) {
    figures->pool_capacity = slots->capacity();
    figures->pool_used = slots->live_bytes();
    figures->pool_slots = slots->live_slots();
    for (const auto& region : regions) figures->pool_touched += region->touched();
    if (gpus != nullptr) {
      const cuda::Gpus::Figures of_gpus = gpus->figures();
      figures->gpus = of_gpus.gpus.size();
      for (const auto& gpu : of_gpus.gpus) {
        figures->gpu_imported += gpu.imported;
        figures->gpu_own += gpu.own;
      }
      figures->gpu_pool_pinned = of_gpus.pinned;
    }
    figures->uptime = MonotonicNow() - started;
    figures->ssd = FiguresOf(ssd, options);
    if (remote != nullptr) figures->remote = FiguresOf(remote->status());
  });
}

absl::Status Daemon::State::ServeOperators(const Options& options) {
  KVIST_RETURN_IF_ERROR(MakeSocketDir("admin.socket", options.admin.socket));
  rpc::AdminServer::Options by_socket;
  by_socket.socket = options.admin.socket;
  by_socket.mode = options.admin.socket_mode;
  by_socket.group = options.admin.socket_group;
  by_socket.node = node.get();
  // The controller's API over this node alone, so that clients use one API whether there is a kvist-controller or not.
  uint64_t epoch = 0;
  if (::getrandom(&epoch, sizeof epoch, 0) != sizeof epoch) return ErrnoStatus("getrandom", errno);
  chunk_feed = std::make_unique<ChunkFeed>(reactor.get(), epoch);
  // One for each server: those who come over TCP have watchers' places of their own.
  const auto services = [&](uint32_t watchers_max) -> absl::StatusOr<std::vector<std::shared_ptr<grpc::Service>>> {
    std::vector<controller::NamedNode> itself;
    itself.push_back({options.daemon.node.empty() ? "node" : options.daemon.node, controller::MakeLocalNode(node.get())});
    KVIST_ASSIGN_OR_RETURN(controller::Nodes nodes, controller::Nodes::Create(std::move(itself)));
    return std::vector{controller::MakeControllerService(std::move(nodes)),
                       controller::MakeFeedService(chunk_feed.get(), watchers_max)};
  };
  KVIST_ASSIGN_OR_RETURN(by_socket.services, services(ChunkFeed::kWatchersOfSocket));
  KVIST_ASSIGN_OR_RETURN(admin, rpc::AdminServer::Create(std::move(by_socket)));
  observation->AdminSocketOpen(options.admin.socket);
  if (!options.admin.listen.empty()) {
    rpc::TlsServer::Options by_tls;
    by_tls.listen = options.admin.listen;
    KVIST_ASSIGN_OR_RETURN(tls_files, endpoint::TlsFilesInForce::Create({.files = TlsFilesOf(options), .say = LogLine}));
    observation->TlsFilesUsed(tls_files.get());
    by_tls.files = tls_files->paths();
    by_tls.roles = rpc::ToRoles(options.roles);
    by_tls.node = node.get();
    KVIST_ASSIGN_OR_RETURN(by_tls.services, services(ChunkFeed::kWatchersByTls));
    KVIST_ASSIGN_OR_RETURN(admin_by_tls, rpc::TlsServer::Create(std::move(by_tls)));
    spdlog::info("operators by TLS at {}", options.admin.listen);
  }
  return absl::OkStatus();
}

// ---- Daemon -----------------------------------------------------------------------------------------------------------------

Daemon::Daemon() : state_(std::make_unique<State>()) {}
Daemon::~Daemon() = default;

rpc::NodeControl& Daemon::node() { return *state_->node; }

void Daemon::RunOnReactor(std::function<void()> task) { state_->reactor->Run(std::move(task)); }

absl::Status Daemon::Apply(const Options& options, absl::Time deadline) {
  // Whether the reactor takes the options, or is too late and nobody does. Whoever is first decides.
  struct Turn {
    std::atomic<bool> decided = false;
    absl::Notification taken, heard;  // by the reactor, and by the listener
  };
  const auto turn = std::make_shared<Turn>();  // they may come after nobody waits any more
  state_->reactor->Run([reactor = state_->reactor.get(), node = state_->node.get(), options, turn] {
    if (turn->decided.exchange(true)) return;
    reactor->core().Retune(ToCoreOptions(options));
    node->Configure(options);
    reactor->NameTenants(TenantsWithSeries(options), options.metrics.tenants_max);
    turn->taken.Notify();
  });
  if (!turn->taken.WaitForNotificationWithTimeout(deadline - MonotonicNow()) && !turn->decided.exchange(true)) {
    return absl::AbortedError(
        "kvistd is busy and didn't get to it in time, so nothing of the new configuration is in force: try again");
  }
  // These refuse nothing. The listener waits for nobody: it has taken over what it is told a moment later, if not now.
  if (state_->admin_by_tls != nullptr) state_->admin_by_tls->SetRoles(rpc::ToRoles(options.roles));
  state_->listener->Retune(options.session.connections_max, options.tenants, [turn] { turn->heard.Notify(); });
  if (!turn->heard.WaitForNotificationWithTimeout(std::max(deadline - MonotonicNow(), kListenerTime)))
    spdlog::warn("the listener is busy: tenants and session.connections_max are in force for new engines when it isn't");
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(const Options& options, Parts parts) {
  auto daemon = std::unique_ptr<Daemon>(new Daemon);
  State& s = *daemon->state_;
  KVIST_ASSIGN_OR_RETURN(s.observation, Observation::Start(options));
  KVIST_ASSIGN_OR_RETURN(const session::MemoryProofs proofs, OpenProofs(options));
  s.memory_proofs.emplace(proofs);
  KVIST_RETURN_IF_ERROR(s.MakePool(options, &parts));
  KVIST_RETURN_IF_ERROR(s.MakeCore(options, &parts));
  KVIST_RETURN_IF_ERROR(s.MakeReactor(options));
  KVIST_RETURN_IF_ERROR(s.MakeCopyEngine(options, &parts));
  s.JoinTiers(&parts);
  s.MakeNode(options, &parts);
  KVIST_RETURN_IF_ERROR(s.ListenToEngines(options));
  s.Begin(options);
  s.Observe(options);
  KVIST_RETURN_IF_ERROR(s.ServeOperators(options));
  return daemon;
}

}  // namespace kvist::daemon
