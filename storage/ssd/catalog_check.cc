#include "storage/ssd/catalog_check.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

namespace kvist::ssd {
namespace {

// Of a chunk; of a shard of one. Keys are hashes: a collision would only hide that a row is broken.
uint64_t NameOf(uint32_t space, uint16_t group, const ChunkKey& key) {
  return key.word(0) ^ (uint64_t{space} << 32 | group) * 0x9e3779b97f4a7c15;
}
uint64_t NameOf(const ChunkId& id) { return NameOf(id.space, id.group, id.key); }
uint64_t OfShard(uint64_t chunk, uint32_t shard) { return chunk + shard * 0xc2b2ae3d27d4eb4f; }

uint64_t NumberOf(Place place) { return uint64_t{place.segment} << 32 | place.unit; }

bool SameTree(const ChunkRow& a, const ChunkRow& b) { return a.parent == b.parent && a.id.position == b.id.position; }

}  // namespace

std::optional<std::string> WhyTooOld(std::span<const SegmentRow> rows, std::span<const SegmentToRead> found) {
  absl::flat_hash_map<uint32_t, uint64_t> epochs;
  for (const SegmentRow& row : rows) epochs[row.number] = row.epoch;
  for (const SegmentToRead& segment : found) {
    const auto row = epochs.find(segment.number);
    if (row == epochs.end()) return absl::StrCat("it is too old: it doesn't know segment ", segment.number);
    if (row->second < segment.epoch) {
      return absl::StrCat("it is too old: it knows segment ", segment.number, " in epoch ", row->second,
                          ", and that is in epoch ", segment.epoch);
    }
  }
  return std::nullopt;
}

void GoodRecords::Add(const RecordHeader& header, uint32_t space) {
  at_[NumberOf({header.segment, header.unit})] = OfShard(NameOf(space, header.group, header.key), header.shard);
}

bool GoodRecords::Hold(const ChunkRow& row) const {
  const uint64_t chunk = NameOf(row.id);
  for (uint32_t shard = 0; shard < row.places.size(); ++shard) {
    const auto it = at_.find(NumberOf(row.places[shard]));
    if (it == at_.end() || it->second != OfShard(chunk, shard)) return false;
  }
  return true;
}

CatalogCheck HoldAgainst(std::span<const ChunkRow> rows, std::span<const ChunkRow> records, const GoodRecords& good,
                         absl::FunctionRef<bool(uint32_t segment)> was_read) {
  absl::flat_hash_map<uint64_t, const ChunkRow*> made;
  for (const ChunkRow& record : records) made[NameOf(record.id)] = &record;
  CatalogCheck check;
  check.rows = rows.size();
  absl::flat_hash_set<uint64_t> listed;
  for (const ChunkRow& row : rows) {
    listed.insert(NameOf(row.id));
    const auto it = made.find(NameOf(row.id));
    const ChunkRow* const record = it == made.end() ? nullptr : it->second;
    const bool holds = good.Hold(row);
    if (holds && (record == nullptr || SameTree(row, *record))) {
      ++check.good;
      continue;
    }
    if (!holds && !std::all_of(row.places.begin(), row.places.end(), [&](Place p) { return was_read(p.segment); })) {
      ++check.unread;
      continue;
    }
    ++(holds ? check.misplaced : check.broken);
    if (record == nullptr || record->id != row.id) check.repair.Erase(row.id);
    if (record != nullptr) check.repair.Put(*record);
  }
  for (const auto& [name, record] : made) check.unlisted += listed.contains(name) ? 0 : 1;
  return check;
}

}  // namespace kvist::ssd
