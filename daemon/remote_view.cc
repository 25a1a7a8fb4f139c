#include "daemon/remote_view.h"

#include "absl/strings/str_cat.h"

namespace kvist::daemon {

rpc::RemoteStatus RowOf(const RemoteTier::Status& tier, const core::CoreStatus& core) {
  rpc::RemoteStatus row;
  row.name = absl::StrCat("remote:", tier.name);
  row.store = tier.where;
  row.reachable = tier.reachable;
  row.why_not = tier.why_not;
  row.encrypted = tier.encrypted;
  row.lookups_asked = core.remote_asked;
  row.lookups_unanswered = core.remote_unanswered;
  row.chunks_found = core.remote_chunks_found;
  row.chunks_read = core.remote_chunks_read;
  row.reads_failed = core.remote_reads_failed;
  row.chunks_missing = core.remote_chunks_missing;
  row.chunks_corrupt = core.remote_chunks_corrupt;
  row.chunks_written = core.remote_chunks_written;
  row.writes_failed = core.remote_writes_failed;
  row.chunks_dropped = core.remote_chunks_dropped;
  row.chunks_waiting = core.remote_waiting;
  row.read = tier.read;
  row.written = tier.written;
  row.on_their_way = {tier.load.bytes};
  row.breaker_opened = tier.guard.opened;
  for (uint32_t v = 0; v < remote::kVerdicts; ++v)
    row.verdicts.emplace_back(remote::NameOf(static_cast<remote::Verdict>(v)), tier.verdicts[v]);
  return row;
}

metrics::RemoteFigures FiguresOf(const RemoteTier::Status& tier) {
  metrics::RemoteFigures figures;
  figures.there = true;
  figures.reachable = tier.reachable;
  figures.breaker_opened = tier.guard.opened;
  figures.read = tier.read;
  figures.written = tier.written;
  figures.on_their_way = {tier.load.bytes};
  figures.verdicts = tier.verdicts;
  return figures;
}

}  // namespace kvist::daemon
