#include "storage/ssd/rebuild.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "storage/base/status.h"

namespace kvist::ssd {
namespace {

absl::Status Ended() { return absl::CancelledError("the rebuild was ended early"); }

}  // namespace

Rebuild::Rebuild(RecordSource* source, std::vector<SegmentToRead> segments, RebuildSink* sink, RebuildOptions options)
    : source_(source), segments_(std::move(segments)), sink_(sink), options_(options) {}

void Rebuild::Run() {
  std::vector<std::thread> readers;
  const size_t count = std::min<size_t>(options_.readers, segments_.size());
  for (size_t i = 0; i < count; ++i) readers.emplace_back([this] { ReadSegments(); });
  if (count == 0) ReadSegments();
  for (std::thread& reader : readers) reader.join();
  absl::Status status = Cancelled() ? Ended() : absl::OkStatus();
  if (status.ok()) status = NumberSpaces();
  if (status.ok()) status = HandOver();
  RebuildReport report;
  {
    const absl::MutexLock lock(&mutex_);
    report_.status = status;
    report_.counts = rows_.counts();
    report_.highest_sequence = rows_.highest_sequence();
    report = report_;
  }
  sink_->Rebuilt(report);
}

void Rebuild::ReadSegments() {
  std::vector<std::pair<RecordHeader, bool>> found;  // and whether the sink believes it
  const auto more = [this] { return !Cancelled(); };
  const auto hand_in = [this, &found] {
    const absl::MutexLock lock(&mutex_);
    for (const auto& [header, believed] : found) rows_.Add(header, believed);
    found.clear();
  };
  for (;;) {
    const size_t i = next_segment_.fetch_add(1, std::memory_order_relaxed);
    if (i >= segments_.size() || Cancelled()) return;
    const SegmentScanned scanned = ScanSegment(
        source_, segments_[i], 1,
        [&](const RecordHeader& header) {
          found.emplace_back(header, sink_->Believes(header));
          records_.fetch_add(1, std::memory_order_relaxed);
          if (found.size() == 1024) hand_in();  // few at a time: a segment of small records has a million
        },
        more, options_.at_gap);
    hand_in();
    segments_read_.fetch_add(1, std::memory_order_relaxed);
    const absl::MutexLock lock(&mutex_);
    report_.gaps += scanned.gaps;
    report_.gap_units += scanned.gap_units;
    report_.unreadable += scanned.unreadable;
  }
}

absl::Status Rebuild::NumberSpaces() {
  std::vector<RebuiltRows::Space> spaces;
  {
    const absl::MutexLock lock(&mutex_);
    rows_.Finish();
    spaces = rows_.spaces();
  }
  for (const RebuiltRows::Space& space : spaces) {
    // The newest description that can be read; they are the same, for the digest stands for all that matters of it.
    for (const auto& [sequence, place] : space.descriptions) {
      if (Cancelled()) return Ended();
      const auto segment = std::find_if(segments_.begin(), segments_.end(),
                                        [p = place](const SegmentToRead& s) { return s.number == p.segment; });
      RecordHeader header{};
      if (segment == segments_.end() || source_->ReadHeader(*segment, place.unit, &header) != RecordSource::Found::kRecord)
        continue;
      const absl::StatusOr<std::string> description = source_->ReadPayload(*segment, header);
      if (!description.ok()) continue;
      const std::optional<uint32_t> number = sink_->NumberOf(space.digest, *description);
      const absl::MutexLock lock(&mutex_);
      if (number.has_value()) rows_.Number(space.digest, *number);
      break;
    }
  }
  return absl::OkStatus();
}

absl::Status Rebuild::HandOver() {
  const auto next = [this] {
    const absl::MutexLock lock(&mutex_);
    RowBatch batch;
    batch.chunks = rows_.NextChunks(Catalog::kLoadRows);
    return batch;
  };
  RowBatch batch;
  {
    const absl::MutexLock lock(&mutex_);
    batch.clears = rows_.clears();  // at most as many as there are spaces
  }
  if (batch.rows() == 0) batch = next();
  for (; batch.rows() > 0; batch = next()) {
    if (Cancelled() || !sink_->Take(std::move(batch))) return Ended();
  }
  return absl::OkStatus();
}

}  // namespace kvist::ssd
