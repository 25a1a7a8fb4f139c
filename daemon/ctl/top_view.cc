#include "daemon/ctl/top_view.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

namespace kvist::ctl {
namespace {

using Json = nlohmann::ordered_json;

double PerSecond(uint64_t before, uint64_t now, double seconds) {
  return now > before && seconds > 0 ? static_cast<double>(now - before) / seconds : 0;
}

TopView::Rates RatesOf(const node::v1::Traffic& before, const node::v1::Traffic& now, double seconds) {
  return {.lookups = PerSecond(before.lookups(), now.lookups(), seconds),
          .chunks_asked = PerSecond(before.chunks_asked(), now.chunks_asked(), seconds),
          .chunks_hit = PerSecond(before.chunks_hit(), now.chunks_hit(), seconds),
          .bytes_loaded = PerSecond(before.bytes_loaded(), now.bytes_loaded(), seconds),
          .bytes_stored = PerSecond(before.bytes_stored(), now.bytes_stored(), seconds),
          .failed = PerSecond(before.failed(), now.failed(), seconds)};
}

// The upper bound of the bucket in which the q-th of the durations lies.
double Quantile(const std::map<uint64_t, uint64_t>& buckets, double q) {
  uint64_t count = 0;
  for (const auto& [upper, times] : buckets) count += times;
  uint64_t seen = 0;
  for (const auto& [upper, times] : buckets) {
    seen += times;
    if (times > 0 && static_cast<double>(seen) >= q * static_cast<double>(count)) return static_cast<double>(upper) * 1e-9;
  }
  return 0;
}

TopView::Latency LatencyOf(const node::v1::Latency* before, const node::v1::Latency& now, double seconds) {
  std::map<uint64_t, uint64_t> buckets;  // of the time between
  for (const auto& bucket : now.buckets()) buckets[bucket.upper_nanos()] += bucket.count();
  if (before != nullptr) {
    for (const auto& bucket : before->buckets()) buckets[bucket.upper_nanos()] -= bucket.count();
  }
  return {now.name(), now.count(), PerSecond(before == nullptr ? 0 : before->count(), now.count(), seconds),
          Quantile(buckets, 0.5), Quantile(buckets, 0.99)};
}

template <class Row>
const Row* Find(const google::protobuf::RepeatedPtrField<Row>& rows, const auto& same) {
  const auto found = std::find_if(rows.begin(), rows.end(), same);
  return found == rows.end() ? nullptr : &*found;
}

std::vector<TopView::Latency> LatenciesOf(const google::protobuf::RepeatedPtrField<node::v1::Latency>& before,
                                          const google::protobuf::RepeatedPtrField<node::v1::Latency>& now, double seconds) {
  std::vector<TopView::Latency> latencies;
  for (const auto& latency : now) {
    const auto* old = Find(before, [&](const auto& l) { return l.name() == latency.name(); });
    latencies.push_back(LatencyOf(old, latency, seconds));
  }
  return latencies;
}

Json ToJson(const char* key, const TopView::Latency& latency) {
  return {{key, latency.name},
          {"per_second", latency.per_second},
          {"p50_seconds", latency.p50_seconds},
          {"p99_seconds", latency.p99_seconds}};
}

Json ToJson(const TopView::Rates& rates) {
  return {{"lookups", rates.lookups},           {"chunks_asked", rates.chunks_asked}, {"chunks_hit", rates.chunks_hit},
          {"bytes_loaded", rates.bytes_loaded}, {"bytes_stored", rates.bytes_stored}, {"failed", rates.failed}};
}

}  // namespace

TopView ViewTop(const TopSample& given, const TopSample& now) {
  const bool same = given.status.pid() == now.status.pid() && given.status.uptime_seconds() <= now.status.uptime_seconds();
  const TopSample before = same ? given : TopSample();
  TopView view;
  view.seconds = now.status.uptime_seconds() - before.status.uptime_seconds();
  view.now = now.status;
  view.rates = RatesOf(before.status.traffic(), now.status.traffic(), view.seconds);
  view.evictions = PerSecond(before.status.evictions(), now.status.evictions(), view.seconds);
  view.latencies = LatenciesOf(before.status.latencies(), now.status.latencies(), view.seconds);
  view.waits = LatenciesOf(before.status.waits(), now.status.waits(), view.seconds);
  for (const auto& space : now.status.spaces()) {
    const auto* old = Find(before.status.spaces(), [&](const auto& s) { return s.digest() == space.digest(); });
    view.spaces.push_back(
        {space, RatesOf(old == nullptr ? node::v1::Traffic() : old->traffic(), space.traffic(), view.seconds)});
  }
  for (const auto& session : now.sessions.sessions()) {
    const auto* old = Find(before.sessions.sessions(), [&](const auto& s) { return s.id() == session.id(); });
    // One that has just come did all it did in its own time, or in ours if that was less.
    view.sessions.push_back(
        {session, RatesOf(old == nullptr ? node::v1::Traffic() : old->traffic(), session.traffic(), view.seconds)});
  }
  std::stable_sort(view.spaces.begin(), view.spaces.end(), [](const auto& a, const auto& b) {
    return std::tuple(a.rates.bytes(), a.rates.lookups, a.space.bytes()) >
           std::tuple(b.rates.bytes(), b.rates.lookups, b.space.bytes());
  });
  std::stable_sort(view.sessions.begin(), view.sessions.end(), [](const auto& a, const auto& b) {
    return std::tuple(-a.rates.bytes(), -a.rates.lookups, a.session.id()) <
           std::tuple(-b.rates.bytes(), -b.rates.lookups, b.session.id());
  });
  return view;
}

std::string ToJson(const TopView& view) {
  Json json = {{"version", view.now.version()},
               {"pid", view.now.pid()},
               {"uptime_seconds", view.now.uptime_seconds()},
               {"interval_seconds", view.seconds},
               {"pool_capacity_bytes", view.now.pool().capacity_bytes()},
               {"pool_used_bytes", view.now.pool().used_bytes()},
               {"ssd_state", view.now.ssd().state()},
               {"ssd_capacity_bytes", view.now.ssd().capacity_bytes()},
               {"ssd_live_bytes", view.now.ssd().live_bytes()},
               {"instances", view.now.instances()},
               {"sessions", view.now.sessions()},
               {"leases", view.now.leases()},
               {"ops", view.now.ops()},
               {"per_second", ToJson(view.rates)},
               {"evictions_per_second", view.evictions},
               {"latencies", Json::array()},
               {"waits", Json::array()},
               {"spaces", Json::array()},
               {"sessions_busiest_first", Json::array()}};
  for (const TopView::Latency& latency : view.latencies) json["latencies"].push_back(ToJson("hook", latency));
  for (const TopView::Latency& wait : view.waits) json["waits"].push_back(ToJson("queue", wait));
  for (const TopView::SpaceRow& row : view.spaces) {
    json["spaces"].push_back({{"digest", row.space.digest()},
                              {"tenant", row.space.tenant()},
                              {"model", row.space.model()},
                              {"chunks", row.space.chunks()},
                              {"bytes", row.space.bytes()},
                              {"per_second", ToJson(row.rates)}});
  }
  for (const TopView::SessionRow& row : view.sessions) {
    json["sessions_busiest_first"].push_back({{"id", row.session.id()},
                                              {"instance", row.session.instance()},
                                              {"role", row.session.role()},
                                              {"rank", row.session.rank()},
                                              {"tenant", row.session.tenant()},
                                              {"pid", row.session.pid()},
                                              {"ops", row.session.ops()},
                                              {"per_second", ToJson(row.rates)}});
  }
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace kvist::ctl
