#include "storage/ssd/rebuilt_rows.h"

#include <algorithm>
#include <functional>
#include <tuple>

#include "storage/base/check.h"

namespace kvist::ssd {

uint32_t RebuiltRows::SpaceIndex(const SpaceDigest& digest) {
  std::vector<uint32_t>& same = space_of_[digest.word(0)];
  for (const uint32_t index : same) {
    if (spaces_[index].digest == digest) return index;
  }
  same.push_back(static_cast<uint32_t>(spaces_.size()));
  spaces_.push_back({digest, {}});
  numbers_.emplace_back();
  return same.back();
}

void RebuiltRows::Add(const RecordHeader& header, bool believed) {
  ++counts_.records;
  const Place place{header.segment, header.unit};
  const bool shard = header.kind == RecordKind::kShard;
  if (!place || (shard && (header.shards == 0 || header.shards > kShardsMax || header.shard >= header.shards)) ||
      (!shard && header.kind != RecordKind::kSpace && header.kind != RecordKind::kClear)) {
    ++counts_.invalid;
    return;
  }
  highest_sequence_ = std::max(highest_sequence_, header.sequence);
  if (!believed) {
    ++counts_.superseded;
    return;
  }
  if (header.kind == RecordKind::kClear) {
    ClearRow& newest = clears_[header.space];
    if (header.sequence >= newest.sequence) newest = {header.space, header.sequence, place};
    return;
  }
  const uint32_t space = SpaceIndex(header.space);
  if (header.kind == RecordKind::kSpace) {
    spaces_[space].descriptions[header.sequence] = place;
    return;
  }
  shards_.push_back({.key = header.key,
                     .parent = header.parent,
                     .sequence = header.sequence,
                     .place = place,
                     .position = header.position,
                     .units = UnitsFor({header.payload_bytes}),
                     .space = space,
                     .group = header.group,
                     .shard = header.shard,
                     .shards = header.shards,
                     .has_parent = header.has_parent,
                     .codec = header.codec});
}

uint64_t RebuiltRows::ClearedBelow(uint32_t space) const {
  const auto of = [this](const SpaceDigest& digest) {
    const auto it = clears_.find(digest);
    return it == clears_.end() ? 0 : it->second.sequence;
  };
  return std::max(of(SpaceDigest{}), of(spaces_[space].digest));
}

void RebuiltRows::Finish() {
  std::vector<uint64_t> cleared(spaces_.size());
  for (uint32_t space = 0; space < cleared.size(); ++space) cleared[space] = ClearedBelow(space);
  counts_.cleared += std::erase_if(shards_, [&](const Shard& shard) { return shard.sequence < cleared[shard.space]; });
  KVIST_CHECK(shards_.size() <= UINT32_MAX);
  // A chunk's records beside each other, of each shard the newest first. The place only makes the order the same each time.
  std::sort(shards_.begin(), shards_.end(), [](const Shard& a, const Shard& b) {
    const auto rank = [](const Shard& s) { return std::tie(s.space, s.group, s.key, s.shard); };
    if (rank(a) != rank(b)) return rank(a) < rank(b);
    return std::tie(a.sequence, a.place.segment, a.place.unit) > std::tie(b.sequence, b.place.segment, b.place.unit);
  });
  size_t kept = 0;
  for (size_t from = 0, to = 0; from < shards_.size(); from = to) {
    const auto same = [&](const Shard& s) {
      return s.key == shards_[from].key && s.group == shards_[from].group && s.space == shards_[from].space;
    };
    for (to = from + 1; to < shards_.size() && same(shards_[to]);) ++to;
    FinishChunk(from, to, &kept);
  }
  shards_.resize(kept);
  std::stable_sort(chunks_.begin(), chunks_.end(), [](const Chunk& a, const Chunk& b) { return a.position < b.position; });
}

// Keeps the newest record of each shard of one chunk, in the newest form in which all are there.
void RebuiltRows::FinishChunk(size_t from, size_t to, size_t* kept) {
  const std::span<const Shard> records = std::span(shards_).subspan(from, to - from);
  for (uint64_t below = UINT64_MAX;;) {
    const Shard* newest = nullptr;
    for (const Shard& shard : records) {
      if (shard.sequence < below && (newest == nullptr || shard.sequence > newest->sequence)) newest = &shard;
    }
    if (newest == nullptr) break;
    if (FinishForm(records, Shard(*newest), kept)) return;
    below = newest->sequence;
  }
  ++counts_.incomplete;
}

// The records of a chunk that are of the form of `like`, the newest of them. False, and nothing is kept: some shard has none.
bool RebuiltRows::FinishForm(std::span<const Shard> records, const Shard& like, size_t* kept) {
  const auto is_like = [&like](const Shard& shard) {
    return shard.shards == like.shards && shard.units == like.units && shard.codec == like.codec;
  };
  uint32_t shards = 0;
  const Shard* before = nullptr;
  for (const Shard& shard : records) {
    if (!is_like(shard)) continue;
    shards += before == nullptr || before->shard != shard.shard ? 1 : 0;
    before = &shard;
  }
  if (shards != like.shards) return false;
  // In place: what is kept lies before what is looked at.
  const size_t first = *kept;
  for (const Shard& shard : records) {
    if (!is_like(shard)) continue;  // of a time when the chunk was cut otherwise, or lay in another form
    if (*kept > first && shards_[*kept - 1].shard == shard.shard) {
      ++counts_.superseded;
      continue;
    }
    shards_[(*kept)++] = shard;
  }
  // What the row says of the chunk, the newest says; it stands with the first shard, whose place is its own.
  Shard& says = shards_[first];
  says.sequence = like.sequence;
  says.position = like.position;
  says.has_parent = like.has_parent;
  says.parent = like.parent;
  chunks_.push_back({like.position, static_cast<uint32_t>(first)});
  return true;
}

std::vector<ClearRow> RebuiltRows::clears() const {
  std::vector<ClearRow> rows;
  for (const auto& [space, row] : clears_) rows.push_back(row);
  return rows;
}

void RebuiltRows::Number(const SpaceDigest& digest, uint32_t number) { numbers_[SpaceIndex(digest)] = number; }

std::vector<ChunkRow> RebuiltRows::NextChunks(size_t most) {
  std::vector<ChunkRow> rows;
  for (; next_chunk_ < chunks_.size() && rows.size() < most; ++next_chunk_) {
    const Shard& says = shards_[chunks_[next_chunk_].first];
    const std::optional<uint32_t> number = numbers_[says.space];
    if (!number.has_value()) {
      ++counts_.undescribed;
      continue;
    }
    ChunkRow& row = rows.emplace_back();
    row.id.position = says.position;
    row.id.space = *number;
    row.id.group = says.group;
    row.id.key = says.key;
    if (says.has_parent != 0) row.parent = says.parent;
    row.sequence = says.sequence;
    row.units = says.units;
    row.codec = says.codec;
    for (uint32_t shard = 0; shard < says.shards; ++shard) row.places.push_back((&says)[shard].place);
    ++counts_.chunks;
  }
  return rows;
}

}  // namespace kvist::ssd
