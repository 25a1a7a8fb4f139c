#include "daemon/controller/node_feed.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "storage/base/check.h"

namespace kvist::controller {
namespace {

// (space, group, key), for a set. Its hash is seeded per process by Abseil; keys of one batch are few.
using ChunkName = std::tuple<uint32_t, uint16_t, std::array<uint8_t, 32>>;

ChunkName NameOf(const ChunkState& chunk) { return {chunk.space.value, chunk.group.value, chunk.key.bytes}; }

}  // namespace

NodeFeed::NodeFeed(uint64_t epoch, Options options) : epoch_(epoch), options_(options), ring_(options.changes_kept) {
  KVIST_CHECK(options.changes_kept > 0 && options.batch_changes_max > 0 && options.slice_chunks_max > 0);
}

void NodeFeed::Introduce(SpaceIntroduced space) {
  space.epoch = epoch_;
  spaces_.push_back(std::move(space));
}

void NodeFeed::Changed(const ChunkState& chunk) { ring_[++sequence_ % options_.changes_kept] = chunk; }

// As if there had been more changes than are kept.
void NodeFeed::ChangedAll() { sequence_ += uint64_t{options_.changes_kept} + 1; }

absl::StatusOr<NodeFeed::WatcherId> NodeFeed::Watch(std::optional<Position> from) {
  if (watchers_.size() >= options_.watchers_max) {
    return absl::ResourceExhaustedError(absl::StrCat("more than ", options_.watchers_max, " watchers"));
  }
  Watcher watcher;
  if (from.has_value() && from->epoch == epoch_ && Kept(from->sequence)) {
    watcher.phase = Phase::kFollowing;
    watcher.sequence = from->sequence;
  }
  const WatcherId id{next_watcher_++};
  watchers_.emplace(id, watcher);
  return id;
}

void NodeFeed::Unwatch(WatcherId watcher) { watchers_.erase(watcher); }

std::optional<FeedMessage> NodeFeed::Next(WatcherId id, Read read) {
  const auto found = watchers_.find(id);
  KVIST_CHECK(found != watchers_.end());
  Watcher& watcher = found->second;
  if (watcher.phase != Phase::kBegin && !Kept(watcher.sequence)) watcher.phase = Phase::kBegin;
  if (watcher.phase == Phase::kBegin) {
    watcher = {.phase = Phase::kReading, .sequence = sequence_};
    return SnapshotBegin{epoch_, sequence_};
  }
  if (watcher.introduced < spaces_.size()) return spaces_[watcher.introduced++];
  const bool changes = watcher.sequence < sequence_;
  if (watcher.phase == Phase::kReading && (watcher.slice_next || !changes)) return NextSlice(&watcher, read);
  if (watcher.phase == Phase::kRead && watcher.sequence >= watcher.read_until) {
    watcher.phase = Phase::kFollowing;
    return SnapshotEnd{epoch_, watcher.slices, sequence_ - watcher.sequence};
  }
  if (!changes) return std::nullopt;
  return NextBatch(&watcher);
}

FeedMessage NodeFeed::NextSlice(Watcher* watcher, Read read) const {
  SnapshotSlice slice{epoch_, watcher->slices++};
  watcher->cursor = read(watcher->cursor, options_.slice_chunks_max, &slice.chunks);
  watcher->slice_next = false;
  if (watcher->cursor == kReadAll) {
    watcher->phase = Phase::kRead;
    watcher->read_until = sequence_;
  }
  return slice;
}

FeedMessage NodeFeed::NextBatch(Watcher* watcher) const {
  ChangeBatch batch{epoch_, watcher->sequence, std::min(sequence_, watcher->sequence + options_.batch_changes_max)};
  // From the last one back, so that of each chunk the last state is met first.
  absl::flat_hash_set<ChunkName> met;
  for (uint64_t n = batch.up_to; n > batch.after; --n) {
    const ChunkState& change = ring_[n % options_.changes_kept];
    if (met.insert(NameOf(change)).second) batch.chunks.push_back(change);
  }
  std::ranges::reverse(batch.chunks);
  batch.untold = sequence_ - batch.up_to;
  watcher->sequence = batch.up_to;
  watcher->slice_next = true;
  return batch;
}

}  // namespace kvist::controller
