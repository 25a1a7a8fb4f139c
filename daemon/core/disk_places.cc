// What the disk tells of its contents: chunks that were found at the start, places that it wants back, and places that are damaged.

#include <algorithm>
#include <map>
#include <optional>

#include "daemon/core/core.h"
#include "storage/base/check.h"

namespace kvist::core {

void Core::On(const SpaceFound& event, Effects*) { spaces_.Open(event.spec, &slots_, &tenants_).IgnoreError(); }

void Core::On(const ChunksFound& event, Effects*) {
  KVIST_CHECK(event.chunks.size() <= kPlacesMax);
  for (const ChunksFound::Found& found : event.chunks) TakeFound(event.space, found);
}

void Core::TakeFound(SpaceId id, const ChunksFound::Found& found) {
  const GroupSpec& spec = spaces_[id].spec.groups.at(found.group.value);
  KVIST_CHECK(found.places.size() == spec.shards());
  const ChunkIndex i = FindCurrent(id, found.group, found.key);
  const auto free = [&] {
    placement_.Forget({.space = id,
                       .group = found.group,
                       .key = found.key,
                       .position = found.position,
                       .places = {found.places.begin(), found.places.end()},
                       .replaced = placement_.IsOnDisk(id, found.group, found.key, found.position),
                       .form = found.form});
  };
  if (spaces_[id].cleared || untold_clears_.Takes(id, found.key)) return free();
  // What hung on what was cleared isn't to hang on what has been stored anew under that name. Parents are told first.
  if (found.parent.has_value() && untold_clears_.TakesChildrenOf(id, *found.parent)) {
    untold_clears_.ClearedPrompt(id, found.key);
    return free();
  }
  ChunkIndex parent = kNoChunk;
  if (spec.reuse.chained() && found.parent.has_value()) {
    parent = FindCurrent(id, found.group, *found.parent);
    if (parent == kNoChunk) return free();
  }
  const uint32_t position = parent == kNoChunk ? 0 : chunks_[parent].position + 1;
  if (position != found.position) return free();
  if (i == kNoChunk) {
    const ChunkIndex added = placement_.AddOnDisk(id, found.group, found.key, parent, found.places, found.form);
    chunks_[added].disk_use = ages_.before();
    chunks_[added].SetHint(found.hint);
    ++counters_.chunks_found;
    return;
  }
  Chunk& chunk = chunks_[i];
  if (chunk.parent != parent) return free();
  if (chunk.state == ChunkState::kGhost) {
    placement_.Revive(i, found.places, found.form);
    chunk.disk_use = ages_.before();
    if (chunk.hint() == Hint{}) chunk.SetHint(found.hint);
  } else if ((chunk.state == ChunkState::kSealed || chunk.only_remote()) && chunk.disk == DiskCopy::kNone) {
    placement_.SetPlaces(i, found.places, found.form);  // stored again before it was found, or found elsewhere
    if (ages_.Lately(chunk.disk_use, chunk.stop_reason)) NoteUse(i);
  } else {
    return free();  // or being stored, or written
  }
  ++counters_.chunks_found;
}

void Core::On(const UsesFound& event, Effects*) {
  KVIST_CHECK(event.found.period <= 0 && event.found.uses.size() <= kPlacesMax);
  if (event.found.period == 0) ages_.GoOn(event.found.written);
  for (const DiskUses::Use& use : event.found.uses) {
    const ChunkIndex i = chunks_.Find(use.space, use.group, use.key);
    if (i == kNoChunk || !chunks_[i].on_disk()) continue;
    chunks_[i].disk_use = ages_.Later(chunks_[i].disk_use, event.found.period);
  }
}

void Core::Use(ChunkIndex i) {
  Chunk& chunk = chunks_[i];
  if (chunk.disk_use == ages_.now()) return;
  chunk.disk_use = ages_.now();
  if (chunk.on_disk()) NoteUse(i);
}

void Core::NoteUse(ChunkIndex i) {
  const Chunk& chunk = chunks_[i];
  use_notes_.Add(ages_.PeriodOf(chunk.disk_use), {chunk.space, chunk.group, chunk.key});
}

void Core::On(const DiskTold& event, Effects*) {
  for (uint32_t s = 0; event.rows_left && s < spaces_.size(); ++s) spaces_[SpaceId{s}].rows_left = true;
  disk_told_ = all_told_ = true;
  untold_clears_.AllTold();
  untold_pins_.AllTold();
}

void Core::On(const PlacesWanted& event, Effects* out) {
  KVIST_CHECK(event.records.size() <= kPlacesMax);
  for (const PlacesWanted::Record& record : event.records) {
    if (const ChunkIndex i = FindAt(record); i != kNoChunk) GiveBack(i, out);
  }
}

ChunkIndex Core::FindAt(const PlacesWanted::Record& record) const {
  const ChunkIndex i = chunks_.Find(record.space, record.group, record.key);
  if (i == kNoChunk || !chunks_[i].on_disk()) return kNoChunk;
  const std::span<const DiskPlace> places = placement_.PlacesOf(i);
  return std::find(places.begin(), places.end(), record.place) != places.end() ? i : kNoChunk;
}

void Core::On(const PlacesLost& event, Effects* out) {
  KVIST_CHECK(event.records.size() <= kPlacesMax);
  std::map<SpaceId, uint32_t> corrupt;
  for (const PlacesWanted::Record& record : event.records) {
    const ChunkIndex i = FindAt(record);
    if (i == kNoChunk) continue;
    const Chunk& chunk = chunks_[i];
    if (chunk.disk == DiskCopy::kThere) flushes_.Lost(i, chunk.space);
    const bool waited_for = chunk.state == ChunkState::kBelow && chunk.holds > 0;  // by a load
    if (chunk.disk == DiskCopy::kMoving || chunk.state == ChunkState::kReading || waited_for) {
      places_lost_.insert(i);
      continue;
    }
    if (event.damaged) {
      ++counters_.chunks_corrupt_on_disk;
      ++corrupt[chunk.space];
    }
    ForgetCopy(i);
  }
  for (const auto& [space, chunks] : corrupt) out->push_back(CorruptionFound{space, chunks, Tier::kSsd});
}

void Core::GiveBack(ChunkIndex i, Effects* out) {
  Chunk& chunk = chunks_[i];
  if (chunk.disk == DiskCopy::kMoving || chunk.state == ChunkState::kReading) return;  // the next time
  if (chunk.state == ChunkState::kBelow && chunk.holds > 0) return;                    // a load waits for it
  if (chunk.epoch != spaces_[chunk.space].epoch) return Detach(i);
  // Others that hang on it are hits no longer without it: few such ghosts are bearable, so then it is kept.
  const TenantId tenant = spaces_[chunk.space].tenant;
  const bool crowded = chunk.children > 0 && tenants_[tenant].ghosts >= options_.ghosts_max / 2;
  // Where nothing can be written nothing can be kept.
  if ((ages_.Lately(chunk.disk_use, chunk.stop_reason) || crowded) && writable_.value_or(false) && !no_room_) {
    if (placement_.spent() || !MayWrite() || placement_.vacating().IsCopied(i)) return;
    if (chunk.state == ChunkState::kSealed) {
      const bool clean = chunk.clean || chunk.last_child == LastChild::kAwaited;
      if (clean) placement_.PolicyOf(i).Withdrawn(i);  // until it is written
      BeginWrite(i, out);
      if (clean) tenants_[tenant].clean->BeingWritten(i);
      return;
    }
    if (BeginRead(i, /*by_layer=*/false, MayMakeRoomFrom(), out)) {
      to_move_.insert(i);
      return;
    }
    if (tenants_[tenant].writing > Bytes{} || !reads_.empty() || placement_.SlabComesSoon())
      return;  // there will be a slot for it
  }
  ++counters_.chunks_reclaimed;
  ForgetCopy(i);
}

void Core::ForgetCopy(ChunkIndex i) {
  const Chunk& chunk = chunks_[i];
  placement_.ForgetPlaces(i);
  if (chunk.state == ChunkState::kGhost || chunk.only_remote()) {
    placement_.Collect(i);
  } else {
    if (chunk.clean) placement_.PolicyOf(i).Withdrawn(i);  // it isn't any more
    Offer(i);
  }
}

}  // namespace kvist::core
