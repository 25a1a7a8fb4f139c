#include "daemon/metrics/exposition.h"

#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "storage/base/latency_histogram.h"
#include "storage/ssd/verdict.h"

namespace kvist::metrics {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using session::Hook;
using session::NameOf;
using session::Traffic;

constexpr double kSecond = 1e-9;           // of a nanosecond
constexpr uint32_t kFirstShownOctave = 8;  // 256 ns: below lies the clock's own cost
constexpr uint32_t kLastShownOctave = 35;  // 34 s: above every deadline that an engine gives

using Labels = std::vector<ClientMetric::Label>;
const Labels kDram = {{"tier", "dram"}};
const Labels kSsd = {{"tier", "ssd"}};
const Labels kRemote = {{"tier", "remote"}};

Labels With(Labels labels, std::string name, std::string value) {
  labels.push_back({std::move(name), std::move(value)});
  return labels;
}

// One family, a value at a time.
class Series {
 public:
  Series(std::string name, std::string help, MetricType type) {
    family_.name = std::move(name);
    family_.help = std::move(help);
    family_.type = type;
  }
  Series& Add(Labels labels, double value) {
    ClientMetric metric;
    metric.label = std::move(labels);
    (family_.type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
    family_.metric.push_back(std::move(metric));
    return *this;
  }
  Series& Add(Labels labels, uint64_t value) { return Add(std::move(labels), static_cast<double>(value)); }
  Series& Add(Labels labels, Bytes value) { return Add(std::move(labels), static_cast<double>(value.value)); }
  Series& Add(Labels labels, const LatencyHistogram& latencies) {
    ClientMetric metric;
    metric.label = std::move(labels);
    ClientMetric::Histogram& histogram = metric.histogram;
    uint64_t below = 0;
    for (uint32_t bucket = 0, octave = kFirstShownOctave; bucket < LatencyHistogram::kBuckets; ++bucket) {
      below += latencies.count(bucket);
      if (octave <= kLastShownOctave && LatencyHistogram::UpperNanos(bucket) == int64_t{1} << octave) {
        histogram.bucket.push_back({below, static_cast<double>(int64_t{1} << octave) * kSecond});
        ++octave;
      }
    }
    histogram.bucket.push_back({below, std::numeric_limits<double>::infinity()});
    histogram.sample_count = below;
    histogram.sample_sum = static_cast<double>(latencies.sum_nanos()) * kSecond;
    family_.metric.push_back(std::move(metric));
    return *this;
  }
  MetricFamily Take() { return std::move(family_); }

 private:
  MetricFamily family_;
};

Series Counter(std::string name, std::string help) { return {std::move(name), std::move(help), MetricType::Counter}; }
Series Gauge(std::string name, std::string help) { return {std::move(name), std::move(help), MetricType::Gauge}; }
Series Histogram(std::string name, std::string help) { return {std::move(name), std::move(help), MetricType::Histogram}; }

class Families {
 public:
  template <class Value>
  void Count(std::string name, std::string help, Value value, Labels labels = {}) {
    Add(Counter(std::move(name), std::move(help)).Add(std::move(labels), value));
  }
  template <class Value>
  void Level(std::string name, std::string help, Value value, Labels labels = {}) {
    Add(Gauge(std::move(name), std::move(help)).Add(std::move(labels), value));
  }
  void Add(Series& series) { families_.push_back(series.Take()); }
  std::vector<MetricFamily> Take() { return std::move(families_); }

