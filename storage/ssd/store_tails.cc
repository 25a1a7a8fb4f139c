// What a start looks for after a crash: records in segments that are open by their rows, whose own rows the catalog's log may have lost.
#include <algorithm>
#include <utility>

#include "storage/ssd/store_state.h"

namespace kvist::ssd {

// The keeper's. A database may lose its log's last records in a crash, and can't know. What they told of lies in segments that are open by their
// rows: one is called full when all that is in it has its rows, and were its own row lost, the catalog would be too old. Read before the rows, for
// clears are among it, and parents of what has rows.
void Store::State::BeginTails() {
  if (closing_) return EndRecovery(absl::CancelledError("the store was closed"));
  std::vector<SegmentToRead> open;
  for (const auto& [number, header] : usable_) {
    if (segments_[number].state == SegmentState::kOpen) open.push_back(ToRead(header));
  }
  tails_unread_ = std::any_of(withheld_.begin(), withheld_.end(), [this](uint32_t segment) {
    const auto row = segments_.find(segment);
    return row != segments_.end() && row->second.state == SegmentState::kOpen;
  });
  stage_ = Stage::kTails;
  ReadRecords(std::move(open), AtGap::kEnd);
}

// The keeper's.
void Store::State::FlushTails() {
  if (closing_) return EndRecovery(absl::CancelledError("the store was closed"));
  // What the catalog knows is on the disk.
  std::erase_if(tail_clears_, [this](const ClearRow& row) {
    const auto known = clear_records_.find(row.space);
    return known != clear_records_.end() && known->second.sequence == row.sequence && known->second.place == row.place;
  });
  std::set<uint32_t> segments = tails_.Segments();
  for (const ClearRow& row : tail_clears_) segments.insert(row.place.segment);
  FlushFound({segments.begin(), segments.end()}, [this](const std::vector<uint32_t>& failed) {
    if (!failed.empty()) tails_unread_ = true;
    const auto refused = [&failed](Place place) {
      return std::find(failed.begin(), failed.end(), place.segment) != failed.end();
    };
    tails_.Forget(refused);
    for (const ClearRow& row : std::exchange(tail_clears_, {})) {
      if (!refused(row.place)) NoteClear(row, /*committed=*/false);
    }
    beside_->Post([this] { LoadRows(); });
  });
}

// A record that was being written when the process died may have a header and no more.
bool Store::State::IsWhole(const ChunkRow& row) {
  for (const Place place : row.places) {
    const auto segment = usable_.find(place.segment);
    if (segment == usable_.end()) return false;
    const SegmentToRead to_read = ToRead(segment->second);
    RecordHeader header{};
    const RecordSource::Found found = records_->ReadHeader(to_read, place.unit, &header);
    if (found == RecordSource::Found::kUnreadable) tails_unread_ = true;
    if (found != RecordSource::Found::kRecord) return false;
    const absl::StatusOr<Verdict> verdict = records_->Check(to_read, header);
    if (!verdict.ok()) tails_unread_ = true;
    if (!verdict.ok() || *verdict != Verdict::kGood) return false;
  }
  return true;
}

// What comes behind it in the catalog, how far that is settled above all, comes when it is there: nobody has to wait for it.
void Store::State::CommitAdopted(std::vector<ChunkRow> rows) {
  if (rows.empty()) return;
  recovery_.adopted += rows.size();
  PutFound(std::move(rows), [this](const std::vector<ChunkRow>&, const absl::Status& status) {
    if (!status.ok()) tails_unread_ = true;  // the next start is to find it again
    CheckCatalog();
  });
}

}  // namespace kvist::ssd
