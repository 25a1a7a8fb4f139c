#include "daemon/metrics/exposition.h"

#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "storage/base/latency_histogram.h"

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
                       "Time from a " + name + "'s leaving the session's ring to its answer.")
                 .Add({}, latencies.hooks[static_cast<size_t>(hook)]));
  }
  Series waits =
      Histogram("kvist_queue_wait_duration_seconds",
                "Time for which nobody worked on what was asked for: ring, from an engine's call until the reactor "
                "takes the request; copy_load and copy_store, from a copy's submission until a copy thread begins.");
  for (const session::Queue queue : session::kAllQueues)
    waits.Add({{"queue", NameOf(queue)}}, latencies.waits[static_cast<size_t>(queue)]);
  out->Add(waits);
  out->Add(
      Histogram("kvist_copy_duration_seconds", "Time from a copy's submission to its end, with its wait for a copy thread.")
          .Add({{"direction", "load"}}, latencies.copy_load)
          .Add({{"direction", "store"}}, latencies.copy_store));
}

void AddHolding(const Figures& f, Families* out) {
  out->Level("kvist_tier_capacity_bytes", "Size of the tier.", f.pool_capacity, kDram);
  out->Level("kvist_tier_used_bytes", "Bytes of slots that hold chunks.", f.pool_used, kDram);
  out->Level("kvist_tier_slots", "Slots that hold chunks.", f.pool_slots, kDram);
  out->Level("kvist_pool_touched_bytes",
             "Memory of the pool that has been touched: the rest costs a page fault on first use.", f.pool_touched);
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
}

void AddCorruption(const Figures& f, Families* out) {
  out->Add(
      Counter("kvist_corruption_detected_total",
              "Chunks that held other bytes than were stored, and were dropped; in DRAM only checked with pool.verify = "
              "always, on disk whenever they are read.")
          .Add(With(kDram, "kind", "checksum"), f.core.chunks_corrupt)
          .Add(With(kSsd, "kind", "record"), f.core.chunks_corrupt_on_disk));
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
  AddConnections(f.connections, &families);
  AddTenants(f, &families);
  return families.Take();
}

}  // namespace kvist::metrics
