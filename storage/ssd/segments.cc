#include "storage/ssd/segments.h"

#include <algorithm>
#include <utility>

#include "storage/base/check.h"
#include "storage/ssd/segment_header.h"

namespace kvist::ssd {

Segments::Segments(Options options) : options_(options), segments_(options.segments), free_(options.segments) {
  KVIST_CHECK(options.device < kDevicesMax && options.units >= 4);
}

const Segments::Segment& Segments::Of(uint32_t segment) const {
  KVIST_CHECK(DeviceOf(segment) == options_.device && IndexOf(segment) < segments_.size());
  return segments_[IndexOf(segment)];
}
Segments::Segment& Segments::Of(uint32_t segment) { return const_cast<Segment&>(std::as_const(*this).Of(segment)); }

const SegmentHeader* Segments::header(uint32_t segment) const {
  if (DeviceOf(segment) != options_.device || IndexOf(segment) >= segments_.size()) return nullptr;
  const Segment& of = segments_[IndexOf(segment)];
  return of.header.epoch == 0 ? nullptr : &of.header;
}

void Segments::Restore(const SegmentHeader& header, uint32_t live_units) {
  KVIST_CHECK(live_units <= units_max());
  TakeFound(header.segment) = {State::kFull, false, live_units, header};
  live_ += live_units;
  epoch_ = std::max(epoch_, header.epoch);
}

void Segments::Withhold(uint32_t segment) { TakeFound(segment).state = State::kFenced; }

Segments::Segment& Segments::TakeFound(uint32_t segment) {
  KVIST_CHECK(DeviceOf(segment) == options_.device);
  const uint32_t index = IndexOf(segment);
  if (index >= segments_.size()) segments_.resize(index + 1);  // beyond the capacity: not counted as free, in whatever state
  KVIST_CHECK(segments_[index].state == State::kFree);
  if (index < options_.segments) --free_;
  return segments_[index];
}

void Segments::AddLive(uint32_t segment, uint32_t units) {
  Segment& of = Of(segment);
  KVIST_CHECK((of.state == State::kFull || of.state == State::kFenced) && of.live + units <= units_max());
  of.live += units;
  live_ += units;
}

std::optional<SegmentHeader> Segments::Prepare(const StoreId& store, const Secret& secret) {
  KVIST_CHECK(!prepared_.has_value());
  if (free_ == 0) return std::nullopt;
  uint32_t index = 0;
  while (segments_[index].state != State::kFree) ++index;  // there is one within the capacity
  Segment& of = segments_[index];
  of = {State::kPrepared, false, 0, MakeSegmentHeader(store, NumberOf(index), options_.units, ++epoch_, secret)};
  prepared_ = NumberOf(index);
  --free_;
  return of.header;
}

void Segments::Ready(uint32_t segment) {
  KVIST_CHECK(prepared_ == segment);
  Of(segment).ready = true;
}

void Segments::Refuse(uint32_t segment) {
  KVIST_CHECK(prepared_ == segment);
  prepared_.reset();
  Of(segment).state = State::kFree;
  ++free_;
}

std::optional<uint32_t> Segments::MakeRoom(uint32_t units) {
  KVIST_CHECK(units > 0 && units <= units_max());
  if (open_ && units > open_units()) {
    Of(*open_).state = State::kClosing;
    open_.reset();
  }
  if (!open_) {
    if (!prepared_ || !Of(*prepared_).ready) return std::nullopt;
    open_ = prepared_;
    prepared_.reset();
    Of(*open_).state = State::kOpen;
    cursor_ = 1;
  }
  return open_;
}

std::optional<Place> Segments::Append(uint32_t units) {
  if (!MakeRoom(units)) return std::nullopt;
  const Place place{*open_, cursor_};
  cursor_ += units;
  Of(*open_).live += units;
  live_ += units;
  return place;
}

void Segments::Settled(uint32_t segment) {
  KVIST_CHECK(Of(segment).state == State::kClosing);
  Of(segment).state = State::kFull;
}

void Segments::Kill(Place place, uint32_t units) {
  Segment& of = Of(place.segment);
  KVIST_CHECK(of.live >= units && place.unit + units < options_.units);
  of.live -= units;
  live_ -= units;
}

void Segments::Fence(uint32_t segment) {
  Segment& of = Of(segment);
  KVIST_CHECK(of.state != State::kFree);
  if (open_ == segment) open_.reset();
  if (prepared_ == segment) prepared_.reset();
  of.state = State::kFenced;
}

void Segments::Release(uint32_t segment) {
  Segment& of = Of(segment);
  KVIST_CHECK((of.state == State::kFull || of.state == State::kFenced) && of.live == 0);
  if (of.state == State::kFenced) return;
  of.state = State::kFree;
  if (IndexOf(segment) < options_.segments) ++free_;
}

bool Segments::HasSurplus() const {
  return std::any_of(segments_.begin() + std::min<ptrdiff_t>(options_.segments, std::ssize(segments_)), segments_.end(),
                     [](const Segment& of) { return of.state == State::kFull; });
}

std::vector<uint32_t> Segments::Candidates(uint32_t count) const {
  std::vector<uint32_t> full;
  for (uint32_t i = 0; i < segments_.size(); ++i) {
    if (segments_[i].state == State::kFull) full.push_back(NumberOf(i));
  }
  count = std::min<uint32_t>(count, static_cast<uint32_t>(full.size()));
  std::partial_sort(full.begin(), full.begin() + count, full.end(), [this](uint32_t a, uint32_t b) {
    // Of two that are as empty the older one: what it holds has had its time.
    return Of(a).live != Of(b).live ? Of(a).live < Of(b).live : Of(a).header.epoch < Of(b).header.epoch;
  });
  full.resize(count);
  return full;
}

void Segments::CheckInvariants() const {
  uint32_t free = 0;
  uint64_t live = 0;
  for (uint32_t i = 0; i < segments_.size(); ++i) {
    const Segment& of = segments_[i];
    free += of.state == State::kFree && i < options_.segments;
    live += of.live;
    KVIST_CHECK(of.live <= units_max() && (of.state != State::kFree || of.live == 0));
    KVIST_CHECK((of.state == State::kOpen) == (open_ == NumberOf(i)));
    KVIST_CHECK((of.state == State::kPrepared) == (prepared_ == NumberOf(i)));
    KVIST_CHECK(of.header.epoch <= epoch_);
  }
  KVIST_CHECK(free == free_ && live == live_);
  KVIST_CHECK(!open_ || (cursor_ >= 1 && cursor_ < options_.units));
}

}  // namespace kvist::ssd