 private:
  std::vector<MetricFamily> families_;
};

void AddRequests(const Traffic& total, const session::Latencies& latencies, Families* out) {
  out->Add(Counter("kvist_lookups_total", "Lookups that were answered, by how much of the prompt was there.")
               .Add(With(kDram, "result", "hit"), total.lookups_hit)
               .Add(With(kDram, "result", "partial"), total.lookups_partial)
               .Add(With(kDram, "result", "miss"), total.lookups_missed));
  out->Add(Counter("kvist_lookup_chunks_total", "Chunks that lookups asked for.")
               .Add(With(kDram, "result", "hit"), total.chunks_hit)
               .Add(With(kDram, "result", "miss"), total.chunks_asked - total.chunks_hit));
  out->Count("kvist_load_bytes_total", "Bytes copied into engines' pages.", total.bytes_loaded, kDram);
  out->Count("kvist_load_chunks_total", "Chunks copied into engines' pages, one for each rank.", total.chunks_loaded, kDram);
  out->Count("kvist_store_bytes_total", "Bytes copied from engines' pages.", total.bytes_stored);
  out->Count("kvist_swap_out_bytes_total", "Bytes of private allocations copied from engines' pages.",
             total.bytes_swapped_out);
  out->Count("kvist_swap_in_bytes_total", "Bytes of private allocations copied into engines' pages.",
             total.bytes_swapped_in);
  out->Count("kvist_store_chunks_total", "Chunks copied from engines' pages, one for each rank.", total.chunks_stored);
  out->Count("kvist_store_skipped_total",
             "Chunks that engines stored and that were there already, or being stored by another.", total.chunks_skipped);
  out->Count("kvist_store_rejected_total", "Chunks that engines stored and that found no place.", total.chunks_refused,
             {{"reason", "no_room"}});

  Series failed = Counter("kvist_requests_failed_total", "Requests that were answered with an error.");
  Series late = Counter("kvist_deadline_exceeded_total", "Requests whose deadline had passed before they were begun.");
  for (const Hook hook : session::kAllHooks) {
    failed.Add({{"op", NameOf(hook)}}, total.failed[static_cast<size_t>(hook)]);
    late.Add({{"op", NameOf(hook)}}, total.late[static_cast<size_t>(hook)]);
  }
  out->Add(failed);
  out->Add(late);
  for (const Hook hook : session::kAllHooks) {
    const std::string name = NameOf(hook);
    out->Add(Histogram("kvist_" + name + "_duration_seconds",
                       "Time from a request's leaving the session's ring to its answer: " + name + ".")
                 .Add({}, latencies.hooks[static_cast<size_t>(hook)]));
  }
  Series waits =
      Histogram("kvist_queue_wait_duration_seconds",
                "Time for which nobody worked on what was asked for: ring, from an engine's call until the reactor "
                "takes the request; copy_load and copy_store, from a copy's submission until a copy thread begins.");
  for (const session::Queue queue : session::kAllQueues)
    waits.Add({{"queue", NameOf(queue)}}, latencies.waits[static_cast<size_t>(queue)]);
  out->Add(waits);
  out->Add(Histogram("kvist_copy_duration_seconds",
                     "Time from a copy's submission to its end, with its wait for a copy thread. "
                     "Loads of what was still being read from disk are not in it, nor in the waits above.")
               .Add({{"direction", "load"}}, latencies.copy_load)
               .Add({{"direction", "store"}}, latencies.copy_store));
}

void AddHolding(const Figures& f, Families* out) {
  Bytes disk_capacity{}, disk_live{};
  for (const ssd::Store::DeviceRow& device : f.ssd.devices) {
    disk_capacity += device.capacity;
    disk_live += device.live;
  }
  out->Add(Gauge("kvist_tier_capacity_bytes", "Size of the tier.").Add(kDram, f.pool_capacity).Add(kSsd, disk_capacity));
  out->Add(Gauge("kvist_tier_used_bytes", "Bytes of slots that hold chunks; of records on disk that are wanted.")
               .Add(kDram, f.pool_used)
               .Add(kSsd, disk_live));
  out->Level("kvist_tier_slots", "Slots that hold chunks.", f.pool_slots, kDram);
  out->Level("kvist_pool_touched_bytes",
             "Memory of the pool that has been touched: the rest costs a page fault on first use.", f.pool_touched);
  out->Level("kvist_gpus", "GPUs on which engines have registered since the start.", f.gpus);
  out->Level("kvist_gpu_imported_bytes", "GPU memory of engines that is mapped here.", f.gpu_imported);
  out->Level("kvist_gpu_own_bytes", "GPU memory of kvistd, through which small pages are copied.", f.gpu_own);
  out->Level("kvist_gpu_pool_pinned_bytes", "Memory of the pool that is pinned for GPUs: copies of the rest are slow.",
             f.gpu_pool_pinned);
  out->Level("kvist_index_bytes", "Memory of the index.", f.core.index_bytes);
  out->Level("kvist_chunks", "Chunks that can be hit.", f.core.sealed);
  out->Level("kvist_chunks_filling", "Chunks that not all ranks have stored.", f.core.filling);
  out->Level("kvist_leases", "Leases that engines hold.", f.core.leases);
  out->Level("kvist_pins", "Prompts that are pinned.", f.core.pins);
  out->Level("kvist_private_allocations", "Private allocations of engines.", f.core.allocations);
  out->Level("kvist_private_bytes", "Bytes of slots in private allocations.", f.core.private_bytes);
  out->Level("kvist_operations", "Copies in flight.", f.core.ops);
  out->Level("kvist_sessions", "Engine processes that are connected.", f.core.sessions);
  out->Level("kvist_instances", "Engines that are connected.", f.core.instances);
  out->Level("kvist_spaces", "Spaces that were met since the start.", uint64_t{f.core.spaces.size()});
  out->Count("kvist_evictions_total", "Chunks that went to make room.", f.core.evictions, With(kDram, "reason", "capacity"));
  out->Count("kvist_slabs_emptied_total", "Slabs of the pool that were emptied for slots of another size.",
             f.core.slabs_emptied);
  out->Count("kvist_slots_moved_total", "Slots whose bytes were moved for that.", f.core.slots_moved);
}

void AddCorruption(const Figures& f, Families* out) {
  out->Add(
      Counter("kvist_corruption_detected_total",
              "Chunks that held other bytes than were stored, and were dropped; in DRAM only checked with pool.verify = "
              "always, on disk whenever they are read.")
          .Add(With(kDram, "kind", "checksum"), f.core.chunks_corrupt)
          .Add(With(kSsd, "kind", "record"), f.core.chunks_corrupt_on_disk)
          .Add(With(kRemote, "kind", "object"), f.core.remote_chunks_corrupt));
}

// What the core does with the tier on disk.
void AddChunksOnDisk(const core::CoreStatus& core, Families* out) {
  out->Level("kvist_ssd_chunks", "Chunks that are in no slots, but in a tier below them.", core.below);
  out->Level("kvist_ssd_encoded_chunks", "Chunks that lie on disk encoded.", core.encoded.chunks);
  out->Add(Gauge("kvist_ssd_encoded_bytes", "Bytes of those chunks: on disk, and in slots when they are loaded.")
               .Add({{"in", "disk"}}, core.encoded.bytes)
               .Add({{"in", "slots"}}, core.encoded.slot_bytes));
  out->Count("kvist_ssd_found_chunks_total", "Chunks that were found on disk at the start.", core.chunks_found);
  out->Add(Counter("kvist_ssd_chunk_writes_total",
                   "Chunks that were to be written to disk: kept; moved, for their segment was to be used again; recoded, "
                   "for somebody had "
                   "asked for that; or failed.")
               .Add({{"result", "kept"}}, core.chunks_written)
               .Add({{"result", "moved"}}, core.chunks_moved)
               .Add({{"result", "recoded"}}, core.chunks_recoded)
               .Add({{"result", "failed"}}, core.writes_failed));
  out->Add(Counter("kvist_ssd_chunk_reads_total", "Chunks that were to be read from disk, to be loaded or moved.")
               .Add({{"result", "good"}}, core.chunks_read)
               .Add({{"result", "failed"}}, core.reads_failed));
  out->Count("kvist_ssd_reclaimed_chunks_total",
             "Chunks that were given up on disk, for their segment was to be used again.", core.chunks_reclaimed);
  out->Count("kvist_ssd_demotions_total", "Evictions from DRAM of chunks that stay on disk.", core.demotions);
  out->Count("kvist_load_waited_chunks_total",
             "Chunks of loads, one for each rank, that were still being read from disk when the load came; those of "
             "kvist_load_chunks_total that weren't were in DRAM.",
             core.loads_waited);
  out->Count("kvist_recomputed_chunks_total",
             "Chunks that were found on disk by a lookup and left to the engine, which computes them sooner than they would "
             "be read.",
             core.chunks_recomputed);
}

// Each device by its place in ssd.path.
void AddDevices(const SsdFigures& ssd, Families* out) {
  Series written = Counter("kvist_ssd_written_bytes_total", "Bytes of records that are durable, with headers and padding.");
  Series moved =
      Counter("kvist_ssd_moved_bytes_total",
              "Of the bytes written those that were on the device already, in a segment that was to be used again.");
  Series read = Counter("kvist_ssd_read_bytes_total", "Bytes of records that were read and found good.");
  Series records_written = Counter("kvist_ssd_written_records_total", "Records that are durable.");
  Series records_read = Counter("kvist_ssd_read_records_total", "Records that were read and found good.");
  Series syncs = Counter("kvist_ssd_syncs_total", "Flushes of segment files.");
  Series errors = Counter("kvist_ssd_errors_total", "Operations that the device failed.");
  Series verdicts = Counter("kvist_ssd_verdicts_total", "What was found where a record was read.");
  Series in_flight = Gauge("kvist_ssd_in_flight_bytes", "Bytes that are being written or read.");
  Series waiting = Gauge("kvist_ssd_waiting_records", "Records that wait to be written.");
  Series segments = Gauge("kvist_ssd_segments", "Segments: free, used, or fenced after an error.");
  Series released = Counter("kvist_ssd_released_segments_total", "Segments that were freed to be used again.");
  Series capacity = Gauge("kvist_ssd_capacity_bytes", "Size of all segments.");
  Series live = Gauge("kvist_ssd_live_bytes", "Bytes of records that are wanted.");
  Series writable = Gauge("kvist_ssd_writable", "1 while the device takes writes.");
  for (size_t i = 0; i < ssd.devices.size(); ++i) {
    const ssd::Store::DeviceRow& device = ssd.devices[i];
    const Labels labels = {{"device", std::to_string(i)}};
    written.Add(labels, device.written);
    moved.Add(labels, ssd.moved[i]);
    read.Add(labels, device.read);
    records_written.Add(labels, device.records_written);
    records_read.Add(labels, device.records_read);
    syncs.Add(labels, device.syncs);
    errors.Add(With(labels, "op", "write"), device.write_errors)
        .Add(With(labels, "op", "sync"), device.sync_errors)
        .Add(With(labels, "op", "read"), device.read_errors);
    for (uint32_t v = 0; v < ssd::kVerdicts; ++v)
      verdicts.Add(With(labels, "verdict", NameOf(static_cast<ssd::Verdict>(v))), device.verdicts[v]);
    in_flight.Add(labels, device.in_flight);
    waiting.Add(labels, device.waiting);
    segments.Add(With(labels, "state", "free"), device.free)
        .Add(With(labels, "state", "used"), device.segments - device.free - device.fenced)
        .Add(With(labels, "state", "fenced"), device.fenced);
    released.Add(labels, device.segments_released);
    capacity.Add(labels, device.capacity);
    live.Add(labels, device.live);
    writable.Add(labels, uint64_t{device.writable});
  }
  for (Series* series : {&written, &moved, &read, &records_written, &records_read, &syncs, &errors, &verdicts, &in_flight,
                         &waiting, &segments, &released, &capacity, &live, &writable})
    out->Add(*series);
}

void AddSsd(const SsdFigures& ssd, Families* out) {
  out->Level("kvist_ssd_present", "1 when there is a tier on disk.", uint64_t{ssd.there});
  out->Level("kvist_ssd_accepts_writes", "1 while the tier on disk takes writes: all its devices and its catalog.",
             uint64_t{ssd.writable});
  out->Level("kvist_ssd_recovering", "1 while what was on disk at the start is still being found.",
             uint64_t{ssd.recovering});
  out->Add(Counter("kvist_ssd_commits_total", "Batches of changes of the catalog: durable ones, and ones that failed.")
               .Add({{"result", "good"}}, ssd.commits)
               .Add({{"result", "failed"}}, ssd.commits_failed));
  out->Count("kvist_ssd_catalogs_set_aside_total",
             "Catalogs that could not be used: chunks were found by their records then.", ssd.catalogs_set_aside);
  out->Count("kvist_ssd_scrub_passes_total", "Times that all full segments were read again.", ssd.scrubbed.passes);
  out->Count("kvist_ssd_scrubbed_bytes_total", "Bytes that were read again to see whether they are still there.",
             ssd.scrubbed.read.value);
  out->Add(Counter("kvist_ssd_scrubbed_records_total", "Records that were read again, by what was found.")
               .Add({{"result", "read"}}, ssd.scrubbed.records)
               .Add({{"result", "damaged"}}, ssd.scrubbed.damaged)
               .Add({{"result", "unreadable"}}, ssd.scrubbed.unreadable));
  AddDevices(ssd, out);
}

void AddRemote(const Figures& f, Families* out) {
  const RemoteFigures& remote = f.remote;
  out->Level("kvist_remote_present", "1 when there is a tier beyond the node.", uint64_t{remote.there});
  out->Level("kvist_remote_reachable", "1 while its store answers.", uint64_t{remote.reachable});
  out->Count("kvist_remote_breaker_opened_total", "Times that its store was left alone, for it didn't answer.",
             remote.breaker_opened);
  out->Add(
      Counter("kvist_remote_lookups_total", "Lookups for which the store was asked, by whether it said anything in time.")
          .Add({{"result", "answered"}}, f.core.remote_asked - std::min(f.core.remote_unanswered, f.core.remote_asked))
          .Add({{"result", "unanswered"}}, f.core.remote_unanswered));
  out->Count("kvist_remote_found_chunks_total", "Chunks that lookups found in the store and not on this node.",
             f.core.remote_chunks_found);
  out->Add(Counter("kvist_remote_chunk_reads_total", "Chunks that were to be read from the store.")
               .Add({{"result", "good"}}, f.core.remote_chunks_read)
               .Add({{"result", "failed"}}, f.core.remote_reads_failed));
  out->Add(Counter("kvist_remote_chunk_writes_total",
                   "Chunks that were to be written to the store: kept there; failed; dropped, for too many waited or they "
                   "were evicted "
                   "before their turn.")
               .Add({{"result", "kept"}}, f.core.remote_chunks_written)
               .Add({{"result", "failed"}}, f.core.remote_writes_failed)
               .Add({{"result", "dropped"}}, f.core.remote_chunks_dropped));
  out->Level("kvist_remote_waiting_chunks", "Chunks that wait to be written to the store.", f.core.remote_waiting);
  out->Level("kvist_remote_in_flight_bytes", "Bytes that are on their way to the store or from it.", remote.on_their_way);
  out->Count("kvist_remote_written_bytes_total", "Bytes of chunks that the store has taken.", remote.written.value);
  out->Count("kvist_remote_read_bytes_total", "Bytes of chunks that were read from it and found good.", remote.read.value);
  Series verdicts = Counter("kvist_remote_verdicts_total", "What was found where an object was read.");
  for (uint32_t v = 0; v < remote::kVerdicts; ++v)
    verdicts.Add({{"verdict", remote::NameOf(static_cast<remote::Verdict>(v))}}, remote.verdicts[v]);
  out->Add(verdicts);
}

void AddConnections(const ConnectionCounts& counts, Families* out) {
  out->Count("kvist_connections_refused_total", "Connections that were refused before or at their handshake.",
             counts.refused);
  out->Add(Counter("kvist_client_reaped_total", "Sessions that ended, by why.")
               .Add({{"cause", "exited"}}, counts.exited)
               .Add({{"cause", "hung_up"}}, counts.hung_up)
               .Add({{"cause", "broke_protocol"}}, counts.broke_protocol));
}

void AddTenants(const Figures& f, Families* out) {
  Series lookups = Counter("kvist_tenant_lookup_chunks_total", "Chunks that lookups asked for, by tenant.");
  Series loaded = Counter("kvist_tenant_load_bytes_total", "Bytes copied into engines' pages, by tenant.");
  Series stored = Counter("kvist_tenant_store_bytes_total", "Bytes copied from engines' pages, by tenant.");
  Series used = Gauge("kvist_tenant_used_bytes", "Bytes of slots that hold chunks, by tenant.");
  Bytes others{};
  for (const core::CoreStatus::SpaceRow& space : f.core.spaces) others += space.bytes;
  for (const auto& [tenant, traffic] : f.traffic.tenants) {
    const Labels labels = {{"tenant", tenant}};
    lookups.Add(With(labels, "result", "hit"), traffic.chunks_hit);
    lookups.Add(With(labels, "result", "miss"), traffic.chunks_asked - traffic.chunks_hit);
    loaded.Add(labels, traffic.bytes_loaded);
    stored.Add(labels, traffic.bytes_stored);
    Bytes own{};
    for (const core::CoreStatus::SpaceRow& space : f.core.spaces) own += space.tenant == tenant ? space.bytes : Bytes{};
    const bool last = &traffic == &f.traffic.tenants.back().second;  // the others, whatever they are called
    used.Add(labels, last ? others : own);
    others -= own;
  }
  for (Series* series : {&lookups, &loaded, &stored, &used}) out->Add(*series);
}

}  // namespace

std::vector<MetricFamily> Expose(const Figures& f) {
  Families families;
  families.Level("kvist_build_info", "1; the label says which version runs.", uint64_t{1}, {{"version", KVIST_VERSION}});
  families.Level("kvist_uptime_seconds", "Time since the start.", absl::ToDoubleSeconds(f.uptime));
  AddRequests(f.traffic.Total(), f.latencies, &families);
  AddHolding(f, &families);
  AddCorruption(f, &families);
  AddChunksOnDisk(f.core, &families);
  AddSsd(f.ssd, &families);
  AddRemote(f, &families);
  AddConnections(f.connections, &families);
  AddTenants(f, &families);
  return families.Take();
}

}  // namespace kvist::metrics
