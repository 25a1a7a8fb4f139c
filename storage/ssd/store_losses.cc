// What a store has lost: damage, which its scrubber finds, and segments that it gives up.
#include <algorithm>
#include <utility>

#include "storage/ssd/store_state.h"

namespace kvist::ssd {
namespace {

constexpr absl::Duration kTellAgainMost = absl::Minutes(1);

bool AnyIn(const std::set<uint32_t>& segments, std::span<const Place> places) {
  return std::any_of(places.begin(), places.end(), [&](Place place) { return segments.contains(place.segment); });
}

bool Covers(const Scrubber::Hole& hole, Place place) {
  return place.segment == hole.segment.segment && place.unit >= hole.from && place.unit < hole.to;
}

// Rows that lead to such places.
class RowsTo final : public RowSink {
 public:
  RowsTo(absl::FunctionRef<bool(Place)> there, const std::atomic<bool>* enough) : there_(there), enough_(*enough) {}

  bool Take(RowBatch batch) override {
    for (const ChunkRow& row : batch.chunks) {
      for (uint32_t shard = 0; shard < row.places.size(); ++shard) {
        if (there_(row.places[shard])) found.push_back({row.id, shard, row.units, row.places[shard]});
      }
    }
    return !enough_;
  }
  void Loaded(const LoadReport& report) override {
    whole = report.status.ok();
    ended.Notify();
  }

  std::vector<PlaceWanted> found;
  bool whole = false;
  absl::Notification ended;

 private:
  const absl::FunctionRef<bool(Place)> there_;
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

std::optional<std::vector<PlaceWanted>> Store::State::RowsThatLead(absl::FunctionRef<bool(Place)> there) {
  RowsTo rows(there, &closing_);
  if (!catalog_->Load(&rows).ok()) return std::nullopt;
  hands_.Await(rows.ended);
  if (!rows.whole) return std::nullopt;
  return std::move(rows.found);
}

std::vector<PlaceWanted> Store::State::WantedIn(std::span<const Scrubber::Hole> holes) {
  std::map<uint32_t, SegmentHeader> use;
  std::map<uint32_t, std::vector<Scrubber::Hole>> holes_of;
  for (const Scrubber::Hole& hole : holes) {
    use.emplace(hole.segment.segment, hole.segment);
    holes_of[hole.segment.segment].push_back(hole);
  }
  const auto in_hole = [&](Place place) {
    const auto of = holes_of.find(place.segment);
    return of != holes_of.end() &&
           std::any_of(of->second.begin(), of->second.end(), [&](const auto& hole) { return Covers(hole, place); });
  };
  // What couldn't be loaded is found by the next pass.
  std::vector<PlaceWanted> found = RowsThatLead(in_hole).value_or(std::vector<PlaceWanted>());
  std::erase_if(found, [&](const PlaceWanted& wanted) { return !IsStill(use.at(wanted.place.segment)); });
  // A clear whose record is lost would be forgotten by a rebuild: it is written again.
  AskKeeper([&] {
    std::set<uint32_t> lost;
    for (const auto& record : clear_records_) {
      const Place place = record.second.place;
      if (place && in_hole(place)) lost.insert(place.segment);
    }
    for (const uint32_t segment : lost) {
      if (IsStill(use.at(segment))) ClearAgain(segment);
    }
  });
  return found;
}

void Store::State::Damaged(std::vector<PlaceWanted> records) { owner_->Damaged(std::move(records)); }

// The keeper's. Rows that are committed before a segment's fence lead there; later ones don't (SettleWrites).
void Store::State::TellGivenUp() {
  if (given_up_.empty() || telling_ || recovering_ || closing_ || !commits_->broken().ok()) return;
  telling_ = true;
  beside_->Post([this, segments = std::exchange(given_up_, {})] {
    std::optional<std::vector<PlaceWanted>> found =
        RowsThatLead([&](Place place) { return segments.contains(place.segment); });
    const bool told = found.has_value();
    if (told && !found->empty()) owner_->GivenUp(*std::move(found));
    // Behind what the owner has just asked for.
    keeper_->Post([this, told, segments] {
      telling_ = false;
      if (told) {
        tell_again_ = kTellAgain;
        FreeLeft([&](const ChunkId&, const Killed& left) { return AnyIn(segments, left.places); });
        return TellGivenUp();
      }
      given_up_.insert(segments.begin(), segments.end());
      keeper_->PostAt(hands_.Now() + tell_again_, [this] { TellGivenUp(); });
      tell_again_ = std::min(2 * tell_again_, kTellAgainMost);
    });
  });
}

}  // namespace kvist::ssd
