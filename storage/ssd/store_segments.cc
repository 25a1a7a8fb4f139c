// The rows of a store's segments, and what is asked of its owner when one is to be used again.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "storage/ssd/segment_scan.h"
#include "storage/ssd/store_state.h"

namespace kvist::ssd {

void Store::State::PutSegment(uint32_t segment, SegmentState state, std::function<void()> then) {
  SegmentRow& row = segments_[segment];
  row.number = segment;
  row.state = state;
  CatalogBatch batch;
  batch.Put(row);
  Must(std::move(batch), std::move(then));
}

void Store::State::Announced(const SegmentHeader& header) {
  records_->Know(header);
  keeper_->Post([this, header] {
    SegmentRow& row = segments_[header.segment];
    row.epoch = header.epoch;
    row.secret = header.secret;
    Step("segment: row");
    PutSegment(header.segment, SegmentState::kOpen, [this, header] {
      Step("segment: header");
      devices_[ssd::DeviceOf(header.segment)]->Post([header](StoreDevice& d) { d.drive().writer().Admit(header); });
    });
  });
}

// A start looks into the segments that are open by their rows for records whose rows are lost: this one stays so until all that lies in it has its rows.
void Store::State::Settled(uint32_t segment) {
  keeper_->Post([this, segment] {
    WhenSettled([this, segment, epoch = segments_[segment].epoch](const absl::Status& settled) {
      const SegmentRow& row = segments_[segment];
      if (settled.ok() && row.epoch == epoch && row.state == SegmentState::kOpen)
        PutSegment(segment, SegmentState::kFull, [] {});
    });
  });
}

// Rows that are on their way may lead there in place of older chunks' rows: the fence is put when their owner has heard of them, or a crash between
// would take both.
void Store::State::Fenced(uint32_t segment) {
  keeper_->Post([this, segment] {
    segments_[segment].state = SegmentState::kFenced;  // no more rows lead there
    Must({}, [this, segment] {
      PutSegment(segment, SegmentState::kFenced, [this, segment] {
        given_up_.insert(segment);
        TellGivenUp();
      });
    });
    ClearAgain(segment);
  });
}

void Store::State::Empty(uint32_t segment) {
  keeper_->Post([this, segment] {
    Step("segment: free");
    PutSegment(segment, SegmentState::kFree, [this, segment] {
      Step("segment: release");
      devices_[ssd::DeviceOf(segment)]->Post([segment](StoreDevice& d) { d.Release(segment); });
    });
  });
}

void Store::State::Writable(uint32_t device, bool writable, const std::string& why) {
  keeper_->Post([this, device, why = writable ? std::string() : why] {
    why_not_[device] = why;
    SayWritable();
  });
}

void Store::State::WantsBack(const SegmentHeader& header) {
  beside_->Post([this, header] { AskFor(header); });
}

void Store::State::AskFor(const SegmentHeader& header) {
  std::vector<PlaceWanted> records;
  ScanSegment(
      records_.get(), ToRead(header), 1,
      [&](const RecordHeader& record) {
        const std::optional<uint32_t> space = spaces_.NumberOf(record.space);
        if (record.kind != RecordKind::kShard || !space) return;
        records.push_back({{record.position, *space, record.group, record.key},
                           record.shard,
                           UnitsFor({record.payload_bytes}),
                           {record.segment, record.unit}});
      },
      [this] { return !closing_; });
  if (closing_) return;
  keeper_->Post([this, segment = header.segment] { ClearAgain(segment); });
  owner_->WantsBack(std::move(records));
  // Behind what the owner has just asked for.
  keeper_->Post([this, segment = header.segment] {
    FreeLeft([segment](const ChunkId&, const Killed& left) {
      return std::any_of(left.places.begin(), left.places.end(),
                         [segment](Place place) { return place.segment == segment; });
    });
    devices_[ssd::DeviceOf(segment)]->Post([now = hands_.Now()](StoreDevice& d) { d.AskAgain(now); });
  });
}

}  // namespace kvist::ssd
