// What a store's scrubber asks, and what comes of what it finds.
#include <algorithm>
#include <utility>

#include "storage/ssd/store_state.h"

namespace kvist::ssd {
namespace {

bool Covers(const Scrubber::Hole& hole, Place place) {
  return place.segment == hole.segment.segment && place.unit >= hole.from && place.unit < hole.to;
}

// Rows that lead into holes.
class RowsInHoles final : public RowSink {
 public:
  RowsInHoles(std::span<const Scrubber::Hole> holes, const std::atomic<bool>* enough) : enough_(*enough) {
    for (const Scrubber::Hole& hole : holes) holes_[hole.segment.segment].push_back(hole);
  }

  bool Take(RowBatch batch) override {
    for (const ChunkRow& row : batch.chunks) {
      for (uint32_t shard = 0; shard < row.places.size(); ++shard) {
        const Place place = row.places[shard];
        const auto it = holes_.find(place.segment);
        if (it == holes_.end()) continue;
        if (std::any_of(it->second.begin(), it->second.end(), [&](const auto& hole) { return Covers(hole, place); }))
          found.push_back({row.id, shard, row.units, place});
      }
    }
    return !enough_;
  }
  void Loaded(const LoadReport&) override { ended.Notify(); }  // what wasn't loaded is found by the next pass

  std::vector<PlaceWanted> found;
  absl::Notification ended;

 private:
  std::map<uint32_t, std::vector<Scrubber::Hole>> holes_;
  const std::atomic<bool>& enough_;
};

}  // namespace

std::vector<SegmentHeader> Store::State::FullSegments() {
  std::vector<SegmentHeader> full;
  AskKeeper([&] {
    for (const auto& [number, row] : segments_) {
      const std::optional<SegmentHeader> header = records_->HeaderOf(number);
      if (row.state == SegmentState::kFull && header.has_value() && header->epoch == row.epoch) full.push_back(*header);
    }
  });
  return full;
}

bool Store::State::IsStill(const SegmentHeader& segment) {
  const std::optional<SegmentHeader> now = records_->HeaderOf(segment.segment);
  return now.has_value() && now->epoch == segment.epoch;
}

std::vector<PlaceWanted> Store::State::WantedIn(std::span<const Scrubber::Hole> holes) {
  RowsInHoles rows(holes, &closing_);
  if (catalog_->Load(&rows).ok()) hands_.Await(rows.ended);
  std::map<uint32_t, SegmentHeader> use;
  for (const Scrubber::Hole& hole : holes) use.emplace(hole.segment.segment, hole.segment);
  std::erase_if(rows.found, [&](const PlaceWanted& wanted) { return !IsStill(use.at(wanted.place.segment)); });
  // A clear whose record is lost would be forgotten by a rebuild: it is written again.
  AskKeeper([&] {
    std::set<uint32_t> lost;
    for (const auto& record : clear_records_) {
      const Place place = record.second.place;
      if (!place) continue;
      if (std::any_of(holes.begin(), holes.end(), [&](const auto& hole) { return Covers(hole, place); }))
        lost.insert(place.segment);
    }
    for (const uint32_t segment : lost) {
      if (IsStill(use.at(segment))) ClearAgain(segment);
    }
  });
  return std::move(rows.found);
}

void Store::State::Damaged(std::vector<PlaceWanted> records) { owner_->Damaged(std::move(records)); }

}  // namespace kvist::ssd
