#include "daemon/ssd_view.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "storage/ssd/verdict.h"

namespace kvist::daemon {
namespace {

rpc::SsdTierStatus ShortRowOf(const SsdTier::Status& tier, const core::CoreStatus& core) {
  rpc::SsdTierStatus row;
  row.recovering = !tier.recovery.has_value();
  const bool starting = row.recovering || !tier.writable.has_value();
  row.state = tier.writable == false ? "read-only" : starting ? "recovering" : "on";
  row.trouble = TroubleOf(tier);
  row.chunks = core.below;
  for (const ssd::Store::DeviceRow& device : tier.store.devices) {
    row.live += device.live;
    row.capacity += device.capacity;
    row.directories.push_back({device.directory, device.how});
  }
  return row;
}

rpc::SsdStatus::Device RowOf(const ssd::Store::DeviceRow& device, Bytes moved) {
  rpc::SsdStatus::Device row;
  row.directory = device.directory;
  row.how = device.how;
  row.writable = device.writable;
  row.why = device.why;
  row.segments = device.segments;
  row.free = device.free;
  row.fenced = device.fenced;
  row.released = device.segments_released;
  row.capacity = device.capacity;
  row.live = device.live;
  row.written = device.written;
  row.read = device.read;
  row.moved = moved;
  row.records_written = device.records_written;
  row.records_read = device.records_read;
  row.syncs = device.syncs;
  row.write_errors = device.write_errors;
  row.sync_errors = device.sync_errors;
  row.read_errors = device.read_errors;
  for (uint32_t i = 0; i < ssd::kVerdicts; ++i)
    row.verdicts.emplace_back(ssd::NameOf(static_cast<ssd::Verdict>(i)), device.verdicts[i]);
  row.in_flight = Bytes{device.in_flight};
  row.waiting = device.waiting;
  return row;
}

rpc::SsdStatus::Recovery RowOf(const ssd::Recovery& recovery) {
  return {.ended = true,
          .error = std::string(recovery.status.message()),
          .message = recovery.message,
          .rebuilt = recovery.rebuilt,
          .chunks = recovery.chunks,
          .cleared = recovery.cleared,
          .skipped = recovery.skipped,
          .elapsed = recovery.elapsed};
}

}  // namespace

std::string TroubleOf(const SsdTier::Status& tier) {
  std::string trouble;
  const auto add = [&](const std::string& text) { absl::StrAppend(&trouble, trouble.empty() ? "" : "; ", text); };
  if (tier.writable == false) {
    add(absl::StrCat("it takes no writes: ", tier.why_not));
  } else if (!tier.store.catalog.empty()) {
    add(absl::StrCat("its catalog: ", tier.store.catalog));
  }
  if (tier.recovery.has_value() && !tier.recovery->status.ok()) {
    add(absl::StrCat("not all of what was there at the start was found, and the next start tries again: ",
                     tier.recovery->status.message()));
  }
  for (size_t i = 0; i < tier.store.devices.size(); ++i) {
    const ssd::Store::DeviceRow& device = tier.store.devices[i];
    if (device.fenced > 0)
      add(absl::StrCat("device ", i, ": ", device.fenced, " of ", device.segments, " segments were given up after errors"));
  }
  return trouble;
}

rpc::SsdTierStatus ShortRowOf(const SsdTier* tier, const std::string& none, const core::CoreStatus& core,
                              const Options::Ssd& options) {
  if (tier != nullptr) return ShortRowOf(tier->status(), core);
  rpc::SsdTierStatus row;
  row.state = "off";
  row.trouble = none;
  if (options.enabled) {
    for (const absl::string_view path : absl::StrSplit(options.path, ':'))
      row.directories.push_back({std::string(path), ""});
  }
  return row;
}

rpc::SsdStatus RowOf(const SsdTier* tier, const std::string& none, const core::CoreStatus& core,
                     const Options::Ssd& options) {
  rpc::SsdStatus row;
  if (tier == nullptr) {
    row.tier = ShortRowOf(tier, none, core, options);
    return row;
  }
  const SsdTier::Status status = tier->status();
  row.tier = ShortRowOf(status, core);
  for (size_t i = 0; i < status.store.devices.size(); ++i)
    row.devices.push_back(RowOf(status.store.devices[i], status.moved[i]));
  row.commits = status.store.commits;
  row.commits_failed = status.store.commits_failed;
  row.catalogs_set_aside = status.store.catalogs_set_aside;
  row.catalog = status.store.catalog;
  if (status.recovery.has_value()) row.recovery = RowOf(*status.recovery);
  const ssd::Store::Scrubbed& scrubbed = status.store.scrubbed;
  row.scrub = {.passes = scrubbed.passes,
               .records = scrubbed.records,
               .damaged = scrubbed.damaged,
               .unreadable = scrubbed.unreadable,
               .read = scrubbed.read,
               .last = scrubbed.last};
  row.chunks_written = core.chunks_written;
  row.chunks_moved = core.chunks_moved;
  row.chunks_reclaimed = core.chunks_reclaimed;
  row.chunks_read = core.chunks_read;
  row.writes_failed = core.writes_failed;
  row.reads_failed = core.reads_failed;
  row.chunks_corrupt = core.chunks_corrupt_on_disk;
  row.encoded = {core.encoded.chunks, core.encoded.bytes, core.encoded.slot_bytes};
  return row;
}

metrics::SsdFigures FiguresOf(const SsdTier* tier, const Options& options) {
  metrics::SsdFigures figures;
  if (tier == nullptr) {
    const std::vector<std::string> directories = absl::StrSplit(options.ssd.path, ':');
    figures.devices.resize(directories.size());
    for (ssd::Store::DeviceRow& device : figures.devices) device.writable = false;
    figures.moved.resize(directories.size());
    return figures;
  }
  SsdTier::Status status = tier->status();
  figures.there = true;
  figures.writable = status.writable == true;
  figures.recovering = !status.recovery.has_value();
  figures.devices = std::move(status.store.devices);
  figures.moved = std::move(status.moved);
  figures.scrubbed = status.store.scrubbed;
  figures.commits = status.store.commits;
  figures.commits_failed = status.store.commits_failed;
  figures.catalogs_set_aside = status.store.catalogs_set_aside;
  return figures;
}

}  // namespace kvist::daemon
