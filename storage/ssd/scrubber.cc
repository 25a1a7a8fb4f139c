#include "storage/ssd/scrubber.h"

#include <algorithm>
#include <utility>

#include "storage/base/clock.h"
#include "storage/ssd/segment_scan.h"

namespace kvist::ssd {

Scrubber::Scrubber(SegmentRecords* records, Owner* owner, Options options)
    : records_(*records), owner_(*owner), options_(options), thread_([this] { Run(); }) {}

Scrubber::~Scrubber() { End(); }

void Scrubber::Begin() {
  const absl::MutexLock lock(&mutex_);
  begun_ = true;
  told_.Signal();
}

void Scrubber::End() {
  {
    const absl::MutexLock lock(&mutex_);
    ending_ = true;
    told_.Signal();
  }
  if (thread_.joinable()) thread_.join();
}

Store::Scrubbed Scrubber::scrubbed() const {
  const absl::MutexLock lock(&mutex_);
  return scrubbed_;
}

void Scrubber::Run() {
  {
    const absl::MutexLock lock(&mutex_);
    while (!begun_ && !ending_) told_.Wait(&mutex_);
  }
  for (absl::Time next = MonotonicNow(); SleepUntil(next);) {
    next = MonotonicNow() + options_.every;
    Pass(MonotonicNow());
  }
}

// false: it ends.
bool Scrubber::SleepUntil(absl::Time when) {
  const absl::MutexLock lock(&mutex_);
  for (absl::Time now = MonotonicNow(); !ending_ && now < when; now = MonotonicNow())
    told_.WaitWithTimeout(&mutex_, when - now);
  return !ending_;
}

bool Scrubber::Pace(Bytes read) {
  read_ += read;
  return SleepUntil(began_ + absl::Seconds(static_cast<double>(read_.value) / rate_));
}

void Scrubber::Pass(absl::Time began) {
  const std::vector<SegmentHeader> segments = owner_.FullSegments();
  Bytes all{};
  for (const SegmentHeader& segment : segments) all += kUnit * segment.units;
  began_ = began;
  rate_ = std::max(static_cast<double>(options_.rate_min.value),
                   2 * static_cast<double>(all.value) / absl::ToDoubleSeconds(options_.every));
  read_ = {};
  std::vector<Hole> holes;
  for (const SegmentHeader& segment : segments) {
    if (!ReadSegment(segment, &holes)) return;
  }
  std::vector<PlaceWanted> missing;
  if (!holes.empty()) missing = owner_.WantedIn(holes);
  {
    const absl::MutexLock lock(&mutex_);
    ++scrubbed_.passes;
    scrubbed_.damaged += missing.size();
    scrubbed_.last = MonotonicNow() - began;
  }
  if (!missing.empty()) owner_.Damaged(std::move(missing));
}

bool Scrubber::ReadSegment(const SegmentHeader& header, std::vector<Hole>* holes) {
  const SegmentToRead segment{header.segment, header.epoch, static_cast<uint32_t>(header.units)};
  std::vector<Hole> found;
  std::vector<PlaceWanted> damaged;
  uint64_t unreadable = 0;
  uint32_t next = 1;
  bool more = true;
  const SegmentScanned scanned = ScanSegment(
      &records_, segment, next,
      [&](const RecordHeader& record) {
        const uint32_t units = UnitsFor({record.payload_bytes});
        if (record.unit > next) found.push_back({header, next, record.unit});
        next = record.unit + units;
        const absl::StatusOr<Verdict> verdict = records_.Check(segment, record);
        if (!verdict.ok()) {
          ++unreadable;
        } else if (*verdict != Verdict::kGood && record.kind == RecordKind::kShard) {
          const std::optional<uint32_t> space = owner_.NumberOf(record.space);
          if (space.has_value())
            damaged.push_back(
                {{record.position, *space, record.group, record.key}, record.shard, units, {record.segment, record.unit}});
        }
        {
          const absl::MutexLock lock(&mutex_);
          ++scrubbed_.records;
          scrubbed_.read += kUnit * units;
        }
        more = Pace(kUnit * units);
      },
      [&] { return more; });
  unreadable += scanned.unreadable;
  if (!owner_.IsStill(header)) return more;  // used again meanwhile: nothing of it was damage
  if (scanned.whole && unreadable == 0) {
    if (next < segment.units - 1) found.push_back({header, next, segment.units - 1});
    holes->insert(holes->end(), found.begin(), found.end());
  }
  {
    const absl::MutexLock lock(&mutex_);
    scrubbed_.damaged += damaged.size();
    scrubbed_.unreadable += unreadable;
  }
  if (!damaged.empty()) owner_.Damaged(std::move(damaged));
  return more;
}

}  // namespace kvist::ssd
