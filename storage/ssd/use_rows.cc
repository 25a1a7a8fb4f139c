#include "storage/ssd/use_rows.h"

#include <algorithm>
#include <utility>

namespace kvist::ssd {

void UseRows::Found(UseRow row) {
  uint32_t& parts = parts_[row.period];
  parts = std::max(parts, row.part + 1);
  base_ = latest_ = std::max(latest_, row.period);
  found_.push_back(std::move(row));
}

std::vector<UsesNote> UseRows::Begin() {
  begun_ = true;
  std::vector<UsesNote> told;
  for (UseRow& row : std::exchange(found_, {})) {
    if (latest_ - row.period >= kPeriods) continue;
    told.push_back({-static_cast<int32_t>(latest_ - row.period), Bytes{row.written}, std::move(row.chunks)});
  }
  std::stable_sort(told.begin(), told.end(), [](const UsesNote& a, const UsesNote& b) { return a.period < b.period; });
  for (UsesNote& note : std::exchange(waiting_, {})) Send(std::move(note));
  return told;
}

void UseRows::Note(UsesNote note) {
  if (begun_) return Send(std::move(note));
  if (waiting_.size() < kWaitingMax) waiting_.push_back(std::move(note));
}

void UseRows::Send(UsesNote note) {
  const int64_t period = int64_t{base_} + note.period;
  if (period < 0 || period > UINT32_MAX || period + kPeriods <= latest_) return;
  latest_ = std::max(latest_, static_cast<uint32_t>(period));
  CatalogBatch batch;
  EraseOld(&batch);
  uint32_t& parts = parts_[static_cast<uint32_t>(period)];
  if (parts < kUsePartsMax)
    batch.Put(UseRow{static_cast<uint32_t>(period), parts++, note.written.value, std::move(note.chunks)});
  send_(std::move(batch));
}

void UseRows::EraseOld(CatalogBatch* batch) {
  for (auto it = parts_.begin(); it != parts_.end() && latest_ - it->first >= kPeriods; it = parts_.erase(it)) {
    for (uint32_t part = 0; part < it->second; ++part) batch->EraseUse(it->first, part);
  }
}

}  // namespace kvist::ssd
